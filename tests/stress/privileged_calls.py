# SPDX-License-Identifier: Apache-2.0

"""Valid and invalid calls of privileged entry points, and their answers."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from os_acc.privsep import kernel, worker
from os_acc.privsep.kernel import COPIES
from os_acc.privsep.outcome import Outcome
from os_acc.testing import FakeKernel, hosts
from tests.random_values import RandomValues
from tests.stress import privileged_contract
from tests.stress.privileged_host import Arguments, Card, EntryPoint, Host

_ANSWERS = {str(outcome) for outcome in Outcome}
_FAMILIAR = ("vfio-pci", "nouveau", "0000:17:00.0", "i6300ESB timer")


@contextlib.contextmanager
def talking_to(other: kernel.Kernel) -> Iterator[None]:
    """Let privileged code of this process talk to another kernel."""
    before, kernel.current = kernel.current, other
    try:
        yield
    finally:
        kernel.current = before


def host_of(fake: FakeKernel) -> Host:
    """Return the cards of the two-socket host."""
    cards = {}
    for function in hosts.two_socket_host().functions:
        domain, bus, rest = function.address.split(":")
        slot, number = rest.split(".")
        place = (int(domain, 16), int(bus, 16), int(slot, 16), int(number))
        identity = (
            *(function.vendor, function.product),
            *(function.subsystem_vendor, function.subsystem_product),
            function.revision,
        )
        group = fake.group(function.address)
        is_bridge = function.is_bridge
        is_nvme = function.class_code == 0x010802
        assert group is not None
        driver = function.driver
        cards[place] = Card(place, identity, group, driver, is_bridge, is_nvme)
    return Host(fake.root, cards)


def arguments(name: str, host: Host, seed: str, number: int) -> Arguments:
    """Return the arguments of one call; few calls have only valid ones."""
    rng = RandomValues(f"{seed} {name} {number}", _FAMILIAR)
    right = privileged_contract.ALL[name].invent(rng, host)
    kind = rng.random.random()
    if kind < 0.08:
        return right
    if kind < 0.21:
        return tuple(rng.value() for _ in right)
    if kind < 0.26:
        more = [rng.value() for _ in range(rng.random.randrange(3))]
        return (*right[: rng.random.randrange(len(right) + 1)], *more)
    if not right:
        return (rng.value(),)
    for _ in range(1 + rng.random.randrange(3)):
        at = rng.random.randrange(len(right))
        right = (*right[:at], rng.near(right[at]), *right[at + 1 :])
    return right


def answer_to(entry_point: EntryPoint, arguments: Arguments) -> Any:
    """Return the answer; None if the number of arguments is wrong."""
    if entry_point.fits(arguments):
        return entry_point.call(*arguments)
    with pytest.raises(TypeError, match="argument"):
        entry_point.call(*arguments)
    return None


def let_stuck_ones_end() -> None:
    """Wait for workers that have outlived their deadline."""
    for pid in tuple(worker._stuck):
        os.waitpid(pid, 0)
    worker._stuck.clear()


def forget_calls(fake: FakeKernel) -> None:
    """Remove all that the helper keeps of a call: its epoch, and its records.

    Another call for the lease of a record would restore the recorded binding.
    """
    for place in ("run/os_acc", COPIES):
        shutil.rmtree(os.path.join(fake.root, place), ignore_errors=True)


def outcomes(entry_point: EntryPoint, answer: Any) -> list[str]:
    """Return the outcome of each function in an answer, and check its form."""
    msgpack.packb(answer)
    if entry_point in privileged_contract.HOLDING:
        outcome, number, *_, found = answer
        assert type(number) is int
        assert all((type(pid), type(name)) == (int, str) for pid, name in found)
        return [outcome]
    if entry_point is privileged_contract.CLAIMED:
        assert answer == ()
        return []
    if entry_point is privileged_contract.STANDING:
        assert [type(each) for each in answer] == [str, str, str]
        return []
    rows = [answer] if entry_point in privileged_contract.SINGLE else answer
    if entry_point is privileged_contract.SEVERAL and not isinstance(rows[0][0], str):
        rows = [row for each in answer for row in each]
    for row in rows:
        assert [type(each) for each in row[1:]] == [int, str, str]
    return [row[0] for row in rows]


def check_answer(entry_point: EntryPoint, arguments: Arguments, answer: Any) -> None:
    """Check that exactly the invalid arguments are rejected."""
    if answer is None:
        return
    found = outcomes(entry_point, answer)
    assert _ANSWERS.issuperset(found)
    if not entry_point.takes(*arguments):
        assert found == [Outcome.INVALID]
        return
    assert Outcome.INVALID not in found
    if entry_point in privileged_contract.SINGLE:
        assert len(found) == 1
    elif entry_point.named(arguments) and (
        entry_point is not privileged_contract.HOLDERS
    ):
        assert len(found) == len(entry_point.named(arguments))
