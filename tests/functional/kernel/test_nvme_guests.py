# SPDX-License-Identifier: Apache-2.0

"""NVMe drives and VFs from a plug to a guest that writes to them, and their erasure.

Conformance runs on the drive as on hardware.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from os_acc import exception, service  # noqa: E402
from os_acc.objects.lease import LeaseState  # noqa: E402
from os_acc.testing.conformance import hardware  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import SUDO, RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import (  # noqa: E402
    devices,
    instance,
    plug,
    unplug,
)
from tests.shares import Share  # noqa: E402

from . import lane, machine, sysfs  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

pytestmark = pytest.mark.family("NVMe drive or VF")

BINARIES = Path(sys.executable).parent
CONTEXTS = ("base", "inspect", "image", "nvme_helper")


def states() -> list[LeaseState]:
    return [each.state for each in service.get().store.leases()]


def with_data(host: RealHost, *images: str) -> list[bool]:
    """Return for each namespace whether it has the data of a guest."""
    return [has_data for has_data, _digest in host.root_side.media(*images)]


def a_drive_is_erased_though_the_service_is_killed(host: RealHost) -> None:
    drive = machine.behind(lane.PORT_DRIVE)
    host.start({"address": drive})
    before, guest = host.snapshot(), instance()
    assert devices(plug(guest)) == [drive]
    assert host.binding(drive) == VFIO
    host.root_side.write_in_guest(drive)
    assert host.root_side.attached() == {drive}
    host.let_go()

    # The service that unplugs stops before it erases.
    assert service.get().retrier.stop(60.0)
    assert unplug(guest) == 1
    assert host.snapshot() == before
    assert with_data(host, "drive1") == [True]
    with pytest.raises(exception.NoDeviceAvailable, match="being erased"):
        plug(instance())

    # The next one is killed in the erasure, and the one after it ends it.
    victim = host.another_process("erase", dies_at="erasing")
    victim.wait_until_ready()
    victim.wait_until_killed()
    assert states() == [LeaseState.ERASING]
    host.again()
    host.wait_until(lambda: states() == [])
    assert with_data(host, "drive1", "drive2") == [False, False]
    assert host.snapshot() == before


def a_vf_is_erased_in_the_background_and_its_neighbours_are_not(host: RealHost) -> None:
    vf, other = sysfs.virtual_functions(machine.behind(lane.PORT_VF_DRIVE))
    host.start({"address": vf})
    before, neighbours = host.snapshot(), host.root_side.media("host1", "vf2")
    guest = instance()
    assert devices(plug(guest)) == [vf]
    host.root_side.write_in_guest(vf)
    host.let_go()
    assert with_data(host, "vf1") == [True]

    assert unplug(guest) == 1
    host.wait_until(lambda: states() == [])
    assert with_data(host, "vf1") == [False]
    assert host.root_side.media("host1", "vf2") == neighbours
    assert (host.binding(vf), host.binding(other)) == (Binding(None), Binding(None))
    assert host.snapshot() == before


def a_vf_that_num_vfs_made_is_plugged_and_returned(host: RealHost) -> None:
    pf = machine.behind(lane.PORT_NVME_NODE0)
    host.start({"address": pf, "num_vfs": 2})
    vfs = sysfs.virtual_functions(pf)
    assert len(vfs) == 2
    before, guest = host.snapshot(), instance()
    for _ in range(2):
        (vf,) = devices(plug(guest))
        assert vf in vfs
        assert host.binding(vf) == VFIO
        assert unplug(guest) == 1
        host.wait_until(lambda: states() == [])
        assert host.snapshot() == before
    host.store(f"sys/bus/pci/devices/{pf}/sriov_numvfs", "0")


def a_drive_that_cannot_be_erased_is_reserved_before_a_plug(host: RealHost) -> None:
    """QEMU's drive has neither Sanitize nor, here, a namespace."""
    drive = machine.behind(lane.PORT_NVME_NODE0)
    host.start({"address": drive})
    host.wait_until(lambda: bool(service.get().catalog.health.steps.faults))
    with pytest.raises(exception.NoDeviceAvailable, match="cannot be erased"):
        plug(instance())


JOBS: tuple[Job, ...] = (
    a_drive_that_cannot_be_erased_is_reserved_before_a_plug,
    a_vf_that_num_vfs_made_is_plugged_and_returned,
    a_drive_is_erased_though_the_service_is_killed,
    a_vf_is_erased_in_the_background_and_its_neighbours_are_not,
)


@pytest.fixture(scope="module")
def process(
    the_machine: Machine, ordinary_user: OrdinaryUser, vm_user: OrdinaryUser
) -> Iterator[OrdinaryProcess]:
    root_side = RootSide(the_machine, vm_user)
    process = OrdinaryProcess(ordinary_user, root_side, JOBS, spares=1)
    yield process
    process.close()


@pytest.mark.usefixtures("vf_drive")
@pytest.mark.parametrize("job", JOBS, ids=lambda each: each.__name__)
def test_a_guests_data_is_erased(process: OrdinaryProcess, job: Job) -> None:
    process.run(job)


def conforms(
    user: OrdinaryUser, *checks: hardware.Check, options: tuple[str, ...] = ()
) -> None:
    """Run checks of conformance on the drive, and check the report."""
    drive = machine.behind(lane.PORT_DRIVE)
    before = sysfs.driver(drive), sysfs.override(drive)
    state, report = user.home / "conformance", user.home / "report.json"
    config = user.home / "conformance.conf"
    config.write_text(
        f"[os_acc]\nstate_path = {state}\n"
        "initialize_timeout = 300\nhelper_start_timeout = 240\n"
        f'device_spec = {{"address": "{drive}"}}\n'
        + "".join(f"[os_acc_{each}]\nhelper_command = {SUDO}\n" for each in CONTEXTS)
    )
    ran = user.run(
        *(str(BINARIES / "os-acc"), f"--config-file={config}", "conformance"),
        *(f"--device={drive}", f"--report={report}", "--yes"),
        *(f"--check={each.__name__}" for each in checks),
        *options,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(report.read_text())
    report.unlink()
    assert (found["result"], found["plugin"]["name"]) == ("passed", "nvme")
    assert found["device"]["driver"] == "nvme"
    assert not found["simulated"]
    assert [(each["name"], each["result"]) for each in found["checks"]] == [
        (each.__name__, "passed") for each in checks
    ]
    assert (sysfs.driver(drive), sysfs.override(drive)) == before


KILLS = hardware.kills_lose_nothing


def test_the_plugin_conforms_on_the_drive_as_on_hardware(
    ordinary_user: OrdinaryUser,
) -> None:
    conforms(ordinary_user, *(each for each in hardware.CHECKS if each != KILLS))


# Each killed process has started three helpers: all of the kills take minutes.
@pytest.mark.share(5)
def test_kills_on_the_drive_lose_nothing(
    ordinary_user: OrdinaryUser, share: Share
) -> None:
    # Neither 3, the number of kernels, nor 5 divides 7: shares in a row do them all.
    # A plug and an unplug have more than 7 kills.
    kills = "1/1" if share.number is None else f"{share.number % 7 + 1}/7"
    conforms(ordinary_user, KILLS, options=("--kills", kills))
