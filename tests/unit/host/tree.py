# SPDX-License-Identifier: Apache-2.0

"""Small sysfs trees, laid out as Linux lays them out."""

from __future__ import annotations

import os
from pathlib import Path

from os_acc.objects.pci import PciAddress

PLAIN = "0000:3b:00.0"


def address(text: str = PLAIN) -> PciAddress:
    return PciAddress.parse(text)


class Sysfs:
    """Build a tree below ``root``; each text is written as ``cat`` shows it."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.root = str(root)
        self.devices = root / "sys/bus/pci/devices"
        self.devices.mkdir(parents=True)

    def put(self, path: str, text: str) -> Path:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file

    def link(self, path: str | Path, to: str | Path) -> None:
        link, target = self.path / path, self.path / to
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def function(
        self,
        text: str = PLAIN,
        *,
        ids: tuple[int, int, int, int] = (0x8086, 0x0B2B, 0x8086, 0x0001),
        class_code: int = 0x120000,
        driver: str | None = None,
        group: int | None = None,
        above: str = "",
        **attributes: str,
    ) -> Path:
        """Add a PCI function; ``above`` is the bridge that leads to it."""
        top = f"sys/devices/pci{text[:-5]}"
        directory = self.path / top / above / text
        directory.mkdir(parents=True)
        values = {
            "modalias": "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}".format(*ids)
            + "bc{:02X}sc{:02X}i{:02X}".format(*class_code.to_bytes(3, "big")),
            "revision": "0x01",
            "numa_node": "0",
            "driver_override": "(null)",
            "reset_method": "flr bus",
            **attributes,
        }
        for name, value in values.items():
            (directory / name).write_text(value + "\n")
        self.link(self.devices / text, directory)
        if driver is not None:
            drivers = self.path / "sys/bus/pci/drivers" / driver
            drivers.mkdir(parents=True, exist_ok=True)
            self.link(directory / "driver", drivers)
        if group is not None:
            home = self.path / f"sys/kernel/iommu_groups/{group}"
            self.link(home / "devices" / text, directory)
            self.link(directory / "iommu_group", home)
        return directory

    def vf(self, pf: str, index: int, text: str) -> Path:
        directory = self.function(text, group=1000 + index, reset_method="flr")
        parent = (self.devices / pf).resolve()
        self.link(directory / "physfn", parent)
        self.link(parent / f"virtfn{index}", directory)
        return directory

    def class_device(self, class_name: str, directory: Path, **values: str) -> Path:
        """Add a device made by a driver, in ``/sys/class`` as well."""
        directory.mkdir(parents=True)
        for name, value in values.items():
            (directory / name).write_text(value + "\n")
        self.link(f"sys/class/{class_name}/{directory.name}", directory)
        return directory
