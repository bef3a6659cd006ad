# SPDX-License-Identifier: Apache-2.0

"""The arguments of each privileged entry point, and its permitted writes.

They are stated once more, apart from the code, so that the two can be compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from os_acc.privsep import (
    binding,
    claims,
    fpga,
    holders,
    mdev,
    privileged_conf,
    qat,
    sriov,
    xrt,
)
from os_acc.privsep.nvme import vf_resources
from tests.random_values import RandomValues
from tests.stress import privileged_health, privileged_qat, privileged_steps
from tests.stress.argument_forms import (
    DIGITS,
    are_targets,
    is_call,
    is_digest,
    is_driver,
    is_identity,
    is_list,
    is_number,
    is_place,
    is_row,
    is_signature,
    is_sysfs_name,
    is_text,
    is_uuid,
)
from tests.stress.privileged_host import Arguments, Card, EntryPoint, Host, Writes

_DEVICES = "sys/bus/pci/devices"
_VFIO = "vfio-pci"
_VARIANTS = ("xe-vfio-pci", "mlx5_vfio_pci", "acme_vfio_pci")
_OF_HOSTS = ("nvidia", "nouveau", "vfiopci")
_LEASE = "77777777-7777-4777-8777-777777777777"
_SLOT_OWNERS = ((), ("",), ("acme",), ("acme", "", True))
_SERIALS = ("", "S64HNE0R500001", "00-0a-35.1+128")
_SIGNATURES = (("",) * 4, ("c2ln", "SHA-256", "DSA", "x"))


def _as_said(card: Card, identity: Any, group: object) -> bool:
    same = tuple(identity) == card.identity and group == card.group
    return same and not card.is_bridge


def _bind(card: Card, *overrides: str) -> Writes:
    place = f"{_DEVICES}/{card.name}"
    return frozenset(
        {
            *((f"{place}/driver_override", text or "\n") for text in overrides),
            (f"{place}/driver/unbind", card.name),
            ("sys/bus/pci/drivers_probe", card.name),
        }
    )


def _taking(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    if not _as_said(card, target[1], arguments[0]):
        return frozenset()
    driver = target[2] if target[2:] else _VFIO
    # A function may stay on another driver, and is never bound to it.
    return frozenset() if driver in _OF_HOSTS else _bind(card, driver or _VFIO)


def _giving_back(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    if not _as_said(card, target[1], arguments[0]):
        return frozenset()
    reset = (f"{_DEVICES}/{card.name}/reset", "1")
    return _bind(card, target[2], target[3]) | {reset}


def _making_vfs(card: Card, target: Arguments, arguments: Arguments) -> Writes:
    if tuple(target[1]) != card.identity:
        return frozenset()
    place = f"{_DEVICES}/{card.name}"
    return frozenset(
        {
            (f"{place}/sriov_drivers_autoprobe", "0"),
            (f"{place}/sriov_drivers_autoprobe", "1"),
            (f"{place}/sriov_numvfs", str(arguments[2])),
        }
    )


def _nothing(_card: Card, _target: Arguments, _arguments: Arguments) -> Writes:
    """Permit no write: dfl-pci has none of the cards in these tests."""
    return frozenset()


def _some(rng: RandomValues, host: Host) -> Card:
    card = rng.pick(list(host.cards.values()))
    if rng.happens(0.1):
        return dataclasses.replace(card, place=(0, 0, rng.pick(range(32)), 7))
    return card


def _group(rng: RandomValues, host: Host) -> list[Card]:
    card = _some(rng, host)
    others = [each for each in host.cards.values() if each.group == card.group]
    return others if card in others and rng.happens(0.5) else [card]


def _patience(rng: RandomValues) -> int:
    return rng.pick((120_000, 600_000))


def _take(rng: RandomValues, host: Host) -> Arguments:
    cards = _group(rng, host)
    # Either form of a target is accepted.
    drivers = ("", _VFIO, *_VARIANTS, *_OF_HOSTS)
    name = rng.pick(drivers)
    names = rng.pick(((), (name,), (name, "", rng.pick(_SERIALS))))
    targets = tuple((card.place, card.identity, *names) for card in cards)
    return *_of_group(rng, cards[0], targets), *_owner(rng)


def _of_group(rng: RandomValues, card: Card, targets: Arguments) -> Arguments:
    epoch = rng.pick((0, 1, 2**62))
    return card.group, targets, epoch, _patience(rng), _lease(rng)


def _debt(rng: RandomValues) -> Arguments:
    """Return the plugins that erase and release the functions; few calls have one."""
    return rng.pick(((), (), (), ("",), ("nvme",), ("", "acme"), ("nvme", "nvme")))


def _owner(rng: RandomValues) -> Arguments:
    """Return what :func:`_debt` does, or with the compute node of the lease."""
    return rng.pick((_debt(rng), ("nvme", "acme", "node2")))


def _is_owner(values: Arguments) -> bool:
    return (
        all(map(is_driver, values[:2]))
        and all(map(is_text, values[2:3]))
        and (len(values) <= 3)
    )


def _is_slot_owner(values: Arguments) -> bool:
    return (
        all(map(is_driver, values[:1]))
        and all(map(is_text, values[1:2]))
        and all(type(value) is bool for value in values[2:])
        and (len(values) <= 3)
    )


def _lease(rng: RandomValues) -> str:
    return rng.pick((_LEASE, "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"))


def _give_back(rng: RandomValues, host: Host) -> Arguments:
    names = ("", "nouveau", "nvme", "i6300ESB timer", _VFIO)
    serial = rng.pick(((), (rng.pick(_SERIALS),)))
    cards = _group(rng, host)
    targets = tuple(
        (card.place, card.identity, rng.pick(names), rng.pick(names), *serial)
        for card in cards
    )
    epoch, proven = rng.pick((0, 1, 2**62)), rng.happens(0.5)
    call = (cards[0].group, targets, epoch, _patience(rng), proven, _lease(rng))
    return *call, *_debt(rng)


def _reserve(rng: RandomValues, host: Host) -> Arguments:
    cards = _group(rng, host)
    serial = rng.pick(((), ("", "", rng.pick(_SERIALS))))
    targets = tuple((card.place, card.identity, *serial) for card in cards)
    use, before = rng.pick(("guest", "host")), rng.pick(("", "unreadable", _LEASE))
    return *_of_group(rng, cards[0], targets), use, before, *_owner(rng)


def _forget(rng: RandomValues, host: Host) -> Arguments:
    places = tuple(card.place for card in _group(rng, host))
    return places, rng.pick((0, 1, 2**62)), _patience(rng), _lease(rng)


def _set_num_vfs(rng: RandomValues, host: Host) -> Arguments:
    card, count = _some(rng, host), rng.pick((0, 1, 4, 0xFFFF))
    return card.place, card.identity, count, 1, _patience(rng)


def _program(rng: RandomValues, host: Host) -> Arguments:
    card = _some(rng, host)
    algorithm = rng.pick(tuple(DIGITS))
    return (
        *(card.place, card.identity, rng.pick((0, 1, 7))),
        "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d",
        (algorithm, "0a" * (DIGITS[algorithm] // 2)),
        *(rng.pick((0, 2**30)), rng.pick((1, 2**30))),
        *(
            1,
            _patience(rng),
            rng.pick(_SIGNATURES),
        ),
    )


def _load(rng: RandomValues, host: Host) -> Arguments:
    place, identity, _number, *rest = _program(rng, host)
    return (place, identity, (place[3] + 1) % 8, *rest)


def _set_ports(rng: RandomValues, host: Host) -> Arguments:
    card = _some(rng, host)
    return card.place, card.identity, rng.pick((0, 1, 7)), 1, _patience(rng)


def _holders(rng: RandomValues, host: Host) -> Arguments:
    return (tuple(card.place for card in _group(rng, host)),)


def _mdev(rng: RandomValues, host: Host) -> Arguments:
    parent, kind = rng.pick(("mtty", _some(rng, host).name)), rng.pick(("a", "n-5"))
    return (parent, kind, rng.pick((0, 7))), _LEASE, 1, _patience(rng)


def _is_mdev(slot: object, uuid: object, *rest: object) -> bool:
    if not is_row(slot, 3):
        return False
    parent, type_name, number = slot
    names = is_sysfs_name(parent) and is_sysfs_name(type_name)
    is_slot = names and is_number(number, 0, 10**9 - 1)
    return is_slot and is_uuid(uuid) and is_call(0, *rest)


def _is_image(
    parts: object,
    identity: object,
    number: object,
    interface: object,
    digest: object,
    offset: object,
    size: object,
    *rest: object,
) -> bool:
    return (
        is_place(parts)
        and is_identity(identity)
        and is_number(number, 0, 7)
        and is_uuid(interface)
        and is_digest(digest)
        and is_number(offset, 0, 2**30)
        and is_number(size, 1, 2**30)
        and is_call(0, *rest[:2])
        and is_signature(rest[2])
    )


TAKE = EntryPoint(
    binding.take,
    _take,
    lambda group, targets, epoch, milliseconds, lease, *debt: (
        is_call(group, epoch, milliseconds)
        and are_targets(targets, 0, 1, 3)
        and is_uuid(lease)
        and _is_owner(debt)
    ),
    lambda arguments: list(arguments[1]),
    _taking,
)
GIVE_BACK = EntryPoint(
    binding.give_back,
    _give_back,
    lambda group, targets, epoch, milliseconds, proven_free, lease, *debt: (
        is_call(group, epoch, milliseconds)
        and are_targets(targets, 2, 3)
        and type(proven_free) is bool
        and is_uuid(lease)
        and all(map(is_driver, debt))
        and len(debt) <= 2
    ),
    lambda arguments: list(arguments[1]),
    _giving_back,
)
_SEVERAL = {"take": TAKE, "give_back": GIVE_BACK}


def _are_several(name: object, calls: object) -> bool:
    return (
        type(name) is str
        and name in _SEVERAL
        and is_list(calls)
        and all(
            isinstance(each, tuple | list)
            and _SEVERAL[name].fits(tuple(each))
            and _SEVERAL[name].takes(*each)
            for each in calls
        )
    )


def _several(rng: RandomValues, host: Host) -> Arguments:
    name = rng.pick(tuple(_SEVERAL))
    count = rng.pick((1, 2, 3))
    return name, tuple(_SEVERAL[name].invent(rng, host) for _ in range(count))


class _Several(EntryPoint):
    """An entry point whose calls are each refused or allowed alone."""

    def locked(self, host: Host, arguments: Arguments) -> list[Card]:
        if not self.takes(*arguments):
            return []
        name, calls = arguments
        return [card for each in calls for card in _SEVERAL[name].locked(host, each)]

    def permitted(self, host: Host, arguments: Arguments) -> Writes:
        if not self.takes(*arguments):
            return frozenset()
        name, calls = arguments
        return frozenset().union(*(_SEVERAL[name].permitted(host, c) for c in calls))


SEVERAL = _Several(
    binding.several,
    _several,
    _are_several,
    lambda arguments: [
        target for each in arguments[1] for target in _SEVERAL[arguments[0]].named(each)
    ],
    _nothing,
)
RESERVE = EntryPoint(
    claims.reserve,
    _reserve,
    lambda group, targets, epoch, milliseconds, lease, use, instead_of, *debt: (
        is_call(group, epoch, milliseconds)
        and are_targets(targets, 0, 3)
        and is_uuid(lease)
        and type(use) is str
        and use in ("guest", "host")
        and type(instead_of) is str
        and (instead_of in ("", "unreadable") or is_uuid(instead_of))
        and _is_owner(debt)
    ),
    lambda arguments: list(arguments[1]),
    _nothing,
)
FORGET = EntryPoint(
    claims.forget,
    _forget,
    lambda places, epoch, milliseconds, lease: (
        is_list(places)
        and all(map(is_place, places))
        and len(set(map(tuple, places))) == len(places)
        and is_call(0, epoch, milliseconds)
        and is_uuid(lease)
    ),
    lambda arguments: [(place,) for place in arguments[0]],
    _nothing,
    skips_missing=True,
)
CLAIMED = EntryPoint(
    claims.claimed, lambda *_: (), lambda: True, lambda _all: [], lambda *_: frozenset()
)
STANDING = dataclasses.replace(CLAIMED, call=privileged_conf.limits)
SET_NUM_VFS = EntryPoint(
    sriov.set_num_vfs,
    _set_num_vfs,
    lambda parts, identity, count, epoch, milliseconds: (
        is_place(parts)
        and is_identity(identity)
        and is_number(count, 1, 0xFFFF)
        and is_call(0, epoch, milliseconds)
    ),
    lambda arguments: [arguments[:2]],
    _making_vfs,
)
# No drive of these tests has flexible resources.
SHARE_NVME_RESOURCES = dataclasses.replace(
    SET_NUM_VFS, call=vf_resources.share_resources, writes=_nothing
)
SET_QAT_SERVICES = EntryPoint(
    qat.set_qat_services,
    lambda rng, host: privileged_qat.arguments(rng, _some(rng, host), _patience(rng)),
    lambda parts, identity, services, epoch, milliseconds: (
        is_place(parts)
        and is_identity(identity)
        and privileged_qat.are_services(services)
        and is_call(0, epoch, milliseconds)
    ),
    lambda arguments: [arguments[:2]],
    privileged_qat.permitted,
)
HOLDERS = EntryPoint(
    holders.holders,
    _holders,
    lambda all_parts: is_list(all_parts) and all(map(is_place, all_parts)),
    lambda arguments: [(place,) for place in arguments[0]],
    _nothing,
    locks=False,
)
PROGRAM = EntryPoint(
    fpga.program,
    _program,
    _is_image,
    lambda arguments: [arguments[:2]],
    _nothing,
)
SET_PORTS = EntryPoint(
    fpga.set_ports,
    _set_ports,
    lambda parts, identity, count, epoch, milliseconds: (
        is_place(parts)
        and is_identity(identity)
        and is_number(count, 0, 7)
        and is_call(0, epoch, milliseconds)
    ),
    lambda arguments: [arguments[:2]],
    _nothing,
)
LOAD = EntryPoint(
    xrt.program,
    _load,
    lambda *call: _is_image(*call) and call[2] != call[0][3],
    lambda arguments: [arguments[:2]],
    _nothing,
)
CREATE_MDEV = EntryPoint(
    mdev.create,
    lambda rng, host: (*_mdev(rng, host), *rng.pick(_SLOT_OWNERS)),
    lambda *call: _is_mdev(*call[:4]) and _is_slot_owner(call[4:]),
    lambda _all: [],
    _nothing,
)
REPAIR_MDEV = dataclasses.replace(CREATE_MDEV, call=mdev.repair_record)
REMOVE_MDEV = EntryPoint(
    mdev.remove,
    lambda rng, host: (*_mdev(rng, host), *rng.pick(((), (True,), (False,)))),
    lambda *call: _is_mdev(*call[:4]) and (len(call) < 5 or type(call[4]) is bool),
    lambda _all: [],
    _nothing,
)
MDEV_HOLDERS = EntryPoint(
    holders.mdev_holders, lambda *_: (_LEASE,), is_uuid, lambda _all: [], _nothing
)
_HEALTH = privileged_health.rows(EntryPoint, _some, _patience)
#: Entry points that answer for one function, and not for each.
SINGLE = (
    *(
        SET_NUM_VFS,
        SHARE_NVME_RESOURCES,
        SET_QAT_SERVICES,
        PROGRAM,
        SET_PORTS,
        LOAD,
    ),
    *(CREATE_MDEV, REPAIR_MDEV, REMOVE_MDEV),
    *(*_HEALTH.values(), *privileged_steps.ALL.values()),
)
#: Entry points that return the holders of a device.
HOLDING = (HOLDERS, MDEV_HOLDERS)
OWN: Mapping[str, EntryPoint] = {
    "binding.take": TAKE,
    "binding.give_back": GIVE_BACK,
    "binding.several": SEVERAL,
    "claims.reserve": RESERVE,
    "claims.forget": FORGET,
    "claims.claimed": CLAIMED,
    "privileged_conf.limits": STANDING,
    "sriov.set_num_vfs": SET_NUM_VFS,
    "nvme.vf_resources.share_resources": SHARE_NVME_RESOURCES,
    "qat.set_qat_services": SET_QAT_SERVICES,
    "mdev.create": CREATE_MDEV,
    "mdev.repair_record": REPAIR_MDEV,
    "mdev.remove": REMOVE_MDEV,
    "holders.holders": HOLDERS,
    "holders.mdev_holders": MDEV_HOLDERS,
    "fpga.program": PROGRAM,
    "fpga.set_ports": SET_PORTS,
    "xrt.program": LOAD,
    **_HEALTH,
    **privileged_steps.OWN,
}
#: Those of a vendor as well.
ALL: Mapping[str, EntryPoint] = {**OWN, **privileged_steps.VENDOR}
