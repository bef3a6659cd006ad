# SPDX-License-Identifier: Apache-2.0

"""The devices that dfl-pci makes of a card, and the card's contents (drivers/fpga).

The tree keeps the contents of a card's hardware until it loses power, and the
driver's view of the card until it is unbound.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import uuid
from collections.abc import Sequence

from os_acc.testing import functions, records
from os_acc.testing.specs import FunctionSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse

DRIVER = "dfl-pci"
#: The function in a port whose bitstream was not written completely.
NOTHING = "00000000-0000-0000-0000-000000000000"
_STATE = f"{PRIVATE}/dfl"
_HARDWARE = f"{_STATE}/hardware"
_MADE = f"{_STATE}/made"
_PLATFORM = "sys/bus/platform/devices"
_MAJORS = {"dfl-fme": 241, "dfl-port": 242}


@dataclasses.dataclass(frozen=True, slots=True)
class FakePort:
    """A port in the view of the driver of the card or VF.

    :ivar disabled: the number of disables that no enable has undone.
    :ivar released: whether its device was removed for a VF.
    """

    number: int
    name: str
    disabled: int = 0
    released: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """The devices that dfl-pci has made of a function.

    :ivar card: the function that is programmed: of a VF, its PF.
    :ivar place: the directory of its base region.
    :ivar fme, manager: empty for a VF, or without the feature.
    """

    card: str
    place: str
    ports: tuple[FakePort, ...]
    fme: str = ""
    manager: str = ""


# -- the card -----------------------------------------------------------------


def power_on(tree: Transaction, function: FunctionSpec) -> None:
    """Plug in a card, which loads the contents of its flash."""
    if function.dfl is not None:
        _hold(tree, function.address, function.dfl.functions)


def power_off(tree: Transaction, address: str) -> None:
    """Pull out a card."""
    tree.drop(f"{_HARDWARE}/{address}")


def forget(tree: Transaction) -> None:
    """Reboot: cards lose power, drivers lose their memory."""
    tree.drop(_STATE)


def held(tree: Transaction, card: str) -> tuple[str, ...]:
    """Return the UUIDs of the functions that the ports of a card hold.

    :raises OSError: ENOENT: no such card.
    """
    return tuple(tree.read(f"{_HARDWARE}/{card}").splitlines())


def _hold(tree: Transaction, card: str, holds: Sequence[str]) -> None:
    tree.put(f"{_HARDWARE}/{card}", "\n".join(holds))


def write(tree: Transaction, card: str, number: int, function_id: str) -> None:
    """Change the function that a port of a card holds."""
    holds = list(held(tree, card))
    holds[number] = function_id
    _hold(tree, card, holds)


# -- the driver ---------------------------------------------------------------


def made(tree: Transaction, address: str) -> Made:
    """Return the devices that dfl-pci has made of a function.

    :raises OSError: ENOENT: dfl-pci has made none.
    """
    return records.load(Made, tree.read(f"{_MADE}/{address}"))


def show(tree: Transaction, address: str) -> None:
    """Bind dfl-pci to a function: cci_enumerate_feature_devs()."""
    pf = functions.physfn(tree, address)
    spec = functions.spec(tree, pf or address)
    if spec.dfl is None:
        return
    if pf is None:
        _show_card(tree, spec)
    else:
        _show_vf(tree, spec, address)


def _show_card(tree: Transaction, spec: FunctionSpec) -> None:
    card = spec.dfl
    assert card is not None
    place = _base_region(tree, spec.address)
    fme = _first_free(tree, _PLATFORM, "dfl-fme.{}")
    path = _platform_device(tree, place, fme)
    tree.put(f"{path}/ports_num", f"{len(card.functions)}\n")
    tree.put(f"{path}/bitstream_id", "0x23000410010310\n")
    manager = _show_manager(tree, path, spec) if card.reconfigurable else ""
    known = Made(spec.address, place, (), fme, manager)
    for number in range(len(card.functions)):
        port = FakePort(number, _port_name(tree))
        _show_port(tree, place, port)
        known = dataclasses.replace(known, ports=(*known.ports, port))
    _put(tree, spec.address, known)
    _show_functions(tree, known)


def _show_vf(tree: Transaction, spec: FunctionSpec, address: str) -> None:
    released = [port for port in made(tree, spec.address).ports if port.released]
    number = released[spec.vf_index(address)].number
    place = _base_region(tree, address)
    port = FakePort(number, _port_name(tree))
    _show_port(tree, place, port)
    known = Made(spec.address, place, (port,))
    _put(tree, address, known)
    _show_functions(tree, known)


def _show_manager(tree: Transaction, fme: str, spec: FunctionSpec) -> str:
    number = fme.rpartition(".")[2]
    device = _platform_device(tree, fme, f"dfl-fme-mgr.{number}")
    manager = _class_device(tree, device, "fpga_manager", "fpga{}")
    tree.put(f"{manager}/name", "DFL FME FPGA Manager\n")
    tree.put(f"{manager}/state", "unknown\n")
    tree.put(f"{manager}/status", "")
    card = spec.dfl
    assert card is not None
    for _port in card.functions:
        bridge = _first_free(tree, _PLATFORM, "dfl-fme-bridge.{}.auto")
        path = _platform_device(tree, fme, bridge)
        _class_device(tree, path, "fpga_bridge", "br{}")
        own = bridge.split(".")[1]
        path = _platform_device(tree, fme, f"dfl-fme-region.{own}")
        region = _class_device(tree, path, "fpga_region", "region{}")
        if card.interface_id:
            compat_id = uuid.UUID(card.interface_id).hex
            tree.put(f"{region}/compat_id", f"{compat_id}\n")
    return manager


def _show_port(tree: Transaction, place: str, port: FakePort) -> None:
    path = _platform_device(tree, place, port.name)
    tree.put(f"{path}/id", f"{port.number}\n")


def _show_functions(tree: Transaction, known: Made) -> None:
    """Show the contents of the hardware, or EBUSY while it is disabled: afu_id_show().

    EBUSY is for reads through the kernel. A plain file cannot fail so: a reader of
    the tree finds no file, rather than the port's former function.
    """
    holds = held(tree, known.card)
    for port in known.ports:
        path = f"{known.place}/{port.name}/afu_id"
        if port.disabled and tree.exists(path):
            tree.drop(path)
        if not port.disabled and not port.released:
            tree.put(path, f"{uuid.UUID(holds[port.number]).hex}\n")


def hide(tree: Transaction, address: str) -> None:
    """Unbind dfl-pci from a function: cci_pci_remove()."""
    if not tree.exists(f"{_MADE}/{address}"):
        return
    known = made(tree, address)
    for port in known.ports:
        if not port.released:
            _unlist(tree, f"{known.place}/{port.name}")
    if known.fme:
        _unlist(tree, f"{known.place}/{known.fme}")
    tree.drop(f"sys/class/fpga_region/{os.path.basename(known.place)}")
    tree.drop(os.path.dirname(known.place))
    tree.drop(f"{_MADE}/{address}")


# -- calls to the card --------------------------------------------------------


def card_of(tree: Transaction, fme: str) -> str | None:
    """Return the card whose FME has this node."""
    for address in tree.list(_MADE):
        if made(tree, address).fme == fme:
            return address
    return None


def engine_of(tree: Transaction, address: str) -> str:
    """Return the node of a card's FME; empty if dfl-pci has made none."""
    # The address was written by a test, and may be any text.
    return made(tree, address).fme if address in tree.list(_MADE) else ""


def own_port(tree: Transaction, card: str, number: int) -> FakePort | None:
    """Return a port of a card, released or not."""
    ports = made(tree, card).ports
    return ports[number] if 0 <= number < len(ports) else None


def is_disabled(tree: Transaction, name: str) -> bool:
    """Return whether the port with this device is held in reset."""
    return any(port.disabled > 0 for port in _ports(tree) if port.name == name)


def change(
    tree: Transaction,
    card: str,
    number: int,
    state: str,
    *,
    disabled: int = 0,
    status: Sequence[str] = (),
    function_id: str | None = None,
) -> None:
    """Change the state of a card's FPGA manager, and one of its ports.

    :param disabled: the disables of the port that are added, or undone if negative.
    :param status: the errors that the manager reports.
    :param function_id: the function that the port holds now; None: as before.
    """
    if function_id is not None:
        write(tree, card, number, function_id)
    if not tree.exists(f"{_MADE}/{card}"):
        # The driver was unbound meanwhile.
        return
    known = made(tree, card)
    port = known.ports[number]
    port = dataclasses.replace(port, disabled=port.disabled + disabled)
    _put(tree, card, _with(known, port))
    tree.put(f"{known.manager}/state", f"{state}\n")
    tree.put(f"{known.manager}/status", "".join(f"{line}\n" for line in status))
    for address in (card, *functions.vfs(tree, card)):
        if tree.exists(f"{_MADE}/{address}"):
            _show_functions(tree, made(tree, address))


def move(tree: Transaction, card: str, number: int) -> None:
    """Release a port, or assign a released port."""
    known = made(tree, card)
    port = known.ports[number]
    port = dataclasses.replace(port, released=not port.released)
    known = _with(known, port)
    _put(tree, card, known)
    if port.released:
        _unlist(tree, f"{known.place}/{port.name}")
    else:
        _show_port(tree, known.place, port)
        _show_functions(tree, known)


def _with(known: Made, port: FakePort) -> Made:
    ports = tuple(port if port.number == own.number else own for own in known.ports)
    return dataclasses.replace(known, ports=ports)


def check_released(tree: Transaction, address: str, count: int) -> None:
    """Assign one port to each VF: dfl_fpga_cdev_config_ports_vf().

    :raises OSError: EINVAL: another number of ports is released.
    """
    if sum(port.released for port in made(tree, address).ports) != count:
        raise refuse(errno.EINVAL, address)


def _put(tree: Transaction, address: str, known: Made) -> None:
    tree.put(f"{_MADE}/{address}", records.dump(known))


# -- bitstreams ---------------------------------------------------------------


def payload(function_id: str, size: int = 4096) -> bytes:
    """Return the content after the header of a bitstream with a function.

    The simulated hardware reads which function that is from the first 16
    bytes.

    :param size: in bytes, at least 16.
    """
    begin = uuid.UUID(function_id).bytes
    pattern = bytes(range(251))
    rest = pattern * (size // len(pattern) + 1)
    return begin + rest[: size - len(begin)]


def function_of(payload: bytes) -> str:
    """Return the function that a payload implements."""
    begin = payload[:16]
    return str(uuid.UUID(bytes=begin)) if len(begin) == 16 else NOTHING


# -- attributes and nodes -----------------------------------------------------


def _base_region(tree: Transaction, address: str) -> str:
    above = functions.place(tree, address)
    return _class_device(tree, above, "fpga_region", "region{}")


def _platform_device(tree: Transaction, above: str, name: str) -> str:
    path = f"{above}/{name}"
    tree.link(f"{path}/subsystem", "sys/bus/platform")
    tree.link(f"{_PLATFORM}/{name}", path)
    kind, _, minor = name.partition(".")
    if kind in _MAJORS:
        device = f"{_MAJORS[kind]}:{minor}"
        tree.put(f"{path}/dev", f"{device}\n")
        uevent = f"MAJOR={_MAJORS[kind]}\nMINOR={minor}\nDEVNAME={name}\n"
        tree.put(f"{path}/uevent", uevent)
        # Its device number replaces the content that an ordinary file has.
        tree.put(f"dev/{name}", f"{device}\n", 0o600)
    return path


def _class_device(tree: Transaction, above: str, kind: str, name: str) -> str:
    own = _first_free(tree, f"sys/class/{kind}", name)
    path = f"{above}/{kind}/{own}"
    tree.link(f"{path}/subsystem", f"sys/class/{kind}")
    tree.link(f"{path}/device", above)
    tree.link(f"sys/class/{kind}/{own}", path)
    return path


def _unlist(tree: Transaction, path: str) -> None:
    """Remove a device, all devices below it, and its node."""
    for name in tree.list(path):
        below = f"{path}/{name}"
        if tree.exists(f"{below}/subsystem"):
            _unlist(tree, below)
        elif name in ("fpga_manager", "fpga_bridge", "fpga_region"):
            for own in tree.list(below):
                tree.drop(f"sys/class/{name}/{own}")
    name = os.path.basename(path)
    tree.drop(f"{_PLATFORM}/{name}")
    tree.drop(f"dev/{name}")
    tree.drop(path)


def _first_free(tree: Transaction, where: str, name: str) -> str:
    names = map(name.format, itertools.count())
    return next(own for own in names if not tree.exists(f"{where}/{own}"))


def _port_name(tree: Transaction) -> str:
    # A released port keeps its number.
    taken = {port.name for port in _ports(tree)}
    names = map("dfl-port.{}".format, itertools.count())
    free = (name for name in names if name not in taken)
    return next(name for name in free if not tree.exists(f"{_PLATFORM}/{name}"))


def _ports(tree: Transaction) -> list[FakePort]:
    """Return the ports of all functions, released or not."""
    return [port for each in tree.list(_MADE) for port in made(tree, each).ports]
