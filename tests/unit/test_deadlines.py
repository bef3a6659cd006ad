# SPDX-License-Identifier: Apache-2.0

"""No caller waits much longer than the deadline of its operation."""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from os_acc import deadlines, exception, service
from os_acc.attach import verification
from os_acc.inventory import plugin_discovery, snapshots
from os_acc.objects.lease import LeaseState
from os_acc.plugins import loader
from os_acc.plugins.loader import PluginCalls
from os_acc.store.leases import Store
from os_acc.store.locks import Locks
from os_acc.testing import instance, request
from tests.expected_errors import raises
from tests.unit.acme import NeverReturns
from tests.unit.placement.nova_side import Nova

FPGA, OTHER_FPGA = "0000:5e:00.0", "0000:e3:00.0"


@pytest.fixture
def gate() -> Iterator[None]:
    """Make plugins that wait for the gate hang until the test ends."""
    NeverReturns.gate.clear()
    sys.modules.pop("tests.unit.acme_that_hangs", None)
    yield
    NeverReturns.gate.set()


@contextlib.contextmanager
def store_of_another(state_path: str) -> Iterator[None]:
    """Hold the lock of the store, as a transaction of another process does."""
    locks = Locks(state_path)
    with locks.hold(["9-store"], time.monotonic() + 30):
        yield


# -- operations with a deadline ----------------------------------------------


def test_no_step_begins_after_the_deadline():
    assert 0 < deadlines.left(time.monotonic() + 60) <= 60
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        deadlines.left(time.monotonic() - 1)


def test_a_step_that_began_in_time_has_a_while_to_answer():
    now = time.monotonic()
    assert deadlines.patience(now + 1, most=60) <= deadlines.ANSWER + 1
    assert deadlines.patience(now + 60, most=10) == 10
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        deadlines.patience(now - 60, most=10)


def test_what_is_put_on_record_has_until_the_end_of_the_grace():
    now = time.monotonic()
    assert deadlines.for_record(now, most=60) == now + deadlines.GRACE
    assert deadlines.for_record(now + 600, most=1) <= time.monotonic() + 1


def test_a_store_waits_no_longer_than_the_operation_that_uses_it(bench):
    store = Store.open(bench.state_path, 600)
    late = store.until(time.monotonic() - deadlines.GRACE)
    with store_of_another(bench.state_path), raises(exception.StateReason.BUSY):
        late.leases()
    # The lock is free now, so the late operation can still be recorded.
    assert late.leases() == ()


def test_a_plug_that_is_out_of_time_does_not_even_look_at_the_host(bench, monkeypatch):
    selected, specs = request(bench.provider(FPGA))
    before, writes = bench.kernel.snapshot(), bench.kernel.writes()
    manager = bench.restart(plug_timeout=1.0)

    def slow(*args):
        raise AssertionError("it is looked at")

    with monkeypatch.context() as patch:
        recovery = manager.recovery
        patch.setattr(recovery, "settled", _until_it_is_late(recovery.settled))
        patch.setattr(loader.Plugins, "call", slow)
        with pytest.raises(exception.DeviceStuck, match="no time is left"):
            manager.plug(instance(1), selected, specs)
    assert bench.kernel.snapshot() == before
    assert bench.kernel.writes() == writes
    assert manager.store.leases() == ()
    assert len(manager.plug(instance(1), selected, specs)) == 1


def _until_it_is_late(step):
    def late(consumer, leases, deadline):
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return step(consumer, leases, deadline)

    return late


def test_a_binding_is_not_read_after_the_deadline(bench):
    address = bench.provider(FPGA).device.address
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        verification.read_prior(bench.root, [address], time.monotonic() - 1)


# -- initialize() ------------------------------------------------------------


@pytest.mark.parametrize("where", ["acme_that_hangs:Acme", "acme:HangsInItsMaking"])
def test_a_plugin_that_cannot_even_be_loaded_in_time_is_set_aside(
    bench, install_plugins, gate, monkeypatch, where
):
    monkeypatch.setattr(loader, "_LOAD_SECONDS", 0.2)
    install_plugins(slow=f"tests.unit.{where}")
    manager = bench.restart()
    (aside,) = manager.host_info()["set_aside"]
    assert aside["name"] == "slow"
    assert "not return" in aside["reason"]
    assert bench.plug(1, FPGA)


@pytest.mark.parametrize(
    "where", ["acme_that_hangs:Acme", "acme:HangsInItsMaking", "acme:NeverReturns"]
)
def test_a_plugin_that_hangs_keeps_one_thread_over_repeated_initializations(
    make_bench, install_plugins, gate, monkeypatch, where
):
    monkeypatch.setattr(service, "nodes", service.Nodes())
    monkeypatch.setattr(loader, "_LOAD_SECONDS", 0.1)
    monkeypatch.setattr(plugin_discovery, "_DISCOVER_SECONDS", 0.1)
    install_plugins(acme=f"tests.unit.{where}")
    bench = make_bench(enabled_plugins=["acme"])
    run, unfinished = PluginCalls._run, []

    def counted(calls, *args):
        """Count a call, which has a thread of its own, until it returns."""
        unfinished.append(args)
        try:
            return run(calls, *args)
        finally:
            unfinished.remove(args)

    monkeypatch.setattr(PluginCalls, "_run", counted)

    def served():
        with contextlib.suppress(exception.InitializeTimeout):
            node = service.initialize(True, config=bench.config(), root=bench.root)
            return [each.name for each in node.plugins.loaded]
        return []

    for _ in range(4):
        assert served() == []
    assert len(unfinished) == 1
    NeverReturns.gate.set()
    end = time.monotonic() + 30
    while served() != ["acme"]:
        assert time.monotonic() < end


def test_who_waits_for_another_threads_initialize_has_a_deadline(
    bench, install_plugins, gate, monkeypatch
):
    monkeypatch.setattr(service, "nodes", service.Nodes())
    monkeypatch.setattr(plugin_discovery, "_DISCOVER_SECONDS", 600)
    install_plugins(slow="tests.unit.acme:NeverReturns")
    config = bench.config(initialize_timeout=600.0)
    first = deadlines.begin(service.initialize, config=config, root=bench.root)
    while not service.nodes.initializing.locked():
        time.sleep(0.001)
    with pytest.raises(exception.InitializeTimeout, match="another thread"):
        service.initialize(config=bench.config(initialize_timeout=1.0), root=bench.root)
    NeverReturns.gate.set()
    assert first.result(60) is service.get()


def test_a_device_that_is_stuck_leaves_time_for_the_others(bench):
    bench.plug(1, FPGA)
    bench.kernel.hang(FPGA, "reset")
    with bench.short_timeout(), pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    manager = bench.restart(initialize_timeout=1.5)
    assert [lease.state for lease in manager.store.leases()] == [LeaseState.RELEASING]
    assert len(bench.plug(2, OTHER_FPGA)) == 1


# -- side by side ------------------------------------------------------------


def test_what_is_done_side_by_side_comes_back_in_order():
    assert deadlines.side_by_side(range(20), lambda each: -each, 3) == [
        -each for each in range(20)
    ]


def test_the_first_error_in_order_is_raised_when_all_have_ended():
    done = []

    def act(item):
        if item in (3, 5):
            raise LookupError(item)
        done.append(item)

    with pytest.raises(LookupError, match="3"):
        deadlines.side_by_side(range(8), act, 2)
    assert sorted(done) == [0, 1, 2, 4, 6, 7]


@pytest.mark.native_threads
def test_an_interruption_waits_for_what_runs_and_begins_no_more():
    """The signal is a repeated Ctrl-C, or the request to stop the service."""
    begun, ended = [], []
    both, heard, go_on = threading.Barrier(3), threading.Event(), threading.Event()

    def act(item):
        begun.append(item)
        both.wait(60)
        go_on.wait(60)
        ended.append(item)

    def interrupt():
        both.wait(60)
        for _ in range(2):
            heard.clear()
            # A signal that arrives just before a wait is handled after it.
            while not heard.wait(0.05):
                signal.pthread_kill(main.ident, signal.SIGUSR1)
            # The main thread waits again: items that had not begun are dropped.
            while sys._current_frames()[main.ident].f_code.co_name != "wait":
                time.sleep(0.001)
        go_on.set()

    def handler(_number, frame):
        if frame.f_code.co_name == "wait":
            heard.set()
            raise KeyboardInterrupt

    main = threading.main_thread()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            deadlines.side_by_side(range(20), act, 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(begun) == 2
    assert sorted(begun) == sorted(ended)


def test_threads_that_are_left_behind_keep_no_interpreter_from_ending():
    """Threads of an executor would be joined at the end."""
    program = (
        "import threading\n"
        "from os_acc import deadlines\n"
        "ready = threading.Barrier(2)\n"
        "def hang():\n"
        "    ready.wait()\n"
        "    threading.Event().wait()\n"
        "deadlines.begin(hang)\n"
        "ready.wait()\n"
    )
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", program) == 0


# -- no more threads -----------------------------------------------------------


@contextlib.contextmanager
def no_thread() -> Iterator[None]:
    """Make every start of a thread fail, as at the limit of the service."""

    def start(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", start)
        yield


def test_without_a_thread_a_plug_is_refused_for_now(bench):
    arguments = request(bench.provider(FPGA))
    before = bench.kernel.snapshot()
    with (
        no_thread(),
        pytest.raises(exception.DeviceStuck, match="new thread") as caught,
    ):
        bench.manager.plug(instance(1), *arguments)
    assert caught.value.retryable
    assert bench.kernel.snapshot() == before
    assert not bench.manager.store.leases()


def test_without_a_thread_what_is_done_side_by_side_is_done_in_turn():
    with no_thread():
        done = deadlines.side_by_side(range(5), lambda each: -each, 3)
    assert done == [0, -1, -2, -3, -4]


def test_an_unplug_without_a_thread_ends_when_there_is_one(bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Marks")
    bench.plug(1, FPGA, OTHER_FPGA)
    with (
        no_thread(),
        pytest.raises(exception.DevicesUnreleased, match="new thread"),
    ):
        bench.unplug(1)
    states = {lease.state for lease in bench.manager.store.leases()}
    assert states == {LeaseState.RELEASING}
    assert bench.unplug(1) == 2


# -- a forked child ----------------------------------------------------------


def in_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            os._exit(0 if check() else 2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.native_threads
def test_a_forked_child_waits_for_no_initialize_of_its_parent(bench, monkeypatch):
    monkeypatch.setattr(service, "nodes", service.Nodes())
    config = bench.config()
    with service.nodes.initializing:
        assert in_child(
            lambda: service.initialize(config=config, root=bench.root) is not None
        )


@pytest.mark.native_threads
def test_a_plugin_that_hangs_in_the_parent_does_not_hang_in_the_child(gate):
    plugin_calls = loader.PluginCalls("acme")
    with pytest.raises(exception.PluginFailed):
        plugin_calls.call(0.01, NeverReturns.wait)
    with plugin_calls._guard:
        assert in_child(lambda: plugin_calls.call(30, str) == "")
    assert plugin_calls.hangs


@pytest.mark.native_threads
def test_a_forked_child_waits_for_no_look_of_its_parent(bench, monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_AGE", -1.0)
    manager, nova, looked = bench.manager, Nova(), threading.Event()
    monkeypatch.setattr(manager.catalog.snapshots, "_look", looked.set)

    def asks() -> bool:
        nova.cycle(manager.update_provider_tree)
        return looked.wait(30)

    manager.discover()
    with manager.catalog.snapshots._looking:
        assert in_child(asks)


@pytest.mark.native_threads
def test_a_forked_child_plugs_and_tells_it_whatever_its_parent_was_at(bench):
    arguments = request(bench.provider(FPGA))
    manager, nova = bench.manager, Nova()

    def plugs() -> bool:
        manager.plug(instance(1), *arguments)
        return bool(nova.cycle(manager.update_provider_tree))

    with manager.catalog.snapshots._guard, manager.catalog.tree._lock:
        assert in_child(plugs)
