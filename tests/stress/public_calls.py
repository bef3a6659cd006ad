# SPDX-License-Identifier: Apache-2.0

"""Valid and invalid calls of the public functions."""

from __future__ import annotations

import collections
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import os_acc
from os_acc import requests
from os_acc.testing import TestHost, instance, request, uuid_of
from os_acc.testing.nova import FakeProviderTree
from tests.random_values import RandomValues

Arguments = tuple[Any, ...]

FPGA, GPU, AUDIO = "0000:5e:00.0", "0000:17:00.0", "0000:17:00.1"
CLASS = "CUSTOM_ACCELERATOR_GPU"
NODE = "node1"
#: A device profile that asks for the GPU.
PROFILE = "one"
CREATED = "2026-11-23T14:10:21.000250+00:00"
STRANGER = "99999999-9999-4999-8999-999999999999"
#: The first instance has an FPGA, the second one nothing.
OWNER, OTHER = instance(1), instance(2)
_FAMILIAR = (
    *("uuid", "name", "allocations", "mappings", "resources", "group_policy", "none"),
    *("isolate", "required", "forbidden", "accel:bitstream_id", "os_acc:numa_policy"),
    *(
        "accel1:x",
        f"resources:{CLASS}",
        f"resources1:{CLASS}",
        "trait1:CUSTOM_X",
        CLASS,
    ),
    *("hostname", "device_rp_uuid", "instance_uuid", "resolved", PROFILE, NODE),
    *(uuid_of(1), uuid_of(2), STRANGER, FPGA, "resources_X1:VCPU", "trait:HW_GPU"),
)


class Calls:
    """The arguments for calls about one host.

    :param bench: its first instance has the FPGA.
    """

    def __init__(self, bench: TestHost) -> None:
        self._free = request(bench.provider(GPU))
        self._held = request(bench.provider(FPGA))
        self._uuid = bench.provider(GPU).uuid
        self._invent: Mapping[str, Callable[[RandomValues], Arguments]] = {
            "plug": self._plug,
            "unplug": lambda rng: (_more(rng, OTHER),),
            "rekey": lambda rng: rng.pick(
                ((uuid_of(2), uuid_of(3)), (STRANGER, uuid_of(1)))
            ),
            "requests_accelerators": lambda rng: (self._specs(rng),),
            "attached": lambda rng: rng.pick(((OWNER,), (None,), ())),
            "recorded": lambda rng: rng.pick(((), (None,))),
            "held_seconds": lambda _rng: ({"created_at": CREATED},),
            "owns_any": lambda rng: (
                rng.pick((self._free, self._held))[0]["allocations"],
            ),
            "migration_source": lambda rng: (_more(rng, OWNER),),
            "migration_pairs": lambda rng: (
                rng.pick((OWNER, OTHER)),
                rng.pick((os_acc.migration_source(OWNER), [])),
            ),
            "providers": lambda _rng: (),
            "host_info": lambda _rng: (),
            "update_provider_tree": lambda _rng: (_tree(), NODE),
            "withdraw_providers": lambda _rng: (_tree(), NODE),
            "initialize": lambda rng: rng.pick(((), (False,))),
            "requests.create": lambda rng: rng.pick(((PROFILE,), ("two",))),
            "requests.bind": self._bind,
            "requests.find": lambda rng: rng.pick(
                ((), (uuid_of(1),), (None, "resolved"), (STRANGER, None))
            ),
            "requests.unbind": self._uuids,
            "requests.delete": self._uuids,
            "requests.events": self._uuids,
            "requests.notify": self._uuids,
            "sync_placement": lambda _rng: (),
        }

    @property
    def names(self) -> set[str]:
        """The names of the functions with arguments here."""
        return set(self._invent)

    def arguments(self, name: str, seed: str, number: int) -> Arguments:
        """Return the arguments of one call; few calls have only valid ones."""
        rng = RandomValues(f"{seed} {name} {number}", _FAMILIAR)
        right = self._invent[name](rng)
        draw = rng.random.random()
        if not right or draw < 0.03:
            return right if draw < 0.5 else (rng.value(),)
        if draw < 0.2:
            return tuple(rng.value() for _ in right)
        for _ in range(1 + rng.random.randrange(3)):
            at = rng.random.randrange(len(right))
            right = (*right[:at], rng.near(right[at]), *right[at + 1 :])
        return right

    def _bind(self, rng: RandomValues) -> Arguments:
        binding = {
            "hostname": NODE,
            "device_rp_uuid": self._uuid,
            "instance_uuid": uuid_of(2),
        }
        return ({rng.pick((*_made(), STRANGER)): binding},)

    def _uuids(self, rng: RandomValues) -> Arguments:
        return ([rng.pick((*_made(), STRANGER))],)

    def _plug(self, rng: RandomValues) -> Arguments:
        selected, specs = rng.pick((self._free, self._held))
        if rng.happens(0.3):
            selected = {"uuid": rng.pick((self._uuid, STRANGER))}
        info = _more(rng, rng.pick((OWNER, OTHER)))
        draw = rng.random.random()
        if draw < 0.1:
            return (info,)
        if draw < 0.2:
            return info, None, specs
        return info, selected, self._specs(rng) if draw < 0.4 else specs

    def _specs(self, rng: RandomValues) -> dict[str, Any]:
        specs: dict[str, Any] = dict(self._free[1])
        for _ in range(rng.random.randrange(3)):
            specs[rng.text()] = rng.pick(("1", "required", rng.text()))
        return specs


def _made() -> list[str]:
    """Return the UUIDs of the existing requests."""
    return [
        each["uuid"]
        for each in requests.find()
        if each["device_profile_name"] == PROFILE
    ]


def _tree() -> FakeProviderTree:
    tree = FakeProviderTree()
    tree.new_root(NODE, STRANGER, 0)
    return tree


def _more(rng: RandomValues, info: Mapping[str, Any]) -> dict[str, Any]:
    keys = (
        "name",
        rng.pick(("project_id", "tenant_id")),
        rng.pick(("image_id", "image_ref", "image_uuid")),
    )
    more = {key: rng.text() for key in keys}
    return {**info, **more} if rng.happens(0.3) else dict(info)


def fits(name: str, arguments: Arguments) -> bool:
    """Return whether a function has that number of arguments."""
    try:
        inspect.signature(operator.attrgetter(name)(os_acc)).bind(*arguments)
    except TypeError:
        return False
    return True


def fingerprint(values: object) -> list[object]:
    """Return a value that changes with anything in the values, at any depth."""
    seen: set[int] = set()
    found: list[object] = []
    waiting: collections.deque[object] = collections.deque([values])
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner = _inner(value)
        found.append((id(value), type(value), [id(each) for each in inner]))
        if isinstance(value, FakeProviderTree):
            found.append(repr(value._providers))
        waiting.extend(inner)
    return found


def _inner(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [each for pair in value.items() for each in pair]
    containers = (list, tuple, set, frozenset, collections.deque, bytearray)
    return list(value) if isinstance(value, containers) else []
