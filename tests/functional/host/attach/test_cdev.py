# SPDX-License-Identifier: Apache-2.0

"""Devices that a monitor opens through iommufd (CONFIG_VFIO_DEVICE_CDEV)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from unittest import mock

import pytest

from os_acc import exception
from os_acc.host import vfio
from os_acc.objects.migration import MigrationSupport
from os_acc.objects.pci import PciAddress
from os_acc.privsep import holders, pci_functions
from os_acc.privsep.outcome import Outcome
from os_acc.testing import (
    FakeKernel,
    HostSpec,
    TestHost,
    hosts,
    instance,
    uuid_of,
)
from os_acc.testing import vfio as fake_vfio
from os_acc.testing.mdevs import mtty
from os_acc.testing.tree import Tree

CARDS = ("0000:3b:00.0", "0000:5e:00.0")
CARD = CARDS[0]
SLOT = "mtty/mtty-1/0"
ANSWER = (7, 4096)
MTTY = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'

Build = Callable[..., TestHost]


@pytest.fixture
def host_of(make_bench: Build) -> Build:
    """Return a function that builds a host with two cards and a parent."""

    def build(*, cdev: bool = True, groups: bool = True) -> TestHost:
        spec = HostSpec(
            tuple(hosts.fpga(each.removesuffix(":00.0")) for each in CARDS),
            mdev_parents=(mtty(migration=ANSWER),),
            vfio_cdev=cdev,
            vfio_groups=groups,
        )
        named = [*(f'{{"address": "{each}"}}' for each in CARDS), MTTY]
        return make_bench(spec, device_spec=named)

    return build


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_an_entry_has_the_node_that_the_kernel_shows(host_of, device):
    host = host_of()
    (entry,) = host.plug(1, device)
    place = (
        f"sys/bus/mdev/devices/{entry['attach_handle_uuid']}"
        if device == SLOT
        else f"sys/bus/pci/devices/{entry['pci_id']}"
    )
    (name,) = os.listdir(os.path.join(host.root, place, "vfio-dev"))
    assert entry["vfio_cdev"] == f"/dev/vfio/devices/{name}"
    assert host.manager.attached(instance(1)) == {uuid_of(1): [entry]}


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_without_such_nodes_an_entry_has_none(host_of, device):
    (entry,) = host_of(cdev=False).plug(1, device)
    assert "vfio_cdev" not in entry


def test_a_device_that_stays_with_the_host_has_none(host_of):
    host = host_of()
    (entry,) = host.plug(1, CARD, attach_target="none")
    assert "vfio_cdev" not in entry


def test_the_node_is_read_anew_for_each_entry(host_of):
    """A reboot takes the numbers back; the lease has recorded none."""
    host = host_of()
    (first,) = host.plug(1, CARDS[0])
    (second,) = host.plug(2, CARDS[1])
    assert first["vfio_cdev"] != second["vfio_cdev"]
    host.kernel.reboot()
    host.restart()
    assert "vfio_cdev" not in host.manager.attached(instance(2))[uuid_of(2)][0]
    (renewed,) = host.plug(2, CARDS[1])
    assert renewed["vfio_cdev"] == first["vfio_cdev"]


def test_a_node_that_udev_has_not_made_yet_is_none(host_of):
    host = host_of()
    (entry,) = host.plug(1, CARD)
    os.unlink(host.root + entry["vfio_cdev"])
    assert vfio.cdev(host.root, CARD) is None


ALONE_AND_BESIDE = pytest.mark.parametrize(
    "groups", [pytest.param(True, id="beside groups"), pytest.param(False, id="alone")]
)


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_with_iommufd_alone_a_device_goes_to_a_guest_and_back(host_of, device):
    host = host_of(groups=False)
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, device)
    assert os.listdir(os.path.join(host.root, "dev/vfio/devices")) == [
        os.path.basename(entry["vfio_cdev"])
    ]
    assert sorted(os.listdir(os.path.join(host.root, "dev/vfio"))) == [
        "devices",
        "vfio",
    ]
    assert host.unplug(1) == 1
    assert host.kernel.snapshot() == before
    assert os.listdir(os.path.join(host.root, "dev/vfio/devices")) == []


@ALONE_AND_BESIDE
@pytest.mark.parametrize("device", [CARD, SLOT])
def test_the_holder_of_a_device_is_named_and_keeps_it(host_of, device, groups):
    host = host_of(groups=groups)
    (entry,) = host.plug(1, device)
    name = entry.get("pci_id", entry["attach_handle_uuid"])
    host.kernel.hold(name, 99, "qemu-kvm", iommufd=True)
    with pytest.raises(exception.DevicesUnreleased) as left:
        host.unplug(1)
    ((_, why),) = left.value.unreleased
    assert isinstance(why, exception.DeviceInUse)
    assert "99" in str(why)
    host.kernel.let_go(name)
    assert host.unplug(1) == 1
    assert host.manager.store.leases() == ()


@ALONE_AND_BESIDE
def test_a_process_that_has_only_opened_the_node_keeps_the_device(host_of, groups):
    """The unbind would wait until the node is closed; no probe finds this process."""
    host = host_of(groups=groups)
    (entry,) = host.plug(1, CARD)
    host.kernel.open_node(entry["vfio_cdev"].removeprefix("/dev/"), 7, "libvirtd")
    assert holders.holders((PciAddress.parse(CARD).parts,)) == (
        Outcome.IN_USE,
        errno.EBUSY,
        ((7, "libvirtd"),),
    )
    assert host.kernel.probe_vfio_device(CARD) == 0


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_a_holder_without_a_process_still_holds(host_of, device, monkeypatch):
    """Its memory is still pinned, or another process has its descriptor."""
    host = host_of(groups=False)
    (entry,) = host.plug(1, device)
    name = entry.get("pci_id", entry["attach_handle_uuid"])
    host.kernel.hold(name)
    monkeypatch.setattr(holders, "_processes", lambda nodes: iter(()))
    assert _holders(name) == (Outcome.IN_USE, errno.EBUSY, ())
    host.kernel.let_go(name)
    assert _holders(name) == (Outcome.OK, 0, ())


def _holders(name: str) -> holders.Holders:
    if ":" in name:
        return holders.holders((PciAddress.parse(name).parts,))
    return holders.mdev_holders(name)


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_the_holder_of_a_device_that_leaves_its_driver_is_named(host_of, device):
    """The kernel has removed the node, which the process has open."""
    host = host_of(groups=False)
    (entry,) = host.plug(1, device)
    name = entry.get("pci_id", entry["attach_handle_uuid"])
    host.kernel.hold(name, 99, "qemu-kvm")
    host.plug(2, CARDS[1])
    bus = "pci" if ":" in name else "mdev"
    with Tree(host.root).transaction() as tree:
        place = tree.follow(f"sys/bus/{bus}/devices/{name}")
        fake_vfio.leave(tree, str(place))
        tree.drop(f"{place}/driver")
    assert _holders(name) == (Outcome.IN_USE, errno.EBUSY, ((99, "qemu-kvm"),))
    assert _holders(CARDS[1]) == (Outcome.OK, 0, ())


def test_with_iommufd_alone_a_foreign_node_is_unsure(host_of):
    host = host_of(groups=False)
    host.plug(1, CARD)
    host.kernel.chown(CARD)
    assert _holders(CARD) == (Outcome.UNSURE, errno.EACCES, ())


def test_vfio_answers_about_migration_through_iommufd(host_of):
    host = host_of(groups=False)
    host.plug(1, SLOT)
    found = host.manager.discover().migrations[host.provider(SLOT).uuid]
    assert found == MigrationSupport(*ANSWER)


def test_only_functions_on_vfio_drivers_are_bound(host_of, monkeypatch):
    """A bind opens the device: a driver of the host may not expect that."""
    host = host_of(groups=False)
    host.plug(1, CARD)
    bound: list[str] = []

    def bind(_kernel: FakeKernel, name: str) -> int:
        bound.append(name)
        return 0

    monkeypatch.setattr(FakeKernel, "probe_vfio_device", bind)
    for card in CARDS:
        number = host.kernel.group(card)
        assert number is not None
        pci_functions.probe_group(number)
    assert bound == [CARD]


def test_where_a_group_has_a_node_no_device_is_bound(host_of, monkeypatch):
    """The node of the group answers without the reset that a bind makes."""
    host = host_of()
    never = mock.Mock(side_effect=AssertionError("a device was bound"))
    monkeypatch.setattr(FakeKernel, "probe_vfio_device", never)
    for device in (CARD, SLOT):
        host.plug(1, device)
        assert host.unplug(1) == 1
