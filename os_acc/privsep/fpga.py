# SPDX-License-Identifier: Apache-2.0

"""Program FPGAs and move their ports, by the kernel's DFL driver.

include/uapi/linux/fpga-dfl.h, Documentation/fpga/dfl.rst. The driver checks only
the length of its input. The card, the port, the bytes and their compatibility
are checked here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from os_acc import privsep
from os_acc.objects.dfl import DRIVER
from os_acc.objects.pci import PciAddress
from os_acc.privsep import dfl, functions, images, kernel, rootconf, worker
from os_acc.privsep.images import Sealed
from os_acc.privsep.outcome import (
    CallRefused,
    CallResult,
    ImageUnfit,
    Outcome,
    after_programming,
)
from os_acc.privsep.rootconf import RootConf

PORT_PR = 0xB680
PORT_RELEASE = 0x4004B681
PORT_ASSIGN = 0x4004B682
# struct dfl_fpga_fme_port_pr: argsz, flags, port_id, buffer_size,
# buffer_address.
_PORT_PR = struct.Struct("=IIIIQ")
_PORT_ID = struct.Struct("=i")
# FME_CAP_NUM_PORTS has three bits (drivers/fpga/dfl.h).
_PORT_LIMIT = 7


class _Task(NamedTuple):
    card: PciAddress
    identity: tuple[int, ...]
    number: int
    interface_id: str
    offset: int
    size: int


@privsep.image.entrypoint
def program(
    parts: tuple[int, ...],
    identity: tuple[int, ...],
    number: int,
    interface_id: str,
    algorithm: str,
    digest: str,
    offset: int,
    size: int,
    epoch: int,
    milliseconds: int,
    signature: tuple[str, str, str, str],
) -> tuple[str, int, str, str]:
    """Write a part of a cached image to a port of an FPGA card.

    :param number: number of the port on the card.
    :param interface_id: canonical UUID that the card's ``compat_id`` must equal.
    :param algorithm, digest: digest of the whole image, by which it is found.
    :param offset, size: range of the image to send to the hardware.
    :param signature: see :func:`.signatures.check`.
    :returns: on success, ``observed`` is the canonical UUID of the port's
        function. The step of a refusal is ``digest`` or ``image`` if the image
        is not the expected one, or unreadable; ``signature`` if root trusts no
        signer of it; ``programming`` if the hardware has begun, and the region
        may hold anything: ``observed`` then has the FPGA manager's report. With
        any other step the port's contents are unchanged.
    """
    card = functions.parse_address(parts)
    named = functions.parse_digest(algorithm, digest)
    if (
        card is None
        or named is None
        or not functions.is_identity(identity)
        or not functions.is_number(number, _PORT_LIMIT)
        or not functions.is_uuid(interface_id)
        or not functions.is_number(offset, images.SIZE_LIMIT)
        or not functions.is_number(size, images.SIZE_LIMIT)
        or not size
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
        or not images.is_signature(signature)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    task = _Task(card, tuple(identity), number, interface_id, offset, size)
    deadline = time.monotonic() + milliseconds / 1000
    root = rootconf.current()
    # Read no image for a card that is missing, or that root's configuration denies.
    if not functions.exists(card):
        return CallResult(Outcome.GONE, errno.ENODEV, "identity")
    if not root.allows(card, *functions.vfs(card)):
        return rootconf.denied()
    try:
        with images.current.sealed(named, deadline) as image:
            if offset + size > image.size:
                return CallResult(
                    Outcome.REFUSED, errno.ERANGE, "image", str(image.size)
                )
            images.check_signature(image, signature, root, deadline)
            return _run(task, image, epoch, deadline, root)
    except ImageUnfit as error:
        return CallResult(Outcome.REFUSED, error.errno, error.step, error.observed)


@privsep.base.entrypoint
def release_ports(
    parts: tuple[int, ...],
    identity: tuple[int, ...],
    count: int,
    epoch: int,
    milliseconds: int,
) -> tuple[str, int, str, str]:
    """Detach the first ports of a card from the host, for VFs to use.

    Exactly as many VFs can then be created, each with one port. A card that has
    VFs is refused.

    :param count: number of ports; all others belong to the host afterwards.
    """
    return _set_ports(parts, identity, count, epoch, milliseconds)


@privsep.base.entrypoint
def assign_ports(
    parts: tuple[int, ...], identity: tuple[int, ...], epoch: int, milliseconds: int
) -> tuple[str, int, str, str]:
    """Return all ports of a card without VFs to the host."""
    return _set_ports(parts, identity, 0, epoch, milliseconds)


# -- programming --------------------------------------------------------------


def _run(
    task: _Task, image: Sealed, epoch: int, deadline: float, root: RootConf
) -> CallResult:
    addresses = [task.card]
    with contextlib.suppress(OSError):
        port = dfl.port(task.card, task.number)
        # The lock keeps the VF from being attached to a guest meanwhile.
        if port is not None and port.function != task.card:
            addresses.append(port.function)

    def job(index: int) -> CallResult:
        if index:
            return CallResult(Outcome.OK)
        return _guarded(lambda: _program(task, image, addresses, root))

    seconds = deadline - time.monotonic()
    if seconds <= 0:
        # Nothing has begun: reading the image took all of the time.
        return CallResult(Outcome.REFUSED, errno.ETIMEDOUT, "image")
    return worker.run(addresses, epoch, seconds, job, [image.fd])[0]


def _program(
    task: _Task, image: Sealed, locked: list[PciAddress], root: RootConf
) -> CallResult:
    _check_card(task.card, task.identity)
    if not root.allows(task.card, *functions.vfs(task.card)):
        return rootconf.denied()
    fme = _fme(task.card)
    found = dfl.interface_id(fme)
    if found is None:
        return CallResult(Outcome.REFUSED, errno.ENOENT, "compat_id")
    if found != task.interface_id:
        return CallResult(Outcome.CHANGED, 0, "compat_id", found)
    port = _port(task, locked)
    if port.function == task.card and _is_in_reset(port.path):
        _revive(task.card)
        fme, port = _fme(task.card), _port(task, locked)
    # The port first, so that its holder is reported rather than one of the FME.
    with _exclusive(port.path, "port"), _exclusive(fme, "fme") as fd:
        _write(fd, fme, task, image)
    # Another card may be present by now.
    with after_programming():
        _check_card(task.card, task.identity)
    return _read_back(port.path)


def _write(fd: int, fme: str, task: _Task, image: Sealed) -> None:
    # ACCESS_COPY: a sealed file cannot be mapped as shared before Linux 6.7, and
    # ctypes requires a writable buffer. No page is ever copied.
    with mmap.mmap(image.fd, image.size, access=mmap.ACCESS_COPY) as view:
        begin = ctypes.c_char.from_buffer(view, task.offset)
        address = ctypes.addressof(begin)
        argument = _PORT_PR.pack(_PORT_PR.size, 0, task.number, task.size, address)
        try:
            kernel.current.ioctl(fd, PORT_PR, argument)
        except OSError as error:
            raise CallRefused(_failure(error, fme)) from error
        finally:
            # The map cannot be closed while a buffer refers to it.
            del begin


def _failure(error: OSError, fme: str) -> CallResult:
    if error.errno == errno.EBUSY:
        # The driver refuses this before programming (fpga_mgr_lock()).
        return CallResult(Outcome.IN_USE, errno.EBUSY, "fme")
    # The manager's status is current only after EIO.
    status = ""
    if error.errno == errno.EIO:
        # A failure to read the status must not hide the error.
        with contextlib.suppress(OSError):
            status = dfl.status(fme)
    return CallResult(Outcome.REFUSED, error.errno or errno.EIO, "programming", status)


def _read_back(port: str) -> CallResult:
    try:
        found = dfl.function_id(port)
    except OSError as error:
        return CallResult(Outcome.NO_EFFECT, error.errno or errno.EIO, "programming")
    if found is None:
        return CallResult(Outcome.NO_EFFECT, 0, "programming")
    return CallResult(Outcome.OK, 0, "", found)


def _is_in_reset(port: str) -> bool:
    try:
        dfl.function_id(port)
    except OSError as error:
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
    vfs = functions.count_vfs(card)
    if vfs:
        raise CallRefused(
            CallResult(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", str(vfs))
        )
    held = dfl.held(card)
    if held is not None:
        raise CallRefused(CallResult(Outcome.IN_USE, errno.EBUSY, held))
    override = functions.override(card)
    functions.rebind(card, DRIVER)
    found = functions.driver(card)
    if found != DRIVER:
        raise CallRefused(CallResult(Outcome.NO_EFFECT, 0, "driver", found))
    functions.set_override(card, override)
    left = functions.override(card)
    if left != override:
        raise CallRefused(CallResult(Outcome.NO_EFFECT, 0, "driver_override", left))


def _port(task: _Task, locked: list[PciAddress]) -> dfl.DflPortNode:
    port = dfl.port(task.card, task.number)
    # A port that has moved since its lock was chosen is not locked.
    if port is None or port.function not in locked:
        raise CallRefused(
            CallResult(Outcome.REFUSED, errno.ENODEV, "port", str(task.number))
        )
    return port


# -- ports --------------------------------------------------------------------


def _set_ports(
    parts: object, identity: object, count: object, epoch: object, milliseconds: object
) -> CallResult:
    card = functions.parse_address(parts)
    if (
        card is None
        or not functions.is_identity(identity)
        or not functions.is_number(count, _PORT_LIMIT)
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    checked = tuple(identity)
    root = rootconf.current()

    def job(_index: int) -> CallResult:
        return _guarded(lambda: _move_ports(card, checked, count, root))

    return worker.run([card], epoch, milliseconds / 1000, job)[0]


def _move_ports(
    card: PciAddress, identity: tuple[int, ...], count: int, root: RootConf
) -> CallResult:
    _check_card(card, identity)
    if not (root.allows_vfs(card, count) if count else root.allows(card)):
        return rootconf.denied(count)
    fme = _fme(card)
    number_of_ports = int(kernel.current.read(os.path.join(fme, "ports_num")))
    if count > number_of_ports:
        return CallResult(Outcome.REFUSED, errno.ERANGE, "port", str(number_of_ports))
    moved = [
        number
        for number in range(number_of_ports)
        if _is_hosts(card, number) == (number < count)
    ]
    vfs = functions.count_vfs(card)
    if moved and vfs:
        return CallResult(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", str(vfs))
    assigned: list[int] = []
    if moved:
        with _exclusive(fme, "fme") as fd:
            for number in moved:
                if number < count:
                    _move(fd, PORT_RELEASE, number)
                elif _move(fd, PORT_ASSIGN, number):
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
    return CallResult(Outcome.OK)


def _move(fd: int, request: int, number: int) -> bool:
    """Request the move of a port; return False if the port does not exist."""
    try:
        kernel.current.ioctl(fd, request, _PORT_ID.pack(number))
    except OSError as error:
        if request == PORT_ASSIGN and error.errno == errno.ENODEV:
            # The card counts ports that it does not have (FME_PORT_OFST_IMP).
            return False
        outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.REFUSED
        raise CallRefused(
            CallResult(outcome, error.errno or errno.EIO, "port", str(number))
        ) from error
    return True


def _is_hosts(card: PciAddress, number: int) -> bool:
    port = dfl.port(card, number)
    return port is not None and port.function == card


# -- both ---------------------------------------------------------------------


def _guarded(step: Callable[[], CallResult]) -> CallResult:
    try:
        return step()
    except CallRefused as refusal:
        return refusal.result
    except OSError as error:
        return CallResult(
            Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
        )


def _check_card(card: PciAddress, identity: tuple[int, ...]) -> None:
    if found := functions.changed(card, identity):
        raise CallRefused(found)
    driver = functions.driver(card)
    if driver != DRIVER:
        raise CallRefused(CallResult(Outcome.CHANGED, 0, "driver", driver))


def _fme(card: PciAddress) -> str:
    fme = dfl.fme(card)
    if fme is None:
        raise CallRefused(CallResult(Outcome.REFUSED, errno.ENODEV, "fme"))
    return fme


@contextlib.contextmanager
def _exclusive(device: str, step: str) -> Iterator[int]:
    try:
        fd = dfl.open_node(device)
    except OSError as error:
        outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.REFUSED
        raise CallRefused(
            CallResult(outcome, error.errno or errno.EIO, step)
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)
