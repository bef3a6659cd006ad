# SPDX-License-Identifier: Apache-2.0

"""A write that fails is named and undone, and affects no other instance."""

from __future__ import annotations

import errno
import functools
import mmap
import os
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep import holders, kernel
from os_acc.privsep.outcome import Outcome
from os_acc.testing import (
    FakeKernel,
    HostSpec,
    hosts,
    instance,
    request,
)
from tests.expected_errors import raises
from tests.functional.host.operator_commands import release

GPU, AUDIO, FPGA, DISK = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0", "0000:d9:00.0"


def test_the_writes_of_a_plug_and_an_unplug(bench):
    """The stress lane strikes each of them by each fault."""

    def writes() -> list[tuple[str, str]]:
        found = []
        for write in bench.kernel.writes():
            if write.outcome == "ENOENT":
                # The audio function cannot be reset.
                continue
            *_, place, name = write.path.replace("/driver/", "/").split("/")
            found.append((write.text if name == "drivers_probe" else place, name))
        return found

    names = ["driver_override", "unbind", "drivers_probe"]
    bench.plug(1, GPU)
    taken = writes()
    bench.unplug(1)
    assert taken == [(each, name) for each in (GPU, AUDIO) for name in names]
    names.append("driver_override")
    returned = [(each, name) for each in (GPU, AUDIO) for name in names]
    assert writes()[len(taken) :] == [(GPU, "reset"), *returned]


@pytest.mark.parametrize(
    ("address", "attribute", "error"),
    [
        (GPU, "driver_override", errno.EAGAIN),
        (GPU, "unbind", errno.EINVAL),
        (AUDIO, "drivers_probe", errno.EBUSY),
    ],
)
def test_a_write_that_fails_in_a_plug_is_named_and_undone(
    bench, address, attribute, error
):
    before = bench.kernel.snapshot()
    bench.kernel.fail(address, attribute, error)
    with raises(exception.StepReason.REFUSED) as caught:
        bench.plug(1, GPU)
    assert (caught.value.errno, caught.value.address) == (error, address)
    assert errno.errorcode[error] in str(caught.value)
    assert attribute in str(caught.value)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()
    bench.plug(2, FPGA)
    bench.plug(1, GPU)
    assert bench.drivers(GPU, AUDIO, FPGA) == ["vfio-pci"] * 3


@pytest.mark.parametrize("attribute", ["driver_override", "unbind", "drivers_probe"])
def test_a_write_without_effect_in_a_plug_is_found_and_undone(bench, attribute):
    before = bench.kernel.snapshot()
    bench.kernel.ignore(GPU, attribute)
    # An override without effect leads the probe to the host's driver, an
    # unbind without effect leaves it there, a probe leaves none.
    with raises(exception.StepReason.BIND, match=GPU):
        bench.plug(1, GPU)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_write_that_hangs_in_a_plug_ends_by_its_deadline(bench):
    before = bench.kernel.snapshot()
    selected = bench.provider(GPU)
    bench.kernel.hang(AUDIO, "unbind")
    with bench.short_timeout(), pytest.raises(exception.DeviceStuck) as caught:
        bench.plug(1, GPU)
    assert "cannot give" in "".join(caught.value.__notes__)
    bench.kernel.wait_until_blocked()
    # Its lease stays until the write has ended; no other instance gets the device.
    assert bench.lease_state() is LeaseState.RELEASING
    assert bench.provider(GPU) == selected
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(2, GPU)
    bench.let_go()
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize(
    ("address", "attribute"), [(GPU, "reset"), (AUDIO, "drivers_probe")]
)
def test_a_write_that_fails_in_an_unplug_puts_the_device_in_quarantine(
    bench, address, attribute
):
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.fail(address, attribute, errno.EIO)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    ((name, why),) = caught.value.unreleased
    assert name == GPU
    assert isinstance(why, exception.HostStepFailed)
    assert (why.address, why.errno) == (address, errno.EIO)
    assert caught.value.__cause__ is why
    assert attribute in str(caught.value)
    assert bench.lease_state() is LeaseState.QUARANTINED
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(2, GPU)
    with pytest.raises(exception.DeviceQuarantined, match=GPU):
        bench.manager.plug(instance(1), None, None)
    release(bench, GPU)
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize(
    ("attribute", "nth"),
    [("driver_override", 1), ("unbind", 1), ("driver_override", 2)],
)
def test_a_write_without_effect_in_an_unplug_never_passes_for_done(
    bench, attribute, nth
):
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.ignore(GPU, attribute, times=None, nth=nth)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert [name for name, _ in caught.value.unreleased] == [GPU]
    assert bench.lease_state() is LeaseState.QUARANTINED
    bench.kernel.lift()
    release(bench, GPU)
    assert bench.kernel.snapshot() == before


def test_a_probe_without_effect_is_repeated(bench):
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.ignore(GPU, "drivers_probe")
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_a_function_that_vfio_pci_refuses_is_reported_and_undone(make_bench):
    spec = HostSpec((hosts.fpga("0000:05"),), denylist=((0x10EE, 0x5000),))
    bench = make_bench(spec)
    before = bench.kernel.snapshot()
    with raises(exception.StepReason.BIND, match="no driver") as caught:
        bench.plug(1, "0000:05:00.0")
    assert caught.value.hint
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


@pytest.mark.parametrize("nth", [1, 2])
def test_an_identity_that_cannot_be_read_is_named_and_undone(bench, monkeypatch, nth):
    """The first read precedes the first write; the second follows the last write."""
    before, provider, reads = bench.kernel.snapshot(), bench.provider(FPGA), shared()

    class Unreadable(FakeKernel):
        def read(self, path: str) -> str:
            if path.endswith(f"{FPGA}/modalias"):
                reads[0] += 1
                if reads[0] == nth:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().read(path)

    monkeypatch.setattr(kernel, "current", Unreadable(bench.root))
    with raises(exception.StepReason.REFUSED, match="modalias: EIO") as caught:
        bench.manager.plug(instance(1), *request(provider))
    assert caught.value.errno == errno.EIO
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def shared() -> mmap.mmap:
    """Return a byte that forked workers count in as well."""
    return mmap.mmap(-1, 1)


# -- holders -----------------------------------------------------------------


@pytest.mark.parametrize("held", [True, False])
def test_where_a_node_is_not_ours_to_open_somebody_else_looks(bench, held):
    bench.plug(1, FPGA)
    if held:
        bench.kernel.hold(FPGA)
    bench.kernel.chown(FPGA)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    ((_address, why),) = caught.value.unreleased
    assert isinstance(why, exception.DeviceInUse)
    assert why.holders == (((4711, "qemu-system-x86"),) if held else ())
    assert bench.lease_state() is LeaseState.RELEASING


def test_the_look_of_the_other_context_decides(bench, monkeypatch):
    """``inspect`` may open files that ``base`` may not: CAP_DAC_READ_SEARCH."""
    before = bench.kernel.snapshot()
    bench.plug(1, FPGA)
    bench.kernel.chown(FPGA)
    monkeypatch.setattr(holders, "_holders", lambda nodes, groups: (Outcome.OK, 0, ()))
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_a_device_that_a_process_uses_is_not_taken_from_it(bench):
    before = bench.kernel.snapshot()
    provider = bench.provider(DISK)
    assert provider.device.handles
    fds = Path(bench.root, "proc/77/fd")
    fds.mkdir(parents=True)
    (fds / "3").symlink_to("/dev/nvme1n1")
    (fds.parent / "comm").write_text("dd\n")
    with pytest.raises(exception.DeviceInUse) as caught:
        bench.plug(1, DISK)
    assert caught.value.holders == ((77, "dd"),)
    assert bench.kernel.snapshot() == before
    assert bench.kernel.writes() == []
    assert bench.manager.store.leases() == ()


def test_a_failure_to_go_back_is_told_with_its_cause(bench):
    bench.kernel.fail(GPU, "drivers_probe", errno.EIO, times=None)
    with raises(exception.StepReason.REFUSED) as caught:
        bench.plug(1, GPU)
    assert caught.value.errno == errno.EIO
    (note,) = caught.value.__notes__
    assert GPU in note
    assert bench.lease_state() is LeaseState.QUARANTINED


# -- epochs ------------------------------------------------------------------


@pytest.fixture
def let_the_host_see(let_a_device_see):
    """Return a function that shows the FPGA the epoch of a call."""
    return functools.partial(let_a_device_see, FPGA)


def test_a_store_that_counts_behind_the_host_catches_up(bench, let_the_host_see):
    """The store was lost and the clock went back."""
    before = bench.kernel.snapshot()
    ahead = bench.manager.store.next_epoch() + 10**12
    bench.plug(1, FPGA)
    bench.unplug(1)
    let_the_host_see(ahead)
    (entry,) = bench.plug(1, FPGA)
    (lease,) = bench.manager.store.leases()
    assert lease.epoch > ahead
    assert bench.plug(1, FPGA) == [entry]
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_a_failure_after_catching_up_is_still_recorded(bench, let_the_host_see):
    bench.plug(1, FPGA)
    ahead = bench.manager.store.next_epoch() + 10**12
    let_the_host_see(ahead)
    bench.kernel.fail(FPGA, "unbind")
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    assert isinstance(caught.value.unreleased[0][1], exception.HostStepFailed)
    assert bench.lease_state() is LeaseState.QUARANTINED
