# SPDX-License-Identifier: Apache-2.0

"""A tree of plain files in place of a kernel, with traps all around.

Nothing reacts in it: written data stays, and can be compared byte by byte. Beside
each attribute that privileged code may write are others that it may not write, and
some of the permitted ones are links to other places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tests.stress.privileged_host import Card, Host

_TEXT = "as it was\n"
_VFIO, _NOUVEAU, _BLANK = "vfio-pci", "nouveau", "i6300ESB timer"
_SIBLINGS = (
    *("remove", "rescan", "config", "enable", "resource0", "rom", "uevent", "reset"),
    *("reset_method", "msi_bus", "broken_parity_status", "d3cold_allowed", "numa_node"),
    *("driver_override", "link/l1_aspm", "power/control", "vpd", "bus_reset"),
)
_SRIOV = ("sriov_numvfs", "sriov_drivers_autoprobe", "sriov_vf_total_msix")

PLAIN = Card((0, 0x17, 0, 0), (0x10DE, 0x2235, 0x10DE, 0x145A, 0xA1), 1, _NOUVEAU)
SECOND = Card((0, 0x17, 0, 1), (0x10DE, 0x1AEF, 0x10DE, 0x145A, 0xA1), 1, "")
TAKEN = Card((0, 0x5E, 0, 0), (0x10EE, 0x5000, 0x10EE, 0x000E, 0), 2, _VFIO)
PF = Card((0, 0x3B, 0, 0), (0x8086, 0x1592, 0x8086, 2, 2), 3, _BLANK)
BRIDGE = Card((0, 0x16, 0, 0), (0x8086, 0x347A, 0, 0, 0), 4, "pcieport", True)
WIDE = Card((0x10000, 0xFF, 0x1F, 7), (0xFFFF,) * 5, 2**31 - 1, _NOUVEAU)
#: Its attributes are links.
LINKED = Card((0, 0x66, 0, 0), (0x1234, 0x11E8, 0, 0, 0x10), 6, _NOUVEAU)
#: Its driver is a directory of another file system.
STRAY = Card((0, 0x67, 0, 0), (0x1234, 0x11E8, 0, 0, 0x10), 7, "stray")
#: It is erased by way of a driver that does not come.
DISK = Card(
    (0, 0xD9, 0, 0), (0x144D, 0xA824, 0x144D, 0xA801, 0), 8, _NOUVEAU, is_nvme=True
)
CARDS = (PLAIN, SECOND, TAKEN, PF, BRIDGE, WIDE, LINKED, STRAY, DISK)


def build(place: str, elsewhere: str) -> Host:
    """Make the tree and its surroundings.

    :param place: an empty directory; the kernel's root will be below it.
    :param elsewhere: one of another file system, if there is one.
    """
    root = os.path.join(place, "root")
    for name in ("outside/file", "outside/unbind", "root/etc/passwd", "root/etc/file"):
        _file(os.path.join(place, name))
    _file(os.path.join(elsewhere, "unbind"))
    for name in ("drivers_probe", "drivers_autoprobe", "rescan", "uevent"):
        _file(f"{root}/sys/bus/pci/{name}")
    for name in (_VFIO, _NOUVEAU, _BLANK, "pcieport"):
        for attribute in ("bind", "unbind", "new_id", "remove_id", "uevent"):
            _file(f"{root}/sys/bus/pci/drivers/{name}/{attribute}")
    for card in CARDS:
        _card(root, card)
    _traps(root, elsewhere)
    _file(f"{root}/proc/4711/comm", "qemu\n")
    _link(f"{root}/proc/4711/fd/9", "/dev/vfio/2")
    _file(f"{root}/proc/cpuinfo")
    os.mkdir(f"{root}/run")
    return Host(root, {card.place: card for card in CARDS})


def _card(root: str, card: Card) -> None:
    real = f"{root}/sys/devices/pci0000:00/{card.name}"
    *ids, revision = card.identity
    code = 0x010802 if card.is_nvme else 0x060400 if card.is_bridge else 0x030000
    texts: dict[str, str] = {
        "modalias": "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}".format(*ids)
        + "bc{:02X}sc{:02X}i{:02X}\n".format(*code.to_bytes(3, "big")),
        "revision": f"{revision:#04x}\n",
        "class": f"{code:#08x}\n",
        "driver_override": "(null)\n",
    }
    if card.is_bridge:
        texts["secondary_bus_number"] = "1\n"
    # Each may be a VF of NVIDIA's: few calls of a share name the same card.
    texts["nvidia/current_vgpu_type"] = "0\n"
    if card is PF:
        texts.update(dict.fromkeys(_SRIOV, "1\n"))
    for name in _SIBLINGS:
        texts.setdefault(name, _TEXT)
    _files(real, texts)
    _link(f"{root}/sys/bus/pci/devices/{card.name}", real, relative=True)
    group = f"{root}/sys/kernel/iommu_groups/{card.group}"
    os.makedirs(group, exist_ok=True)
    _link(f"{real}/iommu_group", group, relative=True)
    _file(f"{root}/dev/vfio/{card.group}")
    if card.driver:
        driver = f"{root}/sys/bus/pci/drivers/{card.driver}"
        _link(f"{real}/driver", driver, relative=True)


def _traps(root: str, elsewhere: str) -> None:
    linked = f"{root}/sys/devices/pci0000:00/{LINKED.name}"
    for name, target in {
        "driver_override": "../../../../../outside/file",
        "reset": f"../{PLAIN.name}/remove",
        "sriov_drivers_autoprobe": "../../../../../outside/file",
        "sriov_numvfs": f"../{PF.name}/sriov_numvfs",
    }.items():
        if os.path.lexists(f"{linked}/{name}"):
            os.unlink(f"{linked}/{name}")
        _link(f"{linked}/{name}", target)
    stray = f"{root}/sys/devices/pci0000:00/{STRAY.name}"
    os.unlink(f"{stray}/driver")
    if os.stat(elsewhere).st_dev == os.stat(root).st_dev:
        # Nothing would distinguish the two file systems.
        os.unlink(f"{elsewhere}/unbind")
    _link(f"{stray}/driver", elsewhere)
    os.unlink(f"{stray}/reset")
    os.mkdir(f"{stray}/reset")


def _files(directory: str, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        _file(f"{directory}/{name}", text)


def _file(path: str, text: str = _TEXT) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _link(path: str, target: str, *, relative: bool = False) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if relative:
        target = os.path.relpath(target, os.path.dirname(path))
    os.symlink(target, path)
