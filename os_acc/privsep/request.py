# SPDX-License-Identifier: Apache-2.0

"""Requests: the arguments of privileged calls, as values with checked fields.

The client sends the fields in their order, as plain values. The helper trusts none of
them: each field is checked, and converted, by the function in its annotation.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, TypeGuard, TypeVar

from os_acc import exception, privsep
from os_acc.objects import drivers, epoch
from os_acc.objects.bitstream import Digest
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.objects.pci import PciAddress
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome

#: The longest time limit of a call that the helper accepts, in milliseconds.
DEADLINE_LIMIT_MS = 600_000
# As long as the name of a provider in Placement.
_LONGEST_TEXT = 200
# A message of oslo.privsep has room for millions of parts.
_MOST_PARTS = 1024
# The channel carries most values of a request as they are.
_AS_THEY_ARE = frozenset({str, int, bool})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_E = TypeVar("_E", bound=enum.StrEnum)
_R = TypeVar("_R", bound="Request")
_T = TypeVar("_T")


class Malformed(Exception):
    """A field of a request has a value that no client of this version sends."""


class BindTarget(NamedTuple):
    """One function of a request, with its expected identity.

    :ivar driver: the driver to bind or to restore; '' for none, or vfio-pci.
    :ivar override: the ``driver_override`` to restore.
    :ivar serial: as the caller knows it (:func:`.pci_functions.serial`); '' if unknown.
    """

    address: PciAddress
    identity: tuple[int, ...]
    driver: str = ""
    override: str = ""
    serial: str = ""


def require(condition: bool) -> None:
    """Raise Malformed unless a condition of a request holds."""
    if not condition:
        raise Malformed


def that(check: Callable[[Any], bool]) -> Callable[[_T], _T]:
    """Return a check that leaves the value as it is."""

    def checked(value: _T) -> _T:
        if not check(value):
            raise Malformed
        return value

    return checked


def is_identity(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Return whether a value is a PCI identity, as five numbers."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 5
        and set(map(type, value)) == {int}
        and 0 <= min(value) <= max(value) <= 0xFFFF
    )


def is_driver_name(value: object) -> bool:
    """Return whether a value names a PCI driver, or a plugin; '' stands for none."""
    return (type(value) is str and value == "") or drivers.is_driver_name(value)


def is_uuid(value: object) -> TypeGuard[str]:
    """Return whether a value is a canonical UUID."""
    return type(value) is str and _UUID.fullmatch(value) is not None


def is_text(value: object) -> bool:
    """Return whether a value is the name of a compute node, a serial number, or ''."""
    return type(value) is str and len(value) <= _LONGEST_TEXT and value.isprintable()


def number(limit: int, least: int = 0) -> Callable[[int], int]:
    """Return the check of an integer, which is no bool."""
    return that(lambda value: type(value) is int and least <= value <= limit)


def of_kind(kind: type[_E]) -> Callable[[object], _E]:
    """Return the check of the value of an enumeration."""

    def checked(value: Any) -> _E:
        require(type(value) in (str, kind) and value in set(kind))
        return kind(value)

    return checked


def each(check: Callable[[Any], _T]) -> Callable[[object], tuple[_T, ...]]:
    """Return the check of a sequence, by that of its members."""

    def checked(values: object) -> tuple[_T, ...]:
        return tuple(map(check, _sequence(values)))

    return checked


def _sequence(value: object, *lengths: int) -> Sequence[Any]:
    if not isinstance(value, tuple | list) or (lengths and len(value) not in lengths):
        raise Malformed
    require(len(value) <= _MOST_PARTS)
    return value


def values(parts: object) -> Values:
    """Return the values of a call, still unchecked."""
    return tuple(_sequence(parts))


def _address(parts: object) -> PciAddress:
    # A subclass of int may format itself as any text, and becomes a path.
    numbers = _sequence(parts, 4)
    require(set(map(type, numbers)) == {int})
    return PciAddress(*numbers)


_slot_number = number(10**9 - 1)


def _slot(parts: object) -> MdevSlot:
    parent, type_name, count = _sequence(parts, 3)
    return MdevSlot(MdevType(parent, type_name), _slot_number(count))


def _device(parts: object) -> PciAddress | MdevSlot:
    return _slot(parts) if len(_sequence(parts)) == 3 else _address(parts)


def _identity(numbers: object) -> tuple[int, ...]:
    if not is_identity(numbers):
        raise Malformed
    return tuple(numbers)


def _target(parts: object, *counts: int) -> BindTarget:
    address, identity, *names = _sequence(parts, *counts)
    require(all(map(is_driver_name, names[:2])))
    require(all(map(is_text, names[2:])))
    return BindTarget(_address(address), _identity(identity), *names)


def identified(parts: object) -> BindTarget:
    """Parse a function for which the call takes no names."""
    found = _target(parts, 2, 5)
    require(found == BindTarget(found.address, found.identity))
    return found


def targets(*counts: int) -> Callable[[object], tuple[BindTarget, ...]]:
    """Return the check of targets, with these numbers of fields; others are ''."""

    def checked(values: object) -> tuple[BindTarget, ...]:
        found = tuple(_target(each, *counts) for each in _sequence(values))
        # A second lock of the same device would wait for the first.
        require(len({target.address for target in found}) == len(found))
        return found

    return checked


def _functions(values: object) -> tuple[PciAddress, ...]:
    found = each(_address)(values)
    require(bool(found))
    return found


def _digest(algorithm_and_value: object) -> Digest:
    texts = _sequence(algorithm_and_value, 2)
    # A subclass of str may be written differently than it is matched.
    require(all(type(text) is str for text in texts))
    found = Digest.of_file_name("-".join(texts))
    if found is None:
        raise Malformed
    return found


Values: TypeAlias = tuple[object, ...]
Group: TypeAlias = Annotated[int, number(2**31 - 1)]
#: Number of the store's transaction that authorizes the call.
Epoch: TypeAlias = Annotated[int, number(epoch.LIMIT)]
#: The time limit of the call.
Milliseconds: TypeAlias = Annotated[int, number(DEADLINE_LIMIT_MS, least=1)]
Flag: TypeAlias = Annotated[bool, that(lambda value: type(value) is bool)]
Uuid: TypeAlias = Annotated[str, that(is_uuid)]
#: The name of a driver or of a plugin; '' for none.
Name: TypeAlias = Annotated[str, that(is_driver_name)]
#: The name of a compute node, or ''.
Text: TypeAlias = Annotated[str, that(is_text)]
Address: TypeAlias = Annotated[PciAddress, _address]
Addresses: TypeAlias = Annotated[tuple[PciAddress, ...], _functions]
Slot: TypeAlias = Annotated[MdevSlot, _slot]
Device: TypeAlias = Annotated[PciAddress | MdevSlot, _device]
Identity: TypeAlias = Annotated[tuple[int, ...], _identity]
#: A function with its identity.
Target: TypeAlias = Annotated[BindTarget, identified]
#: Functions with their serial numbers, if known.
Targets: TypeAlias = Annotated[tuple[BindTarget, ...], targets(2, 5)]
ImageDigest: TypeAlias = Annotated[Digest, _digest]


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a call; subclasses have the fields."""

    @classmethod
    def parse(cls, values: Sequence[object]) -> Self:
        """Return the request of the values that a client has sent.

        :raises Malformed: a value is invalid.
        :raises TypeError: their number is that of another version.
        """
        new: Any = cls
        given, checks = new(*values), _checks(new).items()
        try:
            found: Self = new(
                **{name: check(getattr(given, name)) for name, check in checks}
            )
        except exception.InvalidInput as error:
            raise Malformed from error
        found.validate()
        return found

    def validate(self) -> None:
        """Check the fields together, after each alone; raise Malformed."""

    def values(self) -> tuple[object, ...]:
        """Return the fields as plain values, which the channel carries."""
        fields = dataclasses.fields(self)
        return _sent([getattr(self, each.name) for each in fields])


@functools.cache
def _checks(request: type[Request]) -> Mapping[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(request, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def _sent(values: Iterable[object]) -> tuple[object, ...]:
    return tuple([e if type(e) in _AS_THEY_ARE else _plain(e) for e in values])


def _plain(value: object) -> object:
    match value:
        case PciAddress() | MdevSlot():
            return value.parts
        case Digest():
            return value.algorithm, value.value
        case enum.Enum():
            return value.value
        case tuple():
            return _sent(value)
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class CardRequest(Request):
    """A number for a card: of its VFs, of its ports, or for its services."""

    card: Address
    identity: Identity
    count: Annotated[int, number(0xFFFF)]
    epoch: Epoch
    milliseconds: Milliseconds


@dataclasses.dataclass(frozen=True, slots=True)
class GroupRequest(Request):
    """Functions of one IOMMU group."""

    group: Group
    targets: Targets
    epoch: Epoch
    milliseconds: Milliseconds

    def validate(self) -> None:
        """Check that there is a function."""
        require(bool(self.targets))

    @property
    def addresses(self) -> tuple[PciAddress, ...]:
        """The functions of the call."""
        return tuple(target.address for target in self.targets)


def entrypoint(
    context: privsep.Context, request: type[_R], *, for_each: bool = False
) -> Callable[[Callable[[_R], Any]], Callable[..., Any]]:
    """Return a decorator: call a function with the request of the values sent.

    Malformed values and a refusal are answered for it.

    :param for_each: whether it returns an answer for each device, in a tuple.
    """

    def decorate(function: Callable[[_R], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def serve(*values: object) -> Any:
            try:
                return function(request.parse(values))
            except Malformed:
                answer = CallResult(Outcome.INVALID, errno.EINVAL)
            except CallRefused as refusal:
                answer = refusal.result
            return (answer,) if for_each else answer

        vars(serve)["__signature__"] = inspect.signature(request)
        entry: Callable[..., Any] = context.entrypoint(serve)
        return entry

    return decorate
