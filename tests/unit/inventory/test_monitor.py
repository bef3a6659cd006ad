# SPDX-License-Identifier: Apache-2.0

"""The host is scanned again when the kernel reports a change."""

import contextlib
import queue
import threading
import types

import pytest

from os_acc import exception
from os_acc.host import uevents
from os_acc.host.uevents import ErrorRecovery, Uevent
from os_acc.inventory import monitor
from os_acc.objects.pci import PciAddress

GPU, NIC = PciAddress.parse("0000:17:00.0"), PciAddress.parse("0000:3b:00.0")
LONG = 120.0


class ToldEars:
    """A listener that receives events from the test, and raises exceptions."""

    def __init__(self) -> None:
        self.said: queue.Queue[Uevent | Exception] = queue.Queue()

    def poll(self, seconds: float) -> Uevent | None:
        try:
            said = self.said.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(said, Exception):
            raise said
        return said


class Looks:
    """Count the scans, and let the test wait for one."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()

    def wait(self) -> None:
        assert self.begun.acquire(timeout=LONG)

    def none_waits(self) -> bool:
        return not self.begun.acquire(blocking=False)


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch):
    monkeypatch.setattr(monitor, "QUIET", 0.05)
    monkeypatch.setattr(monitor, "_STEP", 0.1)


@pytest.fixture
def ears():
    return ToldEars()


@pytest.fixture
def looks():
    return Looks()


#: The interval of a monitor that scans the host for no other reason than an event.
RARELY = 10_000.0


@contextlib.contextmanager
def watching(looks, interval, listen):
    """Run a monitor until the end of the block."""
    made = monitor.HostMonitor(monitor.FaultTracker(), looks, interval, listen)
    made.start()
    try:
        yield
    finally:
        assert made.stop(LONG)


def test_a_change_is_looked_at(ears, looks):
    with watching(looks, RARELY, lambda: ears):
        ears.said.put(Uevent("add", GPU))
        looks.wait()
        ears.said.put(Uevent("change"))
        looks.wait()


def test_many_events_at_once_are_one_look(ears, looks, monkeypatch):
    monkeypatch.setattr(monitor, "QUIET", 0.5)
    monkeypatch.setattr(monitor, "RESTLESS", LONG)
    # All events are queued before the monitor starts: no pause ends a change.
    for _ in range(300):
        ears.said.put(Uevent("add", GPU))
    with watching(looks, RARELY, lambda: ears):
        looks.wait()
    assert ears.said.empty()
    assert looks.none_waits()


def test_what_never_rests_is_looked_at_all_the_same(ears, looks, monkeypatch):
    monkeypatch.setattr(monitor, "RESTLESS", 0.0)
    ears.said.put(Uevent("change", GPU))
    ears.said.put(Uevent("change", GPU))
    with watching(looks, RARELY, lambda: ears):
        looks.wait()
        looks.wait()


def test_without_an_event_it_is_looked_at_now_and_then(ears, looks):
    with watching(looks, 0.01, lambda: ears):
        looks.wait()
        looks.wait()


def test_events_that_cannot_be_heard_leave_the_looks_now_and_then(looks, caplog):
    def deaf():
        raise exception.HostStepFailed(
            "no netlink here", reason=exception.StepReason.REFUSED
        )

    with watching(looks, 0.01, deaf):
        looks.wait()
    assert "no netlink here" in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            exception.HostStepFailed(
                "the socket has gone", reason=exception.StepReason.REFUSED
            ),
            "the socket has gone",
        ),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            "cannot process a kernel event",
        ),
    ],
)
def test_a_listener_that_fails_leaves_the_periodic_scans(
    ears, looks, caplog, error, message
):
    ears.said.put(error)
    with watching(looks, 0.01, lambda: ears):
        looks.wait()
        looks.wait()
    assert caplog.text.count(message) == 1


def test_a_thread_that_has_ended_looks_no_more(ears, looks):
    with watching(looks, RARELY, lambda: ears):
        pass
    ears.said.put(Uevent("add", GPU))
    assert looks.none_waits()


def test_one_that_was_never_started_can_be_stopped(looks):
    assert monitor.HostMonitor(monitor.FaultTracker(), looks, 1.0).stop()


@pytest.mark.parametrize("recovery", [ErrorRecovery.BEGUN, ErrorRecovery.FAILED])
def test_a_function_with_a_pcie_error_is_out_of_order(recovery):
    health = monitor.FaultTracker()
    health.note(Uevent("change", GPU, recovery))
    assert list(health.faults) == [GPU]
    assert "PCIe error" in health.faults[GPU]


def test_a_function_that_has_recovered_is_in_order_again():
    health = monitor.FaultTracker()
    health.note(Uevent("change", GPU, ErrorRecovery.BEGUN))
    health.note(Uevent("change", NIC, ErrorRecovery.BEGUN))
    health.note(Uevent("change", GPU, ErrorRecovery.SUCCESSFUL))
    assert list(health.faults) == [NIC]


def test_a_recovery_whose_end_may_be_lost_is_not_waited_for():
    health = monitor.FaultTracker()
    health.note(Uevent("change", GPU, ErrorRecovery.BEGUN))
    health.note(Uevent("change", NIC, ErrorRecovery.FAILED))
    # The kernel has sent more events than could be received.
    health.note(Uevent(""))
    assert list(health.faults) == [NIC]
    health.note(Uevent("change", GPU, ErrorRecovery.FAILED))
    assert set(health.faults) == {GPU, NIC}


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("add", []),
        ("remove", []),
        ("bind", [GPU]),
        ("unbind", [GPU]),
        ("change", [GPU]),
    ],
)
def test_only_another_card_in_the_slot_ends_a_fault(action, left):
    health = monitor.FaultTracker()
    assert not health.faults
    health.note(Uevent("change", GPU, ErrorRecovery.FAILED))
    health.note(Uevent(action, GPU))
    assert list(health.faults) == left


class KernelMessages:
    """The interface of ``pyudev.Monitor``."""

    def __init__(self, *messages: tuple[str, dict[str, str]]) -> None:
        self._messages = list(messages)

    def poll(self, timeout: float) -> types.SimpleNamespace | None:
        subsystem, properties = self._messages.pop(0)
        return types.SimpleNamespace(
            subsystem=subsystem, action="change", properties=properties
        )


def _received(*messages: tuple[str, dict[str, str]]) -> list[Uevent | None]:
    listener = uevents.Monitor()
    listener._monitor = KernelMessages(*messages)
    listener._arrival = types.SimpleNamespace(select=lambda _seconds: [True])
    return [listener.poll(0.0) for _ in messages]


def test_types_of_a_virtual_parent_that_come_or_go_are_a_change():
    """mdev_register_parent() sends the event of the parent, in its own subsystem."""
    messages = [
        ("mtty", {"MDEV_STATE": state}) for state in ("registered", "unregistered")
    ]
    assert _received(*messages) == [Uevent("change"), Uevent("change")]


def test_other_subsystems_are_irrelevant():
    disk = {"DISK_MEDIA_CHANGE": "1", "DEVPATH": "/devices/pci0000:00/ata1/block/sda"}
    assert _received(("mtty", {}), ("block", disk), ("block", {})) == [None] * 3


@pytest.mark.parametrize(
    "path",
    [
        "/devices/pci0000:d8/0000:d9:00.0/nvme/nvme1/nvme1n2",
        "/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n2",
    ],
)
def test_a_namespace_that_comes_or_goes_is_a_change(path):
    assert _received(("block", {"DEVPATH": path})) == [Uevent("change")]
