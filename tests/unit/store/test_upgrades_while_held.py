# SPDX-License-Identifier: Apache-2.0

"""Upgrades and downgrades while guests hold devices, without a reboot.

The helper's records of the functions are there, and a process holds each device open,
as the QEMU of a guest does. No version but this one exists yet: another schema is a
synthetic step, and another version one that has more fields.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, record
from os_acc.store import codec
from os_acc.testing import TestHost, hosts, instance, request, uuid_of
from os_acc.testing.device_specs import NvmeSpec
from os_acc.testing.mdevs import mtty
from tests.expected_errors import raises
from tests.functional.host.attach.test_variant_drivers import MLX5, SPEC, VF
from tests.unit import acme
from tests.unit.plugins.vgpus import HALF, VFS, tagged, type_of
from tests.unit.store.store_files import (
    STEP,
    execute,
    file_in,
    rows,
    set_steps,
    unlearn,
)

GPU, FREE_GPU, DRIVE, VGPU = "0000:17:00.0", "0000:18:00.0", "0000:d9:00.0", VFS[0]
MDEV = "mtty-1 of mtty"
#: The device of each guest: an IOMMU group of two functions, a mediated device, a
#: function on a variant driver, one that stays on the host's driver, and a drive whose
#: data has to be erased.
HELD = {1: GPU, 2: MDEV, 3: VF, 4: VGPU, 5: DRIVE}
DATA = b"data of a guest."
NAMED = [
    f'{{"address": "{GPU[:-1]}*"}}',
    f'{{"address": "{FREE_GPU[:-1]}*"}}',
    f'{{"address": "{DRIVE}"}}',
    '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}',
    f'{{"address": "{VF}", "vfio_driver": "auto"}}',
    *tagged(VGPU),
]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host where no guest has a device yet."""
    drive = dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=NvmeSpec())
    gpus = (*hosts.gpu("0000:17"), *hosts.gpu("0000:18"))
    functions = (*SPEC.functions, *gpus, hosts.vgpu_card("0000:41"), drive)
    spec = dataclasses.replace(SPEC, functions=functions, mdev_parents=(mtty(),))
    with TestHost(tmp_path / "node", spec, device_spec=NAMED) as host:
        host.kernel.write_medium(DRIVE, 1, DATA)
        yield host


@dataclasses.dataclass(frozen=True)
class Guests:
    """The guests of a host, which hold their devices all the time.

    :ivar before: the host without them.
    :ivar entries: the entries that ``plug`` returned to each.
    :ivar writes: the number of writes to the host since it was made.
    """

    host: TestHost
    before: object
    entries: dict[int, Any]
    writes: int

    @classmethod
    def start(cls, host: TestHost) -> Guests:
        """Plug the device of each guest, and let its QEMU open it."""
        before, entries = _state(host), {}
        for number, device in HELD.items():
            entries[number] = _plug(host, number, device)
            (lease,) = host.manager.store.leases(uuid_of(number))
            host.kernel.hold(lease.uuid if lease.slot else str(lease.address), number)
        return cls(host, before, entries, len(host.kernel.writes()))

    @property
    def are_untouched(self) -> bool:
        """Whether nothing was written to the host since they have their devices."""
        return not self.host.kernel.writes(self.writes)

    def plug_again(self) -> None:
        """Plug each guest once more, as a restarted nova-compute does."""
        entries = {
            number: self.host.manager.plug(instance(number), None, None)
            for number in HELD
        }
        assert entries == self.entries
        assert self.are_untouched

    def refuse_others(self) -> None:
        """Try to plug the devices, one of each kind, for another guest."""
        for device in set(HELD.values()) - {MDEV}:
            # LookupError: it is not even offered.
            with pytest.raises((exception.NoDeviceAvailable, LookupError)):
                _plug(self.host, 9, device)

    def end(self) -> None:
        """End each guest, release its device, and compare the host with before."""
        for lease in self.host.manager.store.leases():
            self.host.kernel.let_go(lease.uuid if lease.slot else str(lease.address))
        for number in HELD:
            assert self.host.unplug(number) == 1
        acme.advance(self.host)
        assert self.host.manager.store.leases() == ()
        assert DATA not in self.host.kernel.read_medium(DRIVE, 1)
        assert _state(self.host) == self.before
        assert claims.claimed() == ()


@pytest.fixture
def guests(host: TestHost) -> Guests:
    return Guests.start(host)


def _plug(host: TestHost, number: int, device: str) -> Any:
    if device != MDEV:
        return host.plug(number, device)
    (provider,) = (
        each
        for each in host.manager.providers()
        if isinstance(each.device.address, MdevType)
    )
    return host.manager.plug(instance(number), *request(provider))


def _state(host: TestHost) -> tuple[object, ...]:
    mdevs = Path(host.root, "sys/bus/mdev/devices")
    uuids = sorted(each.name for each in mdevs.iterdir()) if mdevs.is_dir() else []
    return host.kernel.snapshot(), uuids, type_of(host, VGPU)


def _rewrite(host: TestHost, lease: Lease, fields: dict[str, Any]) -> None:
    """Write the record of a lease as another version does."""
    payload = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    execute(
        file_in(host.state_path),
        f"UPDATE leases SET payload = '{payload}',"
        f" digest = row_digest('leases', uuid, consumer, epoch, '{payload}')"
        f" WHERE uuid = '{lease.uuid}'",
    )


def _fields_of(lease: Lease) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(codec.encode(lease))
    return fields


def _record_of(host: TestHost, function: PciAddress) -> tuple[Path, list[object]]:
    """Return the file of the helper's record of a function, and its values."""
    path = Path(host.root, "run/os_acc", f"{function}.lease")
    _, _, payload = path.read_text(encoding="ascii").partition(" ")
    return path, json.loads(payload)


def _write_record(path: Path, values: list[object]) -> None:
    payload = json.dumps(values)
    path.write_text(f"{record._check(payload)} {payload}\n", encoding="ascii")


def test_another_schema_keeps_the_guests(host, guests, monkeypatch):
    set_steps(monkeypatch, STEP)
    host.restart()
    assert rows(file_in(host.state_path), "PRAGMA user_version") == [(2,)]
    assert host.manager.store.damaged == ()
    guests.plug_again()
    assert host.drivers(GPU, VF, VGPU) == ["vfio-pci", MLX5, "nvidia"]
    assert type_of(host, VGPU) == HALF
    guests.refuse_others()
    guests.end()


def test_the_service_of_before_changes_nothing_until_it_is_restarted(
    host, guests, monkeypatch
):
    """Another process of the new version has upgraded the store meanwhile."""
    with monkeypatch.context() as newer:
        set_steps(newer, STEP)
        host.start()
    for call in (
        lambda: host.manager.plug(instance(1), None, None),
        lambda: host.unplug(1),
        host.restart,
    ):
        with raises(exception.StateReason.TOO_NEW):
            call()
    assert guests.are_untouched
    set_steps(monkeypatch, STEP)
    host.restart()
    guests.plug_again()
    guests.end()


def test_the_copy_of_the_state_takes_the_guests_back_across_a_schema(
    host, guests, monkeypatch
):
    copy = host.directory / "copy of the state"
    shutil.copytree(host.state_path, copy)
    with monkeypatch.context() as newer:
        set_steps(newer, STEP)
        host.restart()
        guests.plug_again()
    shutil.rmtree(host.state_path)
    shutil.copytree(copy, host.state_path)
    host.restart()
    guests.plug_again()
    guests.end()


def test_a_guest_that_is_newer_than_the_copy_keeps_its_device(host, guests):
    """The helper's record of its device is all that is left of its lease."""
    copy = host.directory / "copy of the state"
    shutil.copytree(host.state_path, copy)
    host.plug(6, FREE_GPU)
    host.kernel.hold(FREE_GPU, 6)
    shutil.rmtree(host.state_path)
    shutil.copytree(copy, host.state_path)
    before = len(host.kernel.writes())
    host.restart()
    refused = host.rejected(FREE_GPU)
    assert refused.reason is RejectReason.UNKNOWN_STATE
    assert "which the store has lost" in refused.detail
    assert [host.unplug(number) for number in (6, 7)] == [0, 0]
    assert not host.kernel.writes(before)
    # An operator ends the guest, and gives its device back.
    host.kernel.let_go(FREE_GPU)
    operator_actions.release_device(host.manager, PciAddress.parse(FREE_GPU), None)
    guests.end()


def test_fields_and_values_of_a_newer_version_do_not_hinder_an_older_one(host, guests):
    """The same schema, and fields that this version ignores."""
    for lease in host.manager.store.leases():
        _rewrite(host, lease, _fields_of(lease) | {"colour": "red"})
        for function in lease.functions:
            path, values = _record_of(host, function)
            _write_record(path, [*values, "of a newer version"])
    host.restart()
    guests.plug_again()
    guests.end()


def test_a_version_that_cannot_read_the_leases_leaves_the_guests_alone(
    host, guests, monkeypatch
):
    with monkeypatch.context() as older:
        unlearn(older, LeaseState.HELD)
        host.restart()
        assert host.manager.store.leases() == ()
        assert [host.unplug(number) for number in HELD] == [0] * len(HELD)
        guests.refuse_others()
        assert guests.are_untouched
    host.restart()
    guests.plug_again()
    guests.end()
