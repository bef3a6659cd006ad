# SPDX-License-Identifier: Apache-2.0

"""Two NVMe drives of one vendor that show one serial number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts, instance, specs
from os_acc.testing.device_specs import NvmeSpec
from tests.functional.host.operator_commands import release
from tests.functional.host.plugins.nvme_drive import DATA, lease_of
from tests.unit.acme import advance

FIRST, SECOND = "0000:41:00.0", "0000:42:00.0"
OTHER_DATA = b"data of the operator." * 100


def drive(place: str) -> FunctionSpec:
    """Return a drive whose simulated medium has a name of its own."""
    spec = hosts.nvme_disk(place[:7], int(place[5:7]))
    return dataclasses.replace(spec, nvme=NvmeSpec(serial=f"medium {place}"))


@pytest.fixture(autouse=True)
def equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(spec: specs.FunctionSpec) -> tuple[specs.ClassDeviceSpec, ...]:
        return tuple(
            dataclasses.replace(
                each,
                attributes=tuple((dict(each.attributes) | {"serial": "VB1"}).items()),
            )
            if each.subsystem == "nvme"
            else each
            for each in spec.devices
        )

    monkeypatch.setattr(specs.FunctionSpec, "class_devices", property(shown))


@pytest.fixture(params=[False, True], ids=["on nvme", "prebound"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestHost]:
    """Return a host whose guest had a drive before a second one was plugged in."""
    spec = [json.dumps({"address": "*:*:*.*", "prebound": True})]
    with TestHost(tmp_path, HostSpec((drive(FIRST),)), device_spec=spec) as host:
        if request.param:
            host.bind(FIRST, "vfio-pci")
        host.plug(1, FIRST)
        host.kernel.write_medium(FIRST, 1, DATA)
        host.kernel.hot_plug(drive(SECOND))
        host.kernel.write_medium(SECOND, 1, OTHER_DATA)
        yield host


def check_kept(host: TestHost, first: str = FIRST, second: str = SECOND) -> None:
    """Check that both drives have their data."""
    assert host.kernel.read_medium(first, 1).startswith(DATA)
    assert host.kernel.read_medium(second, 1).startswith(OTHER_DATA)


@pytest.mark.parametrize("revision", [0, 7])
def test_drives_with_one_serial_number_are_not_offered(tmp_path, revision):
    other = dataclasses.replace(drive(SECOND), revision=revision)
    with TestHost(tmp_path, HostSpec((drive(FIRST), other))) as host:
        for place, other in ((FIRST, SECOND), (SECOND, FIRST)):
            rejected = host.rejected(place)
            assert rejected.reason is RejectReason.EQUAL_NUMBER
            assert other in rejected.detail


def test_a_drive_with_the_number_of_a_leased_one_is_not_offered(host):
    host.restart()
    rejected = host.rejected(SECOND)
    assert (rejected.reason, FIRST in rejected.detail) == (
        RejectReason.EQUAL_NUMBER,
        True,
    )
    assert host.plugged(1) == [FIRST]


def test_no_drive_is_erased_before_the_other_one_has_left(host):
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    advance(host, 2)
    check_kept(host)
    lease = lease_of(host)
    assert (lease.state, str(lease.address)) == (LeaseState.QUARANTINED, FIRST)
    host.kernel.hot_unplug(SECOND)
    release(host, FIRST)
    advance(host, 2)
    assert not host.manager.store.leases()
    assert DATA not in host.kernel.read_medium(FIRST, 1)


def test_no_guest_starts_with_a_drive_after_they_may_have_changed_places(host):
    host.kernel.reboot({FIRST: SECOND, SECOND: FIRST})
    host.restart()
    with pytest.raises(exception.DeviceChanged, match="one serial number"):
        host.manager.plug(instance(1), None, {})
    check_kept(host, SECOND, FIRST)


def test_no_drive_is_erased_after_they_may_have_changed_places(host):
    host.kernel.reboot({FIRST: SECOND, SECOND: FIRST})
    host.restart()
    with pytest.raises(exception.DevicesUnreleased, match=r"one serial number|another"):
        host.unplug(1)
    advance(host, 2)
    assert lease_of(host).state is LeaseState.QUARANTINED
    check_kept(host, SECOND, FIRST)


def test_the_release_of_a_hidden_twin_leaves_the_record_of_a_guests_drive(tmp_path):
    with TestHost(tmp_path, HostSpec((drive(FIRST),))) as host:
        host.plug(1, FIRST)
        host.kernel.write_medium(FIRST, 1, DATA)
        host.kernel.hot_plug(drive(SECOND))
        host.bind(SECOND, "vfio-pci")
        host.restart()
        release(host, SECOND, "vfio-pci")
        advance(host, 2)
        (lease,) = host.manager.store.leases()
        assert [each[:2] for each in claims.claimed()] == [
            (PciAddress.parse(FIRST).parts, lease.uuid)
        ]
