# SPDX-License-Identifier: Apache-2.0

"""Program FPGAs and move their ports, by the kernel's DFL driver.

include/uapi/linux/fpga-dfl.h, Documentation/fpga/dfl.rst; :mod:`os_acc.host.dfl`
describes the layout of sysfs. The driver checks only the length of its input. The
card, the port, the bytes and their compatibility are checked here.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import mmap
import os
import re
import struct
from collections.abc import Iterator
from functools import partial

from os_acc import privsep
from os_acc.objects.drivers import (
    DFL_DRIVER,
    DFL_FME,
    DFL_MANAGER,
    DFL_PORT,
    DFL_REGION,
    dfl_uuid,
)
from os_acc.objects.pci import PciAddress
from os_acc.privsep import (
    images,
    kernel,
    pci_functions,
    privileged_conf,
    request,
    sriov,
    worker,
)
from os_acc.privsep.images import ImageRequest, Sealed
from os_acc.privsep.outcome import (
    OK,
    CallRefused,
    CallResult,
    Outcome,
    after_programming,
)
from os_acc.privsep.privileged_conf import RootConf

PORT_PR = 0xB680
PORT_RELEASE = 0x4004B681
PORT_ASSIGN = 0x4004B682
# struct dfl_fpga_fme_port_pr: argsz, flags, port_id, buffer_size, buffer_address.
_PORT_PR = struct.Struct("=IIIIQ")
_PORT_ID = struct.Struct("=i")
# FME_CAP_NUM_PORTS has three bits (drivers/fpga/dfl.h).
_PORT_LIMIT = 7


@dataclasses.dataclass(frozen=True, slots=True)
class DflPortNode:
    """A port bound to dfl-pci.

    :ivar function: the card, or the VF to which the port belongs.
    :ivar path: directory of its device in sysfs.
    """

    function: PciAddress
    path: str


class PortsRequest(request.CardRequest):
    """The number of ports of a card that leave the host; it has all others then."""

    __slots__ = ()

    def validate(self) -> None:
        """Check that a card may have so many."""
        request.require(self.count <= _PORT_LIMIT)


@request.entrypoint(privsep.image, ImageRequest)
def program(call: ImageRequest) -> CallResult:
    """Write a part of a cached image to a port of an FPGA card.

    :returns: on success, ``observed`` is the canonical UUID of the port's
        function. The step of a refusal is ``digest`` or ``image`` if the image
        is not the expected one, or unreadable; ``signature`` if root trusts no
        signer of it; ``programming`` if the hardware has begun, and the region
        may hold anything: ``observed`` then has the FPGA manager's report. With
        any other step the port's contents are unchanged.
    """
    # Read no image for a card that is missing, or that root's configuration denies.
    pci_functions.check_exists(call.card)
    root = privileged_conf.current()
    root.check_allows(call.card, *pci_functions.vfs(call.card))
    beside: list[PciAddress] = []
    with contextlib.suppress(OSError):
        port = _find_port(call.card, call.number)
        # The lock keeps the VF from being attached to a guest meanwhile.
        if port is not None and port.function != call.card:
            beside.append(port.function)
    locked = [call.card, *beside]
    job = partial(_program, call, root, locked)
    return images.program(call, root, job, beside)


@request.entrypoint(privsep.base, PortsRequest)
def set_ports(call: PortsRequest) -> CallResult:
    """Detach the first ports of a card from the host, for VFs to use.

    Exactly as many VFs can then be created, each with one port. A card that has
    VFs is refused.
    """
    seconds = call.milliseconds / 1000
    return worker.run([call.card], call.epoch, seconds, lambda _index: _move(call))[0]


def check_closed(function: PciAddress) -> None:
    """Check that no node of a function on dfl-pci is open.

    dfl-pci releases a function even while its nodes are open. The kernel kills
    a process that closes a port's node afterwards (afu_release() resets the
    port through registers that are no longer mapped).

    :raises CallRefused: IN_USE, with the name of the node.
    """
    if pci_functions.driver(function) != DFL_DRIVER:
        return
    for device in (*_below(function, DFL_PORT), *_below(function, DFL_FME)):
        try:
            os.close(_open_node(device))
        except FileNotFoundError:
            # A missing node cannot be open.
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            node = os.path.basename(device)
            raise CallRefused(Outcome.IN_USE, errno.EBUSY, node) from error


def _program(
    call: ImageRequest, root: RootConf, locked: list[PciAddress], image: Sealed
) -> CallResult:
    _check_card(call.card, call.identity)
    root.check_allows(call.card, *pci_functions.vfs(call.card))
    fme = _fme(call.card)
    found = _interface_id(fme)
    if found is None:
        raise CallRefused(Outcome.REFUSED, errno.ENOENT, "compat_id")
    if found != call.interface_id:
        raise CallRefused(Outcome.CHANGED, 0, "compat_id", found)
    port = _port(call, locked)
    if port.function == call.card and _is_in_reset(port.path):
        _revive(call.card)
        fme, port = _fme(call.card), _port(call, locked)
    # The port first, so that its holder is reported rather than one of the FME.
    with _exclusive(port.path, "port"), _exclusive(fme, "fme") as fd:
        _write(fd, fme, call, image)
    # Another card may be present by now.
    with after_programming():
        _check_card(call.card, call.identity)
    return _read_back(port.path)


def _write(fd: int, fme: str, call: ImageRequest, image: Sealed) -> None:
    # ACCESS_COPY: a sealed file cannot be mapped as shared before Linux 6.7, and
    # ctypes requires a writable buffer. No page is ever copied.
    with mmap.mmap(image.fd, image.size, access=mmap.ACCESS_COPY) as view:
        begin = ctypes.c_char.from_buffer(view, call.offset)
        address = ctypes.addressof(begin)
        argument = _PORT_PR.pack(_PORT_PR.size, 0, call.number, call.size, address)
        try:
            kernel.current.ioctl(fd, PORT_PR, argument)
        except OSError as error:
            raise _failure(error, fme) from error
        finally:
            # The map cannot be closed while a buffer refers to it.
            del begin


def _failure(error: OSError, fme: str) -> CallRefused:
    if error.errno == errno.EBUSY:
        # The driver refuses this before programming (fpga_mgr_lock()).
        return CallRefused(Outcome.IN_USE, errno.EBUSY, "fme")
    # The manager's status is current only after EIO.
    status = ""
    if error.errno == errno.EIO:
        # A failure to read the status must not hide the error.
        with contextlib.suppress(OSError):
            status = _status(fme)
    return CallRefused(Outcome.REFUSED, error.errno or errno.EIO, "programming", status)


def _read_back(port: str) -> CallResult:
    try:
        found = dfl_uuid(_read(port, "afu_id"))
    except OSError as error:
        return CallResult(Outcome.NO_EFFECT, error.errno or errno.EIO, "programming")
    if found is None:
        return CallResult(Outcome.NO_EFFECT, 0, "programming")
    return CallResult(Outcome.OK, 0, "", found)


def _is_in_reset(port: str) -> bool:
    try:
        _read(port, "afu_id")
    except OSError as error:
        # afu_id_show() in drivers/fpga/dfl-afu-main.c.
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def _revive(card: PciAddress) -> None:
    """Rebind an unused card to dfl-pci to reset the driver's port counts.

    A failed programming leaves its port disabled, and the driver counts this:
    later successful ones do not enable it again (fpga_region_program_fpga(),
    __afu_port_enable()). After an interruption, the helper's record of the card
    has the override to restore.
    """
    pci_functions.check_without_vfs(card)
    check_closed(card)
    override = pci_functions.override(card)
    pci_functions.rebind(card, DFL_DRIVER)
    pci_functions.check_driver(card, DFL_DRIVER, DFL_DRIVER)
    pci_functions.set_override(card, override)
    pci_functions.check_driver(card, DFL_DRIVER, override)


def _port(call: ImageRequest, locked: list[PciAddress]) -> DflPortNode:
    port = _find_port(call.card, call.number)
    # A port that has moved since its lock was chosen is not locked.
    if port is None or port.function not in locked:
        raise CallRefused(Outcome.REFUSED, errno.ENODEV, "port", str(call.number))
    return port


def _move(call: PortsRequest) -> CallResult:
    card, count = call.card, call.count
    _check_card(card, call.identity)
    root = privileged_conf.last_read()
    if not (root.allows_vfs(card, count) if count else root.allows(card)):
        raise privileged_conf.denied(count)
    if count:
        sriov.check_whole(card, call.identity)
    fme = _fme(card)
    number_of_ports = int(kernel.current.read(os.path.join(fme, "ports_num")))
    if count > number_of_ports:
        raise CallRefused(Outcome.REFUSED, errno.ERANGE, "port", str(number_of_ports))
    moved = [
        number
        for number in range(number_of_ports)
        if _is_hosts(card, number) == (number < count)
    ]
    assigned: list[int] = []
    if moved:
        pci_functions.check_without_vfs(card)
        with _exclusive(fme, "fme") as fd:
            for number in moved:
                if number < count:
                    _move_port(fd, PORT_RELEASE, number)
                elif _move_port(fd, PORT_ASSIGN, number):
                    assigned.append(number)
    # A port that stayed may be one that the card counts but does not have.
    stayed = [
        number
        for number in range(number_of_ports)
        if (number < count or number in assigned)
        and _is_hosts(card, number) == (number < count)
    ]
    if stayed:
        return CallResult(Outcome.NO_EFFECT, 0, "port", str(stayed[0]))
    return OK


def _move_port(fd: int, request: int, number: int) -> bool:
    """Request the move of a port; return False if the port does not exist."""
    try:
        kernel.current.ioctl(fd, request, _PORT_ID.pack(number))
    except OSError as error:
        if request == PORT_ASSIGN and error.errno == errno.ENODEV:
            # The card counts ports that it does not have (FME_PORT_OFST_IMP).
            return False
        outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.REFUSED
        number_of = error.errno or errno.EIO
        raise CallRefused(outcome, number_of, "port", str(number)) from error
    return True


def _is_hosts(card: PciAddress, number: int) -> bool:
    port = _find_port(card, number)
    return port is not None and port.function == card


def _check_card(card: PciAddress, identity: tuple[int, ...]) -> None:
    pci_functions.check_identity(card, identity)
    if (driver := pci_functions.driver(card)) != DFL_DRIVER:
        raise CallRefused(Outcome.CHANGED, 0, "driver", driver)


def _fme(card: PciAddress) -> str:
    if (fme := next(_below(card, DFL_FME), None)) is None:
        raise CallRefused(Outcome.REFUSED, errno.ENODEV, "fme")
    return fme


@contextlib.contextmanager
def _exclusive(device: str, step: str) -> Iterator[int]:
    try:
        fd = _open_node(device)
    except OSError as error:
        outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.REFUSED
        raise CallRefused(outcome, error.errno or errno.EIO, step) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _find_port(card: PciAddress, number: int) -> DflPortNode | None:
    for function in (card, *pci_functions.vfs(card)):
        for path in _below(function, DFL_PORT):
            if _read(path, "id") == str(number):
                return DflPortNode(function, path)
    return None


def _interface_id(fme: str) -> str | None:
    """Return ``compat_id`` as canonical UUID; None if missing or ambiguous.

    All regions of a card show the id of their manager (fme_region_probe()).
    """
    found = set()
    for region in _class_devices(fme, DFL_REGION, "fpga_region"):
        try:
            found.add(dfl_uuid(_read(region, "compat_id")))
        except FileNotFoundError:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _status(fme: str) -> str:
    """Return the FPGA manager's report on the last programming, line by line."""
    for manager in _class_devices(fme, DFL_MANAGER, "fpga_manager"):
        return _read(manager, "status")
    return ""


def _open_node(device: str) -> int:
    """Open the node of a port or FME; OSError, EBUSY: it is open elsewhere."""
    path = kernel.current.path("dev", os.path.basename(device))
    return kernel.current.open_exclusive(path, _read(device, "dev"))


def _below(function: PciAddress, pattern: re.Pattern[str]) -> Iterator[str]:
    path = os.path.join(pci_functions.directory(function), "fpga_region")
    for region in kernel.current.names(path):
        above = os.path.join(path, region)
        yield from (
            os.path.join(above, name)
            for name in kernel.current.names(above)
            if pattern.fullmatch(name)
        )


def _class_devices(fme: str, pattern: re.Pattern[str], kind: str) -> Iterator[str]:
    for name in kernel.current.names(fme):
        if pattern.fullmatch(name):
            above = os.path.join(fme, name, kind)
            yield from (os.path.join(above, own) for own in kernel.current.names(above))


def _read(directory: str, name: str) -> str:
    return kernel.current.read(os.path.join(directory, name)).strip()
