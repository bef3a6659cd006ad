# SPDX-License-Identifier: Apache-2.0

"""Attributes of a vendor's driver: shown, hidden, and written."""

from __future__ import annotations

import dataclasses
import errno
import os

from os_acc.testing import functions, holders, vfio
from os_acc.testing.device_specs import AttributeSpec
from os_acc.testing.tree import Transaction, refuse


@dataclasses.dataclass(frozen=True, slots=True)
class TreeFunction:
    """See :class:`os_acc.testing.device_specs.SimulatedFunction`."""

    tree: Transaction
    address: str

    @property
    def vfs(self) -> tuple[str, ...]:
        return tuple(functions.vfs(self.tree, self.address))

    @property
    def physfn(self) -> str | None:
        return functions.physfn(self.tree, self.address)

    def read(self, name: str, address: str = "") -> str:
        return self.tree.read(self._path(name, address)).removesuffix("\n")

    def write(self, name: str, text: str, address: str = "") -> None:
        other = address or self.address
        known = {
            each.name: each.mode
            for each in functions.spec(self.tree, other).driver_attributes
        }
        self.tree.put(self._path(name, other), f"{text}\n", known.get(name, 0o444))

    def enter_vfio(self) -> None:
        if error := vfio.register(self.tree, self.address):
            raise refuse(error, self.address)

    def leave_vfio(self) -> None:
        if holders.holds(self.tree, self.address):
            raise refuse(errno.EBUSY, self.address)
        vfio.unregister(self.tree, self.address)

    def _path(self, name: str, address: str) -> str:
        place = functions.place(self.tree, address or self.address)
        path = f"{place}/{name}"
        if not self.tree.exists(path):
            raise refuse(errno.ENOENT, path)
        return path


def show(tree: Transaction, address: str, *, stay: bool) -> None:
    """Add the attributes that stay without the driver, or those that do not."""
    place = functions.place(tree, address)
    for each in _of(tree, address, stay):
        tree.put(f"{place}/{each.name}", f"{each.text}\n", each.mode)


def hide(tree: Transaction, address: str) -> None:
    """Remove the attributes that end with the driver, and their directories."""
    place = functions.place(tree, address)
    names = [each.name for each in _of(tree, address, False)]
    for name in names:
        tree.drop(f"{place}/{name}")
    for directory in sorted({os.path.dirname(name) for name in names} - {""}):
        if not tree.list(f"{place}/{directory}"):
            tree.drop(f"{place}/{directory}")


def store(tree: Transaction, address: str, name: str, text: str) -> None:
    """Write an attribute as its behaviour does.

    :raises OSError: EACCES: it has none; or the behaviour refuses.
    """
    for each in functions.spec(tree, address).driver_attributes:
        if each.name == name and each.store is not None:
            each.store(TreeFunction(tree, address), text)
            return
    raise refuse(errno.EACCES, name)


def _of(tree: Transaction, address: str, stay: bool) -> list[AttributeSpec]:
    return [
        each
        for each in functions.spec(tree, address).driver_attributes
        if each.stays == stay
    ]
