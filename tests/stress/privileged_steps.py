# SPDX-License-Identifier: Apache-2.0

"""The arguments and the permitted writes of privileged steps, ours and a vendor's.

Our steps are made as a vendor's are (``os_acc.privsep.vendor_steps``), so that all have
the same arguments before their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from os_acc.objects.pci import PciAddress
from os_acc.privsep import Step, kernel, record, vgpu
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.nvme import steps as nvme
from tests.random_values import RandomValues
from tests.stress.argument_forms import (
    are_functions,
    are_targets,
    is_call,
    is_driver,
    is_number,
    is_place,
    is_row,
    is_sysfs_name,
    is_uuid,
)
from tests.stress.privileged_host import Arguments, Card, EntryPoint, Host, Writes
from tests.unit import vendor_steps

_DEVICES = "sys/bus/pci/devices"
_LEASE = "77777777-7777-4777-8777-777777777777"
_METHODS = ("format", "format-crypto", "sanitize-block", "deallocate", "degauss")
_NO_WRITES: Writes = frozenset()

#: Returns whether a value has the type of a parameter.
Form = Callable[[Any], bool]


def _is_integer(value: object) -> bool:
    return is_number(value, -(2**63), 2**64 - 1)


def _is_text(value: object) -> bool:
    # The channel carries Unicode alone.
    return type(value) is str and value.encode("utf-8", "replace").decode() == value


def _is_row_of(form: Form) -> Form:
    return lambda value: type(value) is tuple and all(map(form, value))


def _is_none_or(form: Form) -> Form:
    return lambda value: value is None or form(value)


def _is_bytes(value: object) -> bool:
    return type(value) is bytes


def _is_pair(value: Any) -> bool:
    return (
        type(value) is tuple
        and len(value) == 2
        and _is_text(value[0])
        and type(value[1]) is bool
    )


def _invent(
    values: Callable[[RandomValues], Arguments],
) -> Callable[[RandomValues, Host], Arguments]:
    def invent(rng: RandomValues, host: Host) -> Arguments:
        cards = list(host.cards.values())
        if values is _methods and rng.happens(0.5):
            # The step does nothing with other functions.
            cards = [each for each in cards if each.is_nvme]
        card = rng.pick(cards)
        group = [each for each in host.cards.values() if each.group == card.group]
        members = tuple(
            (each.place, each.identity, *rng.pick(((), ("", "", "S64HNE0R500001"))))
            for each in (group if rng.happens(0.5) else [card])
        )
        device: Arguments = card.place
        if rng.happens(0.1):
            device, members = ("mtty", "mtty-2", rng.pick((0, 7))), ()
        other = rng.pick(list(host.cards.values()))
        programs = ((other.place, other.identity),) if rng.happens(0.1) else ()
        epoch, patience = rng.pick((0, 1, 2**62)), rng.pick((120_000, 600_000))
        call = (device, members, programs, epoch, patience, _LEASE, values(rng))
        return *call, *rng.pick(((), (), ("prepare", "acme"), ("return", "")))

    return invent


def _takes(*forms: Form) -> Callable[..., bool]:
    """Return a check of the arguments of a step with these parameters."""

    def check(
        device: Any,
        members: Any,
        cards: Any,
        epoch: object,
        milliseconds: object,
        lease: object,
        values: Any,
        purpose: object = "other",
        releaser: object = "",
    ) -> bool:
        return (
            _are_members(device, members)
            and (_is_empty(cards) or (are_functions(cards) and len(cards) == 1))
            and is_call(0, epoch, milliseconds)
            and is_uuid(lease)
            and type(values) is tuple
            and len(values) == len(forms)
            and all(form(value) for form, value in zip(forms, values, strict=True))
            and type(purpose) is str
            and purpose in ("prepare", "return", "other")
            and is_driver(releaser)
        )

    return check


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.I)


def _are_members(device: Any, members: Any) -> bool:
    """Return whether the functions are those of a function's lease, or of a slot's."""
    if is_place(device):
        is_among = are_targets(members, 0, 3)
        return is_among and any(tuple(each[0]) == tuple(device) for each in members)
    is_slot = is_row(device, 3) and is_number(device[2], 0, 10**9 - 1)
    if not is_slot or not all(map(is_sysfs_name, device[:2])):
        return False
    # A parent that is a PCI function would be a member.
    return _ADDRESS.fullmatch(device[0]) is None and _is_empty(members)


def _is_empty(value: object) -> bool:
    return isinstance(value, tuple | list) and not value


def _named(arguments: Arguments) -> list[Arguments]:
    return [*arguments[1], *arguments[2]]


def _is_member(card: Card, target: Arguments, arguments: Arguments) -> bool:
    """Return whether a present function is one of the lease, as it is expected."""
    same = tuple(target[1]) == card.identity
    return same and any(tuple(each[0]) == card.place for each in arguments[1])


def _setting_the_node(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    if not _is_member(card, target, arguments):
        return _NO_WRITES
    return frozenset({(f"{_DEVICES}/{card.name}/numa_node", str(arguments[6][0]))})


def _setting_the_type(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    if not _is_member(card, target, arguments) or arguments[6][0] <= 0:
        return _NO_WRITES
    attribute = f"{_DEVICES}/{card.name}/nvidia/current_vgpu_type"
    return frozenset({(attribute, str(arguments[6][0]))})


def _binding_nvme(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    """Return the writes that bind an NVMe function to its driver, and undo that."""
    if not card.is_nvme or not _is_member(card, target, arguments):
        return _NO_WRITES
    override = f"{_DEVICES}/{card.name}/driver_override"
    return frozenset(
        {
            *((override, text) for text in ("nvme", card.driver, "\n")),
            (f"sys/bus/pci/drivers/{card.driver}/unbind", card.name),
            ("sys/bus/pci/drivers_probe", card.name),
        }
    )


def _record_for_erasure(cards: list[Card], arguments: Arguments) -> None:
    """Record the functions for the lease of a call, if it has a method."""
    lease, (methods,) = arguments[5], arguments[6]
    if not methods:
        return
    os.makedirs(kernel.current.path(LOCKS), exist_ok=True)
    for card in cards:
        address, use = PciAddress(*card.place), record.FunctionUse.HOST
        record.write(
            record.DeviceRecord(lease, address, card.identity, "", "", use, "nvme")
        )


def _nothing(_card: Card, _target: Arguments, _arguments: Arguments) -> Writes:
    return _NO_WRITES


def _methods(rng: RandomValues) -> Arguments:
    return (tuple(rng.pick(_METHODS) for _ in range(rng.random.randrange(3))),)


def _values_of_each_type(rng: RandomValues) -> Arguments:
    number = rng.pick((0, -(2**63), 2**64 - 1))
    return (
        number,
        rng.pick(("", "ä")),
        b"\xff",
        (1, 2),
        ("x", True),
        rng.pick((None, 1)),
    )


def _row(
    step: Step[Any, *tuple[Any, ...]],
    values: Callable[[RandomValues], Arguments],
    forms: tuple[Form, ...],
    writes: Callable[[Card, Arguments, Arguments], Writes] = _nothing,
    before: Callable[[list[Card], Arguments], None] | None = None,
) -> EntryPoint:
    return EntryPoint(
        *(step.entry, _invent(values), _takes(*forms), _named, writes), before=before
    )


_ARE_METHODS = _is_row_of(_is_text)
OWN: Mapping[str, EntryPoint] = {
    "vgpu.create_vgpu": _row(
        vgpu.create_vgpu,
        lambda rng: (rng.pick((1154, 1, 0)),),
        (_is_integer,),
        _setting_the_type,
    ),
    # The library alone makes the mark without which nothing is deleted.
    "vgpu.delete_vgpu": _row(vgpu.delete_vgpu, lambda _rng: (), ()),
    "nvme.steps.prepare": _row(nvme.prepare, _methods, (_ARE_METHODS,), _binding_nvme),
    "nvme.steps.release": _row(nvme.release, lambda _rng: (), ()),
    # Nothing is erased without the helper's own record of the lease.
    "nvme.steps.erase": _row(
        *(nvme.erase, _methods, (_ARE_METHODS,), _binding_nvme, _record_for_erasure)
    ),
}
#: The steps of a vendor: one that writes, one that takes the lock of its parent, and
#: one with a parameter of each type.
VENDOR: Mapping[str, EntryPoint] = {
    "vendor set_node": _row(
        vendor_steps.set_node,
        lambda rng: (rng.pick((0, 1, -1)),),
        (_is_integer,),
        _setting_the_node,
    ),
    "vendor describe_parent": _row(vendor_steps.describe_parent, lambda _rng: (), ()),
    "vendor echo": _row(
        vendor_steps.echo,
        _values_of_each_type,
        (
            *(_is_integer, _is_text, _is_bytes, _is_row_of(_is_integer)),
            *(_is_pair, _is_none_or(_is_integer)),
        ),
    ),
}
ALL: Mapping[str, EntryPoint] = {**OWN, **VENDOR}
