# SPDX-License-Identifier: Apache-2.0

"""A device is erased when its guest gives it back, and at no other event."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.functional.host.attach.numa_host import (
    CARD,
    FAR,
    NEAR,
    VF_NODES,
    again,
    plug,
    with_vfs,
)
from tests.functional.host.attach.test_erasure import fill
from tests.unit import acme
from tests.unit.acme import advance, erasing

GPU, OTHER = "0000:17:00.0", "0000:b1:00.0"
REQUIRED = {"accel1:numa_policy": "required"}


@pytest.fixture
def host(make_bench, install_plugins) -> TestHost:
    """Return the two-socket host; a plugin erases every device."""
    install_plugins(acme="tests.unit.acme:ErasesPci")
    return make_bench()


@pytest.fixture
def of_vfs(make_bench, install_plugins) -> TestHost:
    """Return a host with VFs in several cells, which a plugin erases."""
    install_plugins(acme="tests.unit.acme:ErasesPci")
    return with_vfs(make_bench)


def held(host: TestHost, number: int) -> list[Lease]:
    return [*host.manager.store.leases(uuid_of(number))]


def check_kept(host: TestHost, number: int, address: str) -> None:
    """Check that an instance has its device with its data, and has to be erased."""
    advance(host)
    assert acme.has_data(host.root, address)
    (lease,) = held(host, number)
    assert (str(lease.address), lease.state) == (address, LeaseState.HELD)
    assert lease.needs_erase
    assert erasing(host) == []


def check_erased_at_the_end(host: TestHost, number: int, address: str) -> None:
    assert host.unplug(number) == 1
    assert erasing(host) == [address]
    advance(host)
    assert not acme.has_data(host.root, address)
    assert host.manager.store.leases() == ()


# -- never while the instance has the device ---------------------------------------


@pytest.mark.parametrize("with_request", [False, True], ids=["reboot", "rebuild"])
def test_a_guest_that_starts_again_keeps_its_data(host, with_request):
    fill(host, address=GPU)
    asked = request(host.provider(GPU)) if with_request else (None, None)
    (entry,) = host.manager.plug(instance(1), *asked)
    assert entry["pci_id"] == GPU
    check_kept(host, 1, GPU)
    check_erased_at_the_end(host, 1, GPU)


def test_a_reboot_of_the_host_and_a_restart_keep_the_data(host):
    fill(host, address=GPU)
    host.kernel.reboot()
    host.restart()
    check_kept(host, 1, GPU)
    host.manager.plug(instance(1), None, None)
    check_kept(host, 1, GPU)
    check_erased_at_the_end(host, 1, GPU)


def test_a_rekeyed_lease_keeps_the_data_and_the_debt(host):
    fill(host, address=GPU)
    host.manager.rekey(uuid_of(1), uuid_of(2))
    assert held(host, 1) == []
    check_kept(host, 2, GPU)
    # The migration is reverted.
    host.manager.rekey(uuid_of(2), uuid_of(1))
    check_kept(host, 1, GPU)
    check_erased_at_the_end(host, 1, GPU)


def test_a_failed_plug_of_another_instance_keeps_the_data(host):
    fill(host, address=GPU)
    host.kernel.fail(OTHER, "drivers_probe")
    with pytest.raises(exception.HostStepFailed, match=OTHER):
        host.plug(2, OTHER)
    host.kernel.lift()
    assert erasing(host) == [OTHER]
    advance(host)
    check_kept(host, 1, GPU)


# -- a device that is replaced for the cells of the guest --------------------------


def test_a_replaced_device_is_erased_and_the_other_one_is_not(of_vfs):
    (first,) = plug(of_vfs, CARD, cells=None, **REQUIRED)
    assert first["pci_id"] == FAR
    acme.write_medium(of_vfs.root, FAR)
    (entry,) = again(of_vfs, [0])
    assert (entry["pci_id"], entry["uuid"]) == (NEAR, first["uuid"])
    assert erasing(of_vfs) == [FAR]
    acme.write_medium(of_vfs.root, NEAR)
    advance(of_vfs)
    assert not acme.has_data(of_vfs.root, FAR)
    check_kept(of_vfs, 1, NEAR)
    check_erased_at_the_end(of_vfs, 1, NEAR)


def test_the_guest_does_not_go_back_to_a_device_before_it_is_erased(of_vfs):
    plug(of_vfs, CARD, cells=None, **REQUIRED)
    acme.write_medium(of_vfs.root, FAR)
    again(of_vfs, [0])
    advance(of_vfs, 1)
    with pytest.raises(exception.OsAccError, match="cell"):
        again(of_vfs, [VF_NODES[FAR]])
    assert [str(each.address) for each in held(of_vfs, 1)] == [NEAR]
    assert erasing(of_vfs) == [FAR]
    advance(of_vfs)
    (entry,) = again(of_vfs, [VF_NODES[FAR]])
    assert entry["pci_id"] == FAR
    assert not acme.has_data(of_vfs.root, FAR)
    assert erasing(of_vfs) == [NEAR]
