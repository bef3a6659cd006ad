# SPDX-License-Identifier: Apache-2.0

"""Privileged steps of vendors' plugins, and their targets.

:meth:`os_acc.privsep.Context.step` makes a step;
:mod:`os_acc.privsep.vendor_steps` runs it as root.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import inspect
import os
import types
import typing
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
)

from os_acc.objects.mdev import DeviceAddress, MdevSlot
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions

if TYPE_CHECKING:
    from os_acc.privsep import Context

#: An argument or a result of a step.
Plain: TypeAlias = "bool | int | str | bytes | tuple[Plain, ...] | None"
#: The result of a health step: the fault, '' while healthy, and named readings.
HealthReading: TypeAlias = tuple[str, tuple[tuple[str, int], ...]]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_UNIONS: Final = (typing.Union, types.UnionType)
_SCALARS: Final = frozenset({bool, str, bytes, type(None)})
# msgpack has no larger numbers.
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
#: The levels of nested tuples.
_DEEPEST: Final = 8


class StepPurpose(enum.StrEnum):
    """The call of a plugin in which a step runs."""

    #: The step prepares the device for a guest: root's configuration has to name it.
    PREPARE = "prepare"
    #: The step releases or erases the device: the helper's record of the device for
    #: the lease is enough.
    RETURN = "return"
    #: Root's configuration has to name the device; nothing is recorded.
    OTHER = "other"


@dataclasses.dataclass(frozen=True, slots=True)
class StepTarget:
    """The device of a privileged step, locked while the step runs.

    The functions exist, and are the ones that the caller expects. After the step the
    library checks this again.

    :ivar lease: UUID of the lease; '' in a health step.
    :ivar address: the function attached to the guest, or the slot of its mediated
        device.
    :ivar functions: all functions that the lease takes from the host, sorted; of a
        mediated device, its parent if that is a PCI function. A parent is not locked:
        its other mediated devices have leases of their own; see :attr:`parent`.
    :ivar card: the function that programs the region in ``PluginBase.program``, locked
        as well; None in other calls.
    """

    lease: str
    address: DeviceAddress
    functions: tuple[PciAddress, ...]
    card: PciAddress | None = None

    @property
    def root(self) -> str:
        """The directory with ``sys``, ``proc`` and ``dev``; ``/`` except in tests."""
        return kernel.current.root

    @property
    def parent(self) -> PciAddress | None:
        """The PF of a VF, or the function itself; None: the parent is virtual.

        For a mediated device, that of its parent. Only a step that
        :meth:`os_acc.privsep.Context.parent_step` has made may change it.
        """
        slot = self.address
        function = slot.type.function if isinstance(slot, MdevSlot) else slot
        return None if function is None else parent_of(function)

    @property
    def siblings(self) -> tuple[PciAddress, ...]:
        """The existing VFs of :attr:`parent`, sorted, with its own function."""
        return () if self.parent is None else tuple(pci_functions.vfs(self.parent))

    def directory(self, function: PciAddress) -> str:
        """Return the directory of a function in sysfs."""
        return pci_functions.directory(function)

    def read(self, function: PciAddress, attribute: str) -> str:
        """Return the text of an attribute of a function, without white space around it.

        :param attribute: relative to the directory of the function.
        :raises OSError: the kernel refused it.
        """
        return pci_functions.read(function, attribute)

    def write(self, function: PciAddress, attribute: str, text: str) -> None:
        """Write an attribute of a function in sysfs, with one ``write(2)``.

        The success of a write proves nothing: read its effect back.

        :raises OSError: the kernel refused it.
        """
        pci_functions.write(function, attribute, text)

    def set(self, function: PciAddress, attribute: str, text: str) -> None:
        """Write an attribute unless it has this value, and read it back.

        :raises OSError: the kernel refused it, or it has another value then (EIO).
        """
        if self.read(function, attribute) == text:
            return
        self.write(function, attribute, text)
        found = self.read(function, attribute)
        if found != text:
            path = os.path.join(self.directory(function), attribute)
            raise OSError(errno.EIO, f"is {found!r} after a write of {text!r}", path)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a step behind its target.

    :ivar kinds: the type of each: a scalar, a tuple, or a union of these.
    """

    kinds: tuple[object, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Return the parameters of a vendor's function.

        :raises TypeError: one cannot be passed by position, or has no plain type.
        """
        hints = typing.get_type_hints(function)
        found = list(inspect.signature(function).parameters.values())
        kinds = tuple(hints.get(each.name) for each in found[1:])
        for each, kind in zip(found[1:], kinds, strict=True):
            if each.kind is not each.POSITIONAL_OR_KEYWORD or not _is_plain_type(kind):
                raise TypeError(
                    f"the parameter {each} of {function.__qualname__} needs a type of "
                    "None, bool, int, str, bytes and tuples of these"
                )
        if not found:
            raise TypeError(f"{function.__qualname__} takes no StepTarget")
        return cls(kinds)

    def accept(self, arguments: object) -> bool:
        """Return whether arguments are plain, and of exactly these types."""
        return (
            isinstance(arguments, tuple)
            and len(arguments) == len(self.kinds)
            and is_plain(arguments)
            and all(map(_is_of, arguments, self.kinds))
        )


def _is_plain_type(kind: object) -> bool:
    if kind in (*_SCALARS, int):
        return True
    parts = [each for each in typing.get_args(kind) if each is not Ellipsis]
    is_container = typing.get_origin(kind) in (tuple, *_UNIONS)
    return is_container and all(map(_is_plain_type, parts))


def _is_of(value: object, kind: object) -> bool:
    parts = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:
        return any(_is_of(value, each) for each in parts)
    if typing.get_origin(kind) is not tuple:
        return type(value) is kind
    if type(value) is not tuple:
        return False
    if parts[1:] == (Ellipsis,):
        return all(_is_of(each, parts[0]) for each in value)
    return len(value) == len(parts) and all(map(_is_of, value, parts))


@dataclasses.dataclass(frozen=True, slots=True)
class Step(Generic[_T, *_Ts]):
    """A privileged step; a plugin passes it to ``steps.run()``.

    :ivar context: the context whose helper runs it.
    :ivar function: the vendor's function, for tests of it without a helper.
    :ivar parameters: those of ``function`` behind the target.
    :ivar entry: the entry point of oslo.privsep.
    :ivar is_health: whether :meth:`os_acc.privsep.Context.health_step` has made it.
    :ivar arguments: of a health step, see :meth:`with_arguments`.
    """

    context: Context
    function: Callable[[StepTarget, *_Ts], _T]
    parameters: Parameters
    entry: Callable[..., Any]
    is_health: bool = False
    arguments: tuple[Plain, ...] = ()

    @property
    def name(self) -> str:
        """The dotted name of the function."""
        return f"{self.function.__module__}.{self.function.__name__}"

    def with_arguments(self, *arguments: *_Ts) -> Step[_T]:
        """Return a health step with the arguments behind its target."""
        plain = typing.cast(tuple[Plain, ...], arguments)
        return typing.cast(Step[_T], dataclasses.replace(self, arguments=plain))

    def __call__(self, *arguments: object) -> Any:
        """Serve a call of the helper's client; :mod:`.steps` checks the arguments."""
        return self.entry(*arguments)


def parent_of(function: PciAddress) -> PciAddress:
    """Return the PF of a VF, otherwise the function itself."""
    return pci_functions.physical_function(function) or function


def is_plain(value: object, depth: int = _DEEPEST) -> bool:
    """Return whether a value may pass between a plugin and its privileged step.

    That is None, a bool, an integer of 64 bits, text, bytes, or a tuple of these.
    Subclasses are excluded: they would arrive as something else.
    """
    if type(value) is tuple:
        return depth > 0 and all(is_plain(each, depth - 1) for each in value)
    if type(value) is int:
        return _LOWEST <= value <= _HIGHEST
    if type(value) is str:
        # The channel and JSON carry Unicode alone.
        return not any("\ud800" <= each <= "\udfff" for each in value)
    return type(value) in _SCALARS
