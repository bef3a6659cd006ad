# SPDX-License-Identifier: Apache-2.0

"""A hostile caller fills ``/run`` with no more files than the host has devices."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from os_acc import privsep
from os_acc.privsep import claims, mdev
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.mdevs import mdpy, mtty
from tests.random_values import RandomValues, shown
from tests.stress import privileged_contract, processes
from tests.stress.fuzzing import SHARES, told
from tests.stress.hostile_client import RETURNED, HostileClient, serving
from tests.stress.privileged_calls import (
    answer_to,
    host_of,
    let_stuck_ones_end,
    talking_to,
)
from tests.stress.privileged_host import Arguments, Host
from tests.stress.test_process_users import Sudo, become_ordinary
from tests.unit import vendor_steps
from tests.unit.privsep.root_config import limit_to

CALLS = 100_000
#: The most files that a function or a slot has: lock, record, mark, notes, with the
#: replacement of each.
FILES = 12
#: The slots of a type that a parent offers and root's configuration names.
SLOTS = 64
GPU = "0000:17:00.0"
#: One parent and type that root's configuration names.
NAMED = ("mtty", "mtty-1")


#: Makes one call with an epoch.
Call = Callable[[RandomValues, Host, int], Any]


def _parent(rng: RandomValues) -> str:
    return rng.pick(("mtty", "mdpy", GPU, "missing", "0000:99:00.0", _name(rng)))


def _name(rng: RandomValues) -> str:
    return f"x{rng.random.randrange(2**64)}"


def _slot(rng: RandomValues) -> tuple[str, str, int]:
    number = rng.random.randrange(rng.pick((30, 100, 10**9)))
    if rng.happens(0.1):
        return *NAMED, number
    kinds = ("mtty-1", "mtty-2", "mdpy-hd", _name(rng))
    return _parent(rng), rng.pick(kinds), number


def _uuid(rng: RandomValues) -> str:
    return str(uuid.UUID(int=rng.random.getrandbits(128)))


def _addresses(rng: RandomValues, host: Host) -> Arguments:
    """Return addresses of functions that are there, and of many that are not."""
    found = [rng.pick(list(host.cards)) for _ in range(2)]
    found += [
        (rng.random.randrange(2**16), *map(rng.random.randrange, (256, 32, 8)))
        for _ in range(20)
    ]
    return tuple(dict.fromkeys(found))


def _of_mdev(step: Callable[..., Any], last: object) -> Call:
    def call(rng: RandomValues, _host: Host, epoch: int) -> Any:
        more = (last,) if rng.happens(0.5) else ()
        lease = _LEASES[rng.random.randrange(4)] if rng.happens(0.5) else _uuid(rng)
        return step(_slot(rng), lease, epoch, 30_000, *more)

    return call


_LEASES = tuple(str(uuid.UUID(int=number)) for number in range(1, 5))


def _vendor_step(rng: RandomValues, host: Host, epoch: int) -> Any:
    slot, purpose = _slot(rng), rng.pick(("prepare", "return", "other"))
    parent = [each for each in host.cards.values() if each.name == slot[0]]
    members = tuple((each.place, each.identity) for each in parent)
    call = (slot, members, (), epoch, 30_000, _uuid(rng), (), purpose, "acme")
    step = rng.pick((vendor_steps.describe, vendor_steps.describe_parent))
    return step(*call)


def _of_forget(step: Callable[..., Any]) -> Call:
    def call(rng: RandomValues, host: Host, epoch: int) -> Any:
        return step(_addresses(rng, host), epoch, 30_000, rng.pick(_LEASES))

    return call


def _of_contract(name: str, step: Callable[..., Any] | None = None) -> Call:
    """Return a call of an entry point with a new epoch, lease and address.

    :param step: calls it in another process; None: in this one.
    """
    row = privileged_contract.ALL[name]

    def call(rng: RandomValues, host: Host, epoch: int) -> Any:
        given = row.invent(rng, host)
        if rng.happens(0.3):
            moved = (rng.random.randrange(2**16), 1, 2, 3)
            given = _replaced(given, rng.pick(list(host.cards)), moved)
        changed = tuple(
            epoch if type(each) is int and each in (1, 2**62) else each
            for each in given
        )
        return step(*changed) if step else answer_to(row, changed)

    return call


def _replaced(value: Any, old: object, new: object) -> Any:
    if value == old:
        return new
    if isinstance(value, tuple):
        return tuple(_replaced(each, old, new) for each in value)
    return value


HOSTILE: tuple[Call, ...] = (
    _of_mdev(mdev.create, "acme"),
    _of_mdev(mdev.remove, True),
    _of_mdev(mdev.repair_record, "acme"),
    _vendor_step,
    _of_forget(claims.forget),
)


def _files(fake: FakeKernel) -> set[str]:
    return {
        os.path.join(directory, name)
        for place in ("run", "var")
        for directory, _, names in os.walk(fake.path(place))
        for name in names
    }


@pytest.fixture
def fake(place: str) -> FakeKernel:
    """Return a host with parents of mediated devices; root names one type."""
    spec = hosts.two_socket_host()
    found = [
        dataclasses.replace(each, mdevs=dataclasses.replace(mtty(), name=GPU))
        if each.address == GPU
        else each
        for each in spec.functions
    ]
    spec = HostSpec(tuple(found), mdev_parents=(mtty(), mdpy()))
    fake = FakeKernel.build(f"{place}/host", spec)
    limit_to(
        fake.root,
        '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}',
        '{"address": "0000:d8:00.0"}',
        '{"address": "0000:3b:00.0", "num_vfs": 2}',
    )
    return fake


def test_the_number_of_files_is_that_of_the_devices(fake, seed, share, fuzzed):
    host, calls = host_of(fake), share.select(range(CALLS), SHARES)
    rest = tuple(map(_of_contract, sorted(privileged_contract.ALL)))
    with talking_to(fake):
        for number in calls:
            rng = RandomValues(f"{seed} {number}", ())
            hostile = HOSTILE if rng.happens(0.97) else rest
            call = hostile[rng.random.randrange(len(hostile))]
            with told(seed, number, shown((call,))):
                call(rng, host, number + 2)
        let_stuck_ones_end()
        found = _files(fake)
        limit = FILES * len(host.cards) + FILES * SLOTS
        assert len(found) <= limit, sorted(found)[:: len(found) // 20]
    fuzzed("calls that make files", len(calls))


def _through(client: HostileClient) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """Return the calls that a client makes of a helper in another process.

    :returns: those that name objects by the thousand, and those of all entry points.
    """

    def step(name: str) -> Callable[..., Any]:
        def call(*given: object) -> None:
            assert client.call(f"os_acc.privsep.{name}", *given)[0] == RETURNED

        return call

    hostile = (
        _of_mdev(step("mdev.create"), "acme"),
        _of_mdev(step("mdev.remove"), True),
        _of_mdev(step("mdev.repair_record"), "acme"),
        _of_forget(step("claims.forget")),
    )
    names = (
        name
        for name, row in sorted(privileged_contract.ALL.items())
        if privsep.base.is_entrypoint(row.call)
    )
    return hostile, tuple(_of_contract(name, step(name)) for name in names)


def test_an_ordinary_user_makes_no_more_files_of_root(fake, place, seed, share, fuzzed):
    host, calls = host_of(fake), share.select(range(CALLS), SHARES)
    for directory in (place, os.path.dirname(place)):
        os.chmod(directory, 0o711)
    sudo = Sudo(Path(place, "sudo"))
    own = Path(place, "own")
    own.mkdir()
    own.chmod(0o777)

    def attack() -> int:
        become_ordinary(own)
        with serving("base", sudo.command(fake.root)) as client:
            many, rest = _through(client)
            for number in calls:
                rng = RandomValues(f"{seed} {number}", ())
                hostile = many if rng.happens(0.97) else rest
                hostile[rng.random.randrange(len(hostile))](rng, host, number + 2)
        return os.getuid()

    with sudo.serving():
        ended = processes.Child(attack).wait()
    assert not ended.trouble
    assert ended.value or os.getuid()
    found = _files(fake)
    assert {os.stat(each).st_uid for each in found} == {os.getuid()}
    assert len(found) <= FILES * len(host.cards) + FILES * SLOTS
    fuzzed("calls of an ordinary user", len(calls))
