# SPDX-License-Identifier: Apache-2.0

"""Two services with eight threads each lose none of sixty-four devices.

All that they share is on disk, and locked as on a real host; each has privileged
helpers that are processes of their own.
"""

from __future__ import annotations

import collections
import os

import pytest

from tests import run_figures
from tests.shares import Share
from tests.stress import processes, simulated_host, soak
from tests.stress.processes import Child
from tests.stress.soak import DEVICES, SharedHost

PROCESSES, THREADS = 2, 8
#: The number of plugs with their unplugs, by the profile of Hypothesis.
CYCLES = {"stress": 5_000}
_FEW = 200
#: The cycles are divided among so many shares.
SHARES = 30


@pytest.fixture
def cycles(pytestconfig: pytest.Config, share: Share) -> int:
    profile = pytestconfig.getoption("--hypothesis-profile")
    return share.reduce(CYCLES[profile], SHARES) if profile in CYCLES else _FEW


def test_no_device_is_given_twice_and_none_is_lost(request, place, cycles, seed):
    print(f"to have the same choices again: --hypothesis-seed={seed}")
    shared = SharedHost(place)
    pristine = shared.kernel.snapshot()
    shares = _share_out(cycles, PROCESSES * THREADS)
    end = os.path.join(place, "end")

    services = [
        Child(lambda n=number: soak.serve(shared, f"{seed}, {n}", shares[n::PROCESSES]))
        for number in range(PROCESSES)
    ]
    observer = Child(lambda: soak.observe(shared, end))
    ends = [each.wait() for each in services]
    os.close(os.open(end, os.O_CREAT))
    seen = observer.wait()

    deeds: collections.Counter[str] = collections.Counter()
    for ended in ends:
        assert not ended.trouble, ended.trouble
        done, troubles = ended.value
        assert not troubles, (
            f"{len(troubles)} threads failed, the first:\n{troubles[0]}"
        )
        deeds += done
    assert not seen.trouble, seen.trouble
    assert deeds["plug and unplug cycles"] == cycles
    assert deeds["refused for want of a device"]
    assert seen.value["looks from outside"]
    assert os.listdir(shared.in_use) == []
    assert shared.kernel.snapshot() == pristine
    processes.result(lambda: _plug_all(shared))
    assert shared.kernel.snapshot() == pristine
    for deed, number in (deeds + seen.value).items():
        run_figures.note(request.node, f"soak: {deed}", number)


def _share_out(whole: int, shares: int) -> list[int]:
    return [whole // shares + (number < whole % shares) for number in range(shares)]


def _plug_all(shared: SharedHost) -> None:
    """Check that nothing is leased any more, and every device can be."""
    manager = shared.serve()
    assert manager.store.leases() == ()
    providers = manager.providers()
    consumers: dict[str, set[str]] = {}
    for number, provider in enumerate(providers):
        consumer = f"{number:08x}-0000-4000-8000-000000000000"
        places = [str(provider.device.address)] * len(provider.device.handles)
        entries = manager.plug(
            {"uuid": consumer}, *simulated_host.request_of([provider], places)
        )
        consumers[consumer] = {entry["pci_id"] for entry in entries}
    assert set().union(*consumers.values()) == soak.offered(providers)
    assert len(soak.offered(providers)) == DEVICES
    for consumer, devices in consumers.items():
        assert manager.unplug({"uuid": consumer}) == len(devices)
    shared.stop()
