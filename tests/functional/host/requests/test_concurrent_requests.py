# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests survive concurrent calls and failures.

Cyborg 17 double-binds or leaks devices in many of these cases; the tests note
its behaviour.
"""

import queue
import shutil
import threading
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.objects.accelerator_request import RequestAction, RequestState
from os_acc.testing import instance, uuid_of
from tests.expected_errors import raises
from tests.functional.host.requests.request_states import (
    FPGA,
    GPU,
    GPUS,
    NO_REQUEST,
    bind,
    binding,
    states,
)
from tests.unit.forked_processes import Child
from tests.unit.placement.nova_side import Nova
from tests.unit.store.store_files import execute, file_in


def outcome(call):
    try:
        return call()
    except exception.OsAccError as error:
        return error.reason or type(error).__name__


def leases(bench):
    """Return (address, consumer, uuid) of each lease; assert one lease per device."""
    found = bench.manager.store.leases()
    assert len({each.address for each in found}) == len(found)
    return [(str(each.address), each.consumer, each.uuid) for each in found]


# -- concurrent calls ---------------------------------------------------------------


def test_one_of_many_threads_binds_a_request(bench, book, one):
    """Cyborg gives each thread a device, and leaks all but one."""
    asked = [{one.uuid: binding(bench, GPU, number)} for number in range(1, 7)]
    with futures.ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(lambda each: outcome(lambda: book.bind(each)), asked))
    won = [
        number
        for number, each in enumerate(ended, 1)
        if each != exception.ConflictReason.REQUEST
    ]
    assert len(won) == 1
    assert leases(bench) == [(GPU, uuid_of(won[0]), one.uuid)]


def test_one_of_two_processes_binds_a_request(bench, book, one):
    def child(number):
        asked = {one.uuid: binding(bench, GPU, number)}

        def run(pause):
            pause()
            return book.bind(asked)[0].state.value

        return Child(run)

    both = [child(1), child(2)]
    assert [each.hears() for each in both] == ["paused", "paused"]
    with futures.ThreadPoolExecutor(2) as pool:
        ended = sorted(pool.map(Child.goes_on, both))
    assert ended == ["Bound", "Conflict"]
    assert len(leases(bench)) == 1


def test_threads_that_bind_the_same_alike_all_succeed(bench, book, one):
    asked = {one.uuid: binding(bench, GPU)}
    with futures.ThreadPoolExecutor(4) as pool:
        bound = list(pool.map(lambda _: book.bind(asked)[0].state, range(4)))
    assert bound == [RequestState.BOUND] * 4
    assert leases(bench) == [(GPU, uuid_of(1), one.uuid)]


def test_binding_and_unbinding_at_once_ends_with_one_or_the_other(bench, book, one):
    with futures.ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            both = [
                pool.submit(outcome, lambda: bind(bench, book, one)),
                pool.submit(outcome, lambda: book.unbind([one.uuid])),
            ]
            futures.wait(both)
            assert [type(each.result()) for each in both] == [tuple, int]
            bound = states(book) == [RequestState.BOUND]
            assert len(leases(bench)) == bound
            book.unbind([one.uuid])


def test_a_bind_and_a_plug_of_one_instance_do_not_both_win(bench, book, one):
    with futures.ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(outcome, lambda: bind(bench, book, one)),
            pool.submit(outcome, lambda: bench.plug(1, FPGA)),
        ]
        ended = [each.result() for each in both]
    assert ended.count(exception.ConflictReason.CONSUMER) == 1
    assert len(leases(bench)) == 1


def test_a_request_that_has_become_anothers_is_not_unbound_with_the_first(
    bench, book, one, monkeypatch
):
    """Meanwhile, the deletion of an instance's requests waits for their locks."""
    bind(bench, book, one)
    hold = bench.manager.locks.hold
    rebound = threading.Event()

    def late(names, deadline):
        if not rebound.is_set():
            rebound.set()
            book.unbind([one.uuid])
            bind(bench, book, one, number=2)
        return hold(names, deadline)

    monkeypatch.setattr(bench.manager.locks, "hold", late)
    assert book.delete(instance=uuid_of(1)) == 0
    assert leases(bench) == [(GPU, uuid_of(2), one.uuid)]


# -- calls during writes to the kernel ------------------------------------------------


@pytest.fixture
def pool(bench):
    """Return two threads; at the end of the test, no call hangs in the kernel."""
    with futures.ThreadPoolExecutor(2) as threads:
        yield threads
        bench.kernel.lift()


@pytest.fixture
def hanging(bench, pool):
    """Return a function that starts an action and waits until the kernel blocks it."""

    def begin(action):
        bench.kernel.hang(GPU, "driver_override")
        future = pool.submit(outcome, action)
        bench.kernel.wait_until_blocked()
        return future

    return begin


@pytest.fixture
def waiting(bench, pool, monkeypatch):
    """Return a function that starts an action and waits until it needs a held lock."""

    def begin(action):
        hold, asked = bench.manager.locks.hold, queue.Queue()

        def noted(names, deadline):
            with bench.manager.locks.try_hold(names) as free:
                asked.put(free)
            return hold(names, deadline)

        with monkeypatch.context() as patch:
            patch.setattr(bench.manager.locks, "hold", noted)
            future = pool.submit(outcome, action)
            assert not asked.get(timeout=60.0), "nobody has the locks"
        assert not future.done()
        return future

    return begin


@pytest.mark.parametrize("action", list(RequestAction))
def test_what_is_being_bound_is_waited_for(bench, book, one, hanging, waiting, action):
    future = hanging(lambda: bind(bench, book, one))
    assert states(book) == [RequestState.BIND_STARTED]
    assert states(book, bind_state="resolved") == []
    assert book.events([one.uuid]) == {"events": []}
    calls = {
        RequestAction.BIND: lambda: bind(bench, book, one, number=2),
        RequestAction.UNBIND: lambda: book.unbind([one.uuid]),
        RequestAction.DELETE: lambda: book.delete([one.uuid]),
    }
    second = waiting(calls[action])
    bench.kernel.lift()
    assert future.result()[0].state is RequestState.BOUND
    outcome_of_second = second.result()
    if action is RequestAction.UNBIND:
        assert outcome_of_second == 1
        assert states(book) == [RequestState.UNBOUND]
    else:
        assert outcome_of_second == exception.ConflictReason.REQUEST
        assert leases(bench) == [(GPU, uuid_of(1), one.uuid)]


@pytest.mark.parametrize("action", list(RequestAction))
def test_what_is_being_unbound_is_waited_for(
    bench, book, one, hanging, waiting, action
):
    bind(bench, book, one)
    future = hanging(lambda: book.unbind([one.uuid]))
    assert states(book, bind_state="resolved") == [RequestState.DELETING]
    calls = {
        RequestAction.BIND: lambda: bind(bench, book, one, number=2)[0].state,
        RequestAction.UNBIND: lambda: book.unbind([one.uuid]),
        RequestAction.DELETE: lambda: book.delete([one.uuid]),
    }
    second = waiting(calls[action])
    bench.kernel.lift()
    assert future.result() == 1
    outcome_of_second = second.result()
    expected = {
        RequestAction.BIND: RequestState.BOUND,
        RequestAction.UNBIND: 0,
        RequestAction.DELETE: 1,
    }
    assert outcome_of_second == expected[action]


# -- cases that fail in Cyborg ----------------------------------------------------


def test_the_reason_of_a_failed_unbind_is_told_and_the_others_are_free(bench, book):
    """Cyborg: KeyError('UnbindFailed'), and a handle that is never freed."""
    first, second = book.create("two")
    book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)})
    bench.kernel.fail(GPU, "driver_override", times=1000)
    with pytest.raises(exception.DevicesUnreleased, match=GPU):
        book.delete(instance=uuid_of(1))
    assert states(book) == [RequestState.UNBIND_FAILED, RequestState.UNBOUND]
    bench.plug(2, FPGA)
    bench.kernel.lift()
    assert book.delete(instance=uuid_of(1)) == 2
    assert bench.plugged(1) == []


def test_who_still_has_something_is_named_and_nobody_else(bench, book):
    (fpga,) = book.create("reserved")
    (gpu,) = book.create("one")
    bind(bench, book, fpga, number=2, place=FPGA)
    bind(bench, book, gpu, number=1)
    bench.kernel.fail(GPU, "driver_override", times=None)
    with pytest.raises(exception.DevicesUnreleased) as error:
        book.unbind([fpga.uuid, gpu.uuid])
    assert uuid_of(1) in error.value.message
    assert uuid_of(2) not in error.value.message


def test_what_a_bind_leaves_in_quarantine_is_reserved_at_once(bench, book, one):
    nova, gpu = Nova(), bench.provider(GPU)
    bench.kernel.fail(GPU, "drivers_probe", times=None)
    with pytest.raises(exception.HostError):
        bind(bench, book, one)
    assert states(book) == [RequestState.UNBIND_FAILED]
    nova.cycle(bench.manager.update_provider_tree)
    assert nova.units(gpu.uuid) == {GPUS: (1, 1)}


def test_requests_are_bound_together_or_none_has_anything(bench, book):
    """Cyborg: the third of three fails, the first two stay bound."""
    first, second = book.create("two")
    before = bench.kernel.snapshot()
    bench.kernel.fail(GPU, "drivers_probe", times=1000)
    bench.kernel.fail(GPU, "driver_override", times=1000, nth=1)
    with pytest.raises(exception.OsAccError):
        book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)})
    bench.kernel.lift()
    assert set(states(book)) <= {RequestState.BIND_FAILED, RequestState.UNBIND_FAILED}
    book.unbind([first.uuid, second.uuid])
    assert leases(bench) == []
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("table", ["leases", "requests"])
def test_one_damaged_record_keeps_nobody_from_his_requests(bench, book, one, table):
    """Cyborg: one ARQ without its handle's row, and no list is answered."""
    (other,) = book.create("reserved")
    bind(bench, book, one)
    book.bind({other.uuid: binding(bench, FPGA, 2)})
    execute(
        file_in(bench.state_path),
        f"UPDATE {table} SET payload = 'x' || payload WHERE uuid = '{one.uuid}'",
    )
    assert other.uuid in {each.uuid for each in book.find(uuid_of(2))}
    assert book.delete(instance=uuid_of(2)) == 1
    # An instance with an intact lease record can still be freed.
    book.delete(instance=uuid_of(1))
    held = [each.consumer for each in bench.manager.store.leases()]
    assert held == []
    book.create("one")
    assert one.uuid not in {each.uuid for each in book.find()}


# -- other changes of an instance -------------------------------------------------


def test_requests_follow_their_instance_when_it_is_rekeyed(bench, book, one):
    bind(bench, book, one)
    assert bench.manager.rekey(uuid_of(1), uuid_of(2)) == 1
    assert states(book, instance=uuid_of(1)) == []
    (found,) = book.find(uuid_of(2))
    assert (found.uuid, found.state) == (one.uuid, RequestState.BOUND)
    assert book.delete(instance=uuid_of(1)) == 0
    assert book.delete(instance=uuid_of(2)) == 1
    assert leases(bench) == []


def test_requests_of_which_one_does_not_exist_are_none_of_them_bound(bench, book, one):
    asked = {one.uuid: binding(bench, GPU, 1), uuid_of(7): binding(bench, FPGA, 2)}
    with raises(NO_REQUEST, match=uuid_of(7)):
        book.bind(asked)
    assert states(book) == [RequestState.INITIAL]


def test_vfio_is_needed_where_a_guest_is_given_something(bench, book):
    (second,) = book.create("reserved")
    (one,) = book.create("one")

    shutil.rmtree(bench.kernel.path("sys/bus/pci/drivers/vfio-pci"))
    (bound,) = book.bind({second.uuid: binding(bench, FPGA)})
    assert bound.state is RequestState.BOUND
    (entry,) = bench.manager.plug(instance(1), None, None)
    assert entry["attach_handle_type"] == "NONE"
    with raises(exception.StepReason.VFIO):
        bind(bench, book, one, number=2)
