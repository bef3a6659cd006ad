# SPDX-License-Identifier: Apache-2.0

"""No call lets privileged code write anything but the permitted attributes."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import tempfile
import time
from collections.abc import Iterator

import pytest

from os_acc import privsep
from os_acc.cmd import privileges
from os_acc.objects.epoch import DAY
from os_acc.testing import FakeKernel, hosts
from tests.random_values import shown
from tests.stress import privileged_contract
from tests.stress.file_changes import FileChanges
from tests.stress.fuzzing import SHARES, told
from tests.stress.guarded_tree import GuardedTree
from tests.stress.privileged_calls import (
    answer_to,
    arguments,
    check_answer,
    forget_calls,
    host_of,
    let_stuck_ones_end,
    talking_to,
)

#: Calls of each entry point. With those of the helper's channel, 108,000 in all.
TRAP_CALLS, FAKE_CALLS = 11_500, 1_250
BATCH = 500


@pytest.fixture(scope="session")
def changes() -> FileChanges:
    return FileChanges()


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a directory on another file system than ``place``, if there is one."""
    base = tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="os-acc-", dir=base) as directory:
        yield directory


def test_every_entry_point_is_fuzzed():
    found = set()
    prefix = f"{privsep.__name__}."
    for module in pkgutil.walk_packages(privsep.__path__, prefix):
        held = importlib.import_module(module.name)
        for name, value in vars(held).items():
            if any(context.is_entrypoint(value) for context in privsep.contexts()):
                found.add(f"{module.name.removeprefix(prefix)}.{name}")
    assert found == set(privileged_contract.OWN)


def test_each_context_has_an_entry_point_that_is_fuzzed():
    """A context that no row has would have entry points that the test above missed."""
    fuzzed = {each.context for each in privileged_contract.OWN.values()}
    ours = {each.pypath for each in privileges.own_contexts()}
    assert fuzzed == ours


@pytest.mark.parametrize("name", privileged_contract.ALL)
def test_nothing_is_written_but_what_was_meant(
    place, elsewhere, changes, seed, share, fuzzed, name
):
    guarded = GuardedTree(place, elsewhere, changes)
    every = range(TRAP_CALLS)
    calls = share.select(every, SHARES)
    with talking_to(guarded.kernel):
        for done, number in enumerate((*calls, *sorted(set(every) - set(calls))), 1):
            # A share may have none of the few calls that write.
            if done > len(calls) and guarded.written == guarded.permitted:
                break
            given = arguments(name, guarded.host, seed, number)
            with told(seed, number, name + shown(given)):
                guarded.call(privileged_contract.ALL[name], given)
                if done % BATCH == 0:
                    guarded.check_all()
    guarded.check_all()
    assert guarded.written == guarded.permitted
    fuzzed("privileged calls", len(calls))


def check_later_calls_are_accepted(fake: FakeKernel) -> None:
    """Check that no epoch of a call outranks those of tomorrow."""
    tomorrow = time.time_ns() // 1000 + DAY
    for lock in pathlib.Path(fake.root, "run/os_acc").glob("*:*:*.?"):
        # It is empty if no epoch was accepted.
        recorded, *_ = lock.read_bytes().split() or [b"0"]
        assert int(recorded) <= tomorrow


@pytest.mark.parametrize("name", privileged_contract.ALL)
def test_a_kernel_that_reacts_is_asked_for_nothing_else(
    place, seed, share, fuzzed, name
):
    entry_point = privileged_contract.ALL[name]
    calls = share.select(range(FAKE_CALLS), SHARES)
    fake = FakeKernel.build(f"{place}/host", hosts.two_socket_host())
    host, done = host_of(fake), len(fake.writes())
    with talking_to(fake):
        for number in calls:
            given = arguments(name, host, seed, number)
            with told(seed, number, name + shown(given)):
                entry_point.make_ready(host, given)
                answer = answer_to(entry_point, given)
                let_stuck_ones_end()
                check_answer(entry_point, given, answer)
                if answer is None or not entry_point.takes(*given):
                    continue
                writes = fake.writes()[done:]
                done += len(writes)
                permitted = entry_point.permitted(host, given)
                assert {(each.path, each.text) for each in writes} <= permitted
                check_later_calls_are_accepted(fake)
                forget_calls(fake)
    # The refused calls have written nothing either.
    assert len(fake.writes()) == done
    fuzzed("privileged calls", len(calls))
