# SPDX-License-Identifier: Apache-2.0

"""Erasures and releases of drives that a reboot or a hot plug has moved.

Without ``--force``, each drive is erased once, and no lease waits for another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.helper.errors import DeviceClaimed
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, record
from os_acc.privsep.kernel import COPIES
from os_acc.testing import HostSpec, TestHost, hosts, instance
from tests.functional.host.operator_commands import release
from tests.unit.acme import advance

DRIVE, OTHER, FREE = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
DATA = b"data of a guest." * 100
SWAPPED = {DRIVE: OTHER, OTHER: DRIVE}
EVERY = json.dumps({"address": "*:*:*.*", "prebound": True})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    drives = (hosts.nvme_disk("0000:41", 1), hosts.nvme_disk("0000:42", 2))
    with TestHost(tmp_path, HostSpec(drives), device_spec=[EVERY]) as host:
        yield host


def check_free(host: TestHost) -> None:
    """Check that no lease and no record is left."""
    assert not host.manager.store.leases()
    assert not claims.claimed()


def check_both_erased(host: TestHost) -> None:
    """Erase two drives at their new addresses, and check that nothing is left."""
    advance(host, 2)
    for address in (OTHER, FREE):
        assert DATA not in host.kernel.read_medium(address, 1)
    check_free(host)


def lose_store(host: TestHost) -> None:
    Path(host.state_path, "os_acc.sqlite").unlink()


def plug(host: TestHost, number: int, address: str) -> None:
    host.plug(number, address)
    host.kernel.write_medium(address, 1, DATA)


def reboot(host: TestHost, moved: dict[str, str], prebound: tuple[str, ...]) -> None:
    host.kernel.reboot(moved)
    for address in prebound:
        host.bind(address, "vfio-pci")
    host.restart()


@pytest.fixture
def lost(host: TestHost) -> TestHost:
    """A host without the helper's files, whose two prebound drives have moved.

    Two guests had the drives; the address of the first one is empty now.
    """
    for number, address in enumerate((DRIVE, OTHER), 1):
        host.bind(address, "vfio-pci")
        plug(host, number, address)
    for copy in Path(host.kernel.path(COPIES)).iterdir():
        copy.unlink()
    reboot(host, {DRIVE: OTHER, OTHER: FREE}, (OTHER, FREE))
    return host


def test_no_guest_gets_a_prebound_drive_of_another_by_its_lease_alone(lost):
    with pytest.raises(exception.DeviceChanged, match="S64HNE0R500001"):
        lost.manager.plug(instance(2), None, None)


def test_no_new_guest_gets_a_prebound_drive_by_its_lease_alone(lost):
    with pytest.raises(exception.DeviceInUse, match=f"is the device of lease.*{OTHER}"):
        lost.plug(3, FREE)
    assert lost.kernel.read_medium(FREE, 1).startswith(DATA)


def test_drives_are_erased_that_only_their_leases_know(lost):
    for number in (1, 2):
        lost.unplug(number)
    for address in (OTHER, FREE):
        lost.bind(address, "nvme")
    check_both_erased(lost)


def test_a_drive_that_first_showed_no_serial_number_is_erased_once(host):
    host.bind(DRIVE, "vfio-pci")
    release(host, DRIVE, "vfio-pci")
    host.kernel.reboot()
    host.restart()
    advance(host, 1)
    check_free(host)


def test_the_record_of_a_drive_does_not_claim_the_one_that_replaces_it(host):
    plug(host, 1, DRIVE)
    host.unplug(1)
    for address in (DRIVE, OTHER):
        host.kernel.hot_unplug(address)
    host.kernel.hot_plug(hosts.nvme_disk("0000:43", 1))
    host.kernel.hot_plug(hosts.nvme_disk("0000:41", 2))
    host.restart()
    advance(host, 1)
    check_free(host)
    assert DATA not in host.kernel.read_medium(FREE, 1)
    host.plug(2, DRIVE)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_prebound_drive_of_a_lost_store_is_erased(host, is_moved):
    plug(host, 1, DRIVE)
    lose_store(host)
    place = OTHER if is_moved else DRIVE
    moved = SWAPPED if is_moved else {}
    reboot(host, moved, (DRIVE, OTHER))
    release(host, place, "vfio-pci")
    advance(host, 1)
    assert DATA not in host.kernel.read_medium(place, 1)
    check_free(host)


def test_a_damaged_copy_of_a_drive_that_is_gone_keeps_no_other_drive(host):
    """The others show serial numbers, and the copy has the name of another one."""
    host.plug(1, DRIVE)
    (copy,) = Path(host.kernel.path(COPIES)).iterdir()
    host.kernel.hot_unplug(DRIVE)
    lose_store(host)
    host.kernel.reboot()
    copy.write_text("rubbish\n")
    host.restart()
    check_free(host)
    host.plug(2, OTHER)


def test_a_damaged_copy_keeps_the_drives_that_it_may_be_about(host):
    host.plug(1, DRIVE)
    (copy,) = Path(host.kernel.path(COPIES)).iterdir()
    lose_store(host)
    host.kernel.reboot()
    copy.write_text("rubbish\n")
    assert [each[:2] for each in claims.claimed()] == [
        (PciAddress.parse(DRIVE).parts, record.UNREADABLE)
    ]
    host.bind(DRIVE, "vfio-pci")
    assert [each[:2] for each in claims.claimed()] == [
        (PciAddress.parse(DRIVE).parts, record.UNREADABLE)
    ]


def test_two_drives_that_have_changed_places_are_both_erased(host):
    plug(host, 1, DRIVE)
    plug(host, 2, OTHER)
    host.unplug(1)
    host.unplug(2)
    reboot(host, SWAPPED, ())
    advance(host, 2)
    for address in (DRIVE, OTHER):
        assert DATA not in host.kernel.read_medium(address, 1)
    check_free(host)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((DRIVE,), (), id="hidden at its plug"),
        pytest.param((), (DRIVE,), id="another one is hidden at its address"),
    ],
)
def test_an_erasure_follows_its_drive(host, before, after):
    """A drive on vfio-pci shows no serial number."""
    for address in before:
        host.bind(address, "vfio-pci")
    plug(host, 1, DRIVE)
    host.unplug(1)
    reboot(host, SWAPPED, after)
    advance(host, 1)
    assert DATA not in host.kernel.read_medium(OTHER, 1)
    check_free(host)


@pytest.mark.parametrize(
    ("prebound", "driver", "error"),
    [
        ((), None, f"instance-1.*{DRIVE}"),
        ((DRIVE, OTHER), "vfio-pci", "may be the device of instance"),
    ],
)
def test_the_moved_drive_of_an_instance_is_not_released(host, prebound, driver, error):
    plug(host, 1, DRIVE)
    reboot(host, SWAPPED, prebound)
    with pytest.raises(exception.Conflict, match=error):
        release(host, OTHER, driver)
    assert host.kernel.read_medium(OTHER, 1).startswith(DATA)


def older_store(host: TestHost, unplugs: bool) -> None:
    """Give a drive to a second guest, and restore the store of the first one's time."""
    plug(host, 1, DRIVE)
    if unplugs:
        host.unplug(1)
    store = Path(host.state_path, "os_acc.sqlite")
    older = store.read_bytes()
    if not unplugs:
        host.unplug(1)
    advance(host, 1)
    plug(host, 2, DRIVE)
    store.write_bytes(older)
    host.restart()


def test_the_unplug_of_a_lease_of_an_older_store_leaves_the_next_guest_its_drive(host):
    older_store(host, unplugs=False)
    host.unplug(1)
    assert host.drivers(DRIVE) == ["vfio-pci"]
    assert not host.manager.store.leases()
    release(host, DRIVE)
    advance(host, 1)
    check_free(host)


def test_an_erasure_of_an_older_store_leaves_the_next_guest_its_drive(host):
    older_store(host, unplugs=True)
    advance(host, 1)
    assert not host.manager.store.leases()
    assert host.kernel.read_medium(DRIVE, 1).startswith(DATA)
    release(host, DRIVE)
    advance(host, 1)
    check_free(host)


def test_a_lease_of_an_older_store_leaves_the_next_guest_its_record(host):
    """The drive in its slot shows no serial number, and its own does elsewhere."""
    older_store(host, unplugs=False)
    (copy,) = Path(host.kernel.path(COPIES)).iterdir()
    before = copy.read_text()
    reboot(host, SWAPPED, (DRIVE,))
    with pytest.raises(DeviceClaimed):
        host.manager.plug(instance(1), None, None)
    assert copy.read_text() == before


def test_a_release_leaves_the_drive_that_is_at_the_address_of_a_moved_one(host):
    """The lease cannot follow: another one still has the present address."""
    reboot(host, {}, (DRIVE,))
    plug(host, 1, DRIVE)
    plug(host, 2, OTHER)
    for address in (DRIVE, OTHER):
        host.kernel.hot_unplug(address)
    for slot, number in (("0000:41", 3), ("0000:42", 1), ("0000:43", 2)):
        host.kernel.hot_plug(hosts.nvme_disk(slot, number))
    host.unplug(1)
    assert host.drivers(DRIVE) == ["nvme"]
    host.unplug(2)
    check_both_erased(host)


def test_the_record_of_a_moved_drive_claims_it_where_it_shows_its_serial_number(host):
    """The drive that is now at its address is on vfio-pci, and hides its own."""
    plug(host, 1, DRIVE)
    reboot(host, SWAPPED, (DRIVE,))
    with pytest.raises(exception.OsAccError):
        host.manager.plug(instance(1), None, None)
    (lease,) = host.manager.store.leases()
    places = [each[0] for each in claims.claimed() if each[1] == lease.uuid]
    assert places == [PciAddress.parse(OTHER).parts]


def test_a_serial_number_that_the_driver_has_yet_to_read_is_none(host):
    """The nvme driver starts during the scan, as seen on Linux 6.1."""
    drive = PciAddress.parse(DRIVE)
    (path,) = Path(host.kernel.path("sys/bus/pci/devices", DRIVE)).glob("nvme/*/serial")
    shown = path.read_text()
    path.write_text("(efault)\n")
    assert pci_functions.serial(drive) == ""
    scanned = host.manager.discover().host
    path.write_text(shown)
    assert scanned.function(drive).identity.drive == ""
    verification.check_same(scanned, verification.read_prior(host.root, [drive]))
