# SPDX-License-Identifier: Apache-2.0

"""A drive whose lease is damaged, on a host that has been rebooted since.

Without ``--force``, a release frees no drive that has the data of a guest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.objects.pci import PciAddress
from os_acc.privsep.kernel import COPIES
from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.host.operator_commands import release
from tests.unit.acme import advance
from tests.unit.store.store_files import execute, file_in, lose_store

DRIVE, OTHER = "0000:41:00.0", "0000:42:00.0"
DATA = b"data of a guest." * 100
EVERY = json.dumps({"address": "*:*:*.*"})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    drives = (hosts.nvme_disk("0000:41", 1), hosts.nvme_disk("0000:42", 2))
    with TestHost(tmp_path, HostSpec(drives)) as host:
        host.plug(1, DRIVE)
        host.kernel.write_medium(DRIVE, 1, DATA)
        yield host


def damage(host: TestHost, change: str = "'rubbish'") -> None:
    """Damage the record of the lease, and boot the host again."""
    execute(file_in(host.state_path), f"UPDATE leases SET payload = {change}")
    host.kernel.reboot()


def restart(host: TestHost, **options: Any) -> None:
    host.options.update(options)
    host.restart()


def disable(host: TestHost) -> None:
    kept = json.dumps({"address": "*:*:*.*", "allow_no_erase": True})
    restart(host, enabled_plugins=["pci"], device_spec=[kept])


def bind_at_boot(host: TestHost) -> None:
    spec = json.dumps({"address": "*:*:*.*", "prebound": True})
    restart(host, device_spec=[spec])
    host.bind(DRIVE, "vfio-pci")


def name_no_more(host: TestHost) -> None:
    restart(host, device_spec=[json.dumps({"address": OTHER})])


WAYS: dict[str, Callable[[TestHost], None]] = {
    "prebound": bind_at_boot,
    "without its plugin": disable,
    "not named": name_no_more,
    "as before": lambda host: restart(host),
}


def check_kept(host: TestHost) -> None:
    """Check that no guest gets the drive, and that it has its data."""
    restart(
        host,
        enabled_plugins=["nvme", "pci"],
        device_spec=[EVERY, json.dumps({"address": DRIVE, "prebound": True})],
    )
    for number in range(10, 13):
        with contextlib.suppress(exception.NoDeviceAvailable, exception.HostError):
            host.plug(number)
        assert DRIVE not in host.plugged(number)
    assert host.kernel.read_medium(DRIVE, 1).startswith(DATA)


@pytest.mark.parametrize(
    ("way", "change"),
    [
        *((way, "'rubbish'") for way in WAYS),
        ("as before", "replace(payload, 'held', 'later')"),
    ],
)
def test_a_release_frees_no_drive_that_is_not_erased(host, way, change):
    damage(host, change)
    WAYS[way](host)
    release(host, DRIVE)
    check_kept(host)
    if host.drivers(DRIVE) == ["vfio-pci"]:
        host.bind(DRIVE, "nvme")
    host.restart()
    release(host, DRIVE)
    advance(host, 1)
    assert host.manager.store.lease_of(PciAddress.parse(DRIVE)) is None
    assert DATA not in host.kernel.read_medium(DRIVE, 1)
    host.plug(20, DRIVE)


def test_a_drive_that_was_pulled_out_is_erased_once_it_is_back(host):
    damage(host)
    drive = host.kernel.hot_unplug(DRIVE)
    host.restart()
    release(host, DRIVE)
    with pytest.raises(exception.DeviceGone, match="has not erased it"):
        release(host, DRIVE)
    host.kernel.hot_plug(drive)
    check_kept(host)


def test_force_frees_it_with_its_data(host):
    damage(host)
    drive = host.kernel.hot_unplug(DRIVE)
    host.restart()
    release(host, DRIVE, force=True)
    release(host, DRIVE, force=True)
    host.kernel.hot_plug(drive)
    host.plug(2, DRIVE)


@pytest.mark.parametrize("force", [False, True])
def test_a_drive_that_left_with_a_damaged_record_has_to_come_back(host, force):
    lose_store(host)
    Path(host.kernel.path("run/os_acc", f"{DRIVE}.lease")).write_text("rubbish")
    drive = host.kernel.hot_unplug(DRIVE)
    with pytest.raises(exception.DeviceGone, match="its record is damaged"):
        release(host, DRIVE, force=force)
    host.kernel.hot_plug(drive)
    release(host, DRIVE)
    advance(host, 1)
    assert host.manager.store.lease_of(PciAddress.parse(DRIVE)) is None
    assert DATA not in host.kernel.read_medium(DRIVE, 1)


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_copy_that_cannot_be_read_concerns_its_drive_alone(host, kind):
    (copy,) = Path(host.kernel.path(COPIES)).iterdir()
    copy.unlink()
    if kind == "directory":
        copy.mkdir()
    else:
        copy.symlink_to(copy)
    host.restart()
    host.plug(2, OTHER)
    host.unplug(2)
    advance(host, 1)
    assert [str(each.address) for each in host.manager.store.leases()] == [DRIVE]
    lose_store(host)
    host.kernel.reboot()
    check_kept(host)
