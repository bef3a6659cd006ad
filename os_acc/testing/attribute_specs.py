# SPDX-License-Identifier: Apache-2.0

"""Attribute files that a vendor's driver makes, with their behaviour."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol


class SimulatedFunction(Protocol):
    """A PCI function of the simulated host, for the behaviour of its attributes.

    Names of attributes are relative to the function's directory, such as
    ``qat/state``. All changes of one write happen at once; none does if the behaviour
    raises OSError.
    """

    @property
    def address(self) -> str:
        """The address of the function whose attribute is written."""

    @property
    def vfs(self) -> tuple[str, ...]:
        """The addresses of its VFs, by index; empty: it is no PF, or has none."""

    @property
    def physfn(self) -> str | None:
        """The address of its PF; None: it is no VF."""

    def read(self, name: str, address: str = "") -> str:
        """Return the text of an attribute, without a newline at the end.

        :param address: of another function; empty: its own.
        :raises OSError: ENODEV: no such function; ENOENT: no such attribute.
        """

    def write(self, name: str, text: str, address: str = "") -> None:
        """Change the text that reads of an attribute return; calls no behaviour.

        :param text: without a newline at the end.
        :param address: of another function; empty: its own.
        :raises OSError: ENODEV: no such function; ENOENT: no such attribute.
        """

    def enter_vfio(self) -> None:
        """Offer the function to guests while it stays on its driver.

        :raises OSError: EINVAL: it has no IOMMU group; EBUSY: it has VFs.
        """

    def leave_vfio(self) -> None:
        """End :meth:`enter_vfio`.

        :raises OSError: EBUSY: a process holds the function.
        """


#: Called at a write with the function and the text as written. OSError refuses it.
Store = Callable[[SimulatedFunction, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute file of a function, as its vendor's driver makes it.

    :ivar name: relative to the function's directory, such as ``qat/state``.
    :ivar text: returned by reads once the driver is bound, without a newline at the
        end.
    :ivar store: the effect of a write: a function of a module. It changes the text
        itself. None: the attribute is read-only.
    :ivar stays: whether it is there without the driver, too, and keeps its text.
    :raises ValueError: ``store`` is no function of a module, which helper processes
        import.
    """

    name: str
    text: str = ""
    store: Store | None = None
    stays: bool = False

    def __post_init__(self) -> None:
        name = getattr(self.store, "__qualname__", "")
        if self.store is not None and (not name or "<" in name):
            raise ValueError(f"{self.store!r} is no function of a module")

    @property
    def mode(self) -> int:
        """The permissions of its file."""
        return 0o444 if self.store is None else 0o644


def keep(function: SimulatedFunction, name: str, text: str) -> None:
    """Keep a text as written, as most drivers do; part of a :data:`Store`."""
    function.write(name, text.removesuffix("\n"))
