# SPDX-License-Identifier: Apache-2.0

"""Parts of a simulated function: attributes of its driver, FPGA, NVMe controller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

#: Bits of OACS: Format NVM, Namespace Management, Virtualization Management.
FORMATS, MANAGES, VIRTUALIZES = 1 << 1, 1 << 3, 1 << 7
#: Bits of SANICAP.
CRYPTO, BLOCK, OVERWRITE = 0b001, 0b010, 0b100
#: Bits of CMIC: several controllers, and the controller is a VF.
SEVERAL, OF_VF = 0b010, 0b100


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


@dataclasses.dataclass(frozen=True, slots=True)
class DflSpec:
    """An FPGA card with an FPGA Management Engine.

    :ivar functions: UUID of the function in each port after power-on.
    :ivar interface_id: its ``compat_id``, as UUID; '' shows none.
    :ivar reconfigurable: whether it has the partial reconfiguration feature.
    """

    functions: tuple[str, ...]
    interface_id: str = ""
    reconfigurable: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeSpec:
    """An NVMe controller; the names are those of the Base Specification.

    :ivar namespaces: the NSIDs attached to it.
    :ivar unattached: the NSIDs of further namespaces of the subsystem.
    :ivar private: the namespaces of each VF, by the number of the VF, from 1.
    :ivar shared: the NSIDs that are attached to another controller as well.
    :ivar others: CNTLIDs of further controllers of the subsystem.
    :ivar serial: SN, 20 characters of ASCII at most; '': that of its class device.
        A drive keeps its data under it, also at another address.
    :ivar unvmcap: the capacity that no namespace has, in bytes.
    :ivar vq_flexible: the flexible queue resources, which VFs have to be given; 0: a VF
        has resources of its own. So too ``vi_flexible``, of interrupts.
    :ivar is_greedy: the primary controller has all of them at first.
    :ivar refusal: the status with which Format NVM and Sanitize end; 0: they succeed.
    :ivar dlfeat: 0: unknown contents of deallocated blocks; 1: zeroes; 2: ones.
    """

    namespaces: tuple[int, ...] = (1,)
    unattached: tuple[int, ...] = ()
    private: tuple[tuple[int, ...], ...] = ()
    shared: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    oacs: int = FORMATS
    fna: int = 0b100
    sanicap: int = 0
    cmic: int = 0
    oncs: int = 1 << 2
    unvmcap: int = 0
    vq_flexible: int = 0
    vi_flexible: int = 0
    is_greedy: bool = False
    dlfeat: int = 1
    serial: str = ""
    refusal: int = 0
