# SPDX-License-Identifier: Apache-2.0

"""The epoch orders privileged calls, and never locks the service out."""

import functools
import time

import pytest

from os_acc import service
from os_acc.objects.epoch import DAY
from os_acc.objects.pci import PciAddress
from os_acc.privsep import worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import TestHost
from tests.unit.store.store_files import file_in

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
YEAR = 365 * DAY


class TimeOfDay:
    """The clock of the host, which the service and its helper read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.microseconds = 1_800_000_000_000_000
        self._patch = monkeypatch
        opened = functools.partial(service.Store.open, clock=self)
        monkeypatch.setattr(service.Store, "open", opened)
        self.restart_helper()

    def __call__(self) -> int:
        return self.microseconds * 1000

    def restart_helper(self) -> None:
        """Start a helper that has read no time of day yet."""
        self._patch.setattr(worker, "clock", worker.Clock(self))


@pytest.fixture
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> TimeOfDay:
    return TimeOfDay(monkeypatch)


def call(address: str, epoch: int) -> CallResult:
    """Make a privileged call that does nothing, and return its result."""
    (answer,) = worker.run(
        [PciAddress.parse(address)], epoch, 30, lambda _index: CallResult(Outcome.OK)
    )
    return answer


def check_serves(bench: TestHost) -> None:
    """Check that a card with two functions and a single one can go and come back."""
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.plug(2, FPGA)
    assert bench.unplug(1) == bench.unplug(2) == 1
    assert bench.kernel.snapshot() == before


def test_a_call_that_is_far_ahead_stops_no_later_one(bench):
    assert bench.manager
    assert call(FPGA, 2**63 - 1).outcome != Outcome.OK
    check_serves(bench)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
@pytest.mark.parametrize("again", ["nothing", "the helper", "the service", "the host"])
def test_a_clock_that_moves_by_a_year_stops_no_service(bench, time_of_day, jump, again):
    """Devices leased meanwhile, and devices never used before, are served as well."""
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    time_of_day.microseconds += jump
    if again != "nothing":
        time_of_day.restart_helper()
    if again == "the host":
        bench.kernel.reboot()
    if again in ("the host", "the service"):
        bench.restart()
    if again == "the host":
        bench.manager.plug(
            {"uuid": bench.manager.store.leases()[0].consumer}, None, None
        )
    bench.plug(2, FPGA)
    assert bench.unplug(1) == bench.unplug(2) == 1
    assert bench.kernel.snapshot() == before
    time_of_day.microseconds -= jump
    check_serves(bench)


def test_a_store_that_was_lost_counts_on_from_a_year_ahead(bench, time_of_day):
    """The clock was a year ahead; it is right again, and the store is gone."""
    check_serves(bench)
    time_of_day.microseconds -= YEAR
    time_of_day.restart_helper()
    file_in(bench.state_path).unlink()
    bench.restart()
    check_serves(bench)
    # The counter does not follow a device beyond the bound.
    assert bench.manager.store.next_epoch() <= time_of_day.microseconds + DAY


def test_the_default_clock_is_the_hosts(bench):
    earliest = time.time_ns() // 1000
    bench.plug(1, GPU)
    (lease,) = bench.manager.store.leases()
    assert earliest <= lease.epoch <= time.time_ns() // 1000 + DAY
