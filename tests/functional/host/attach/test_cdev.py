# SPDX-License-Identifier: Apache-2.0

"""Devices that a monitor opens through iommufd (CONFIG_VFIO_DEVICE_CDEV)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.host import vfio
from os_acc.testing import HostSpec, TestHost, hosts, instance, request, uuid_of
from os_acc.testing.mdevs import mtty

CARDS = ("0000:3b:00.0", "0000:5e:00.0")
CARD = CARDS[0]
SLOT = "mtty/mtty-1/0"
MTTY = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'

Build = Callable[..., TestHost]


@pytest.fixture
def host_of(tmp_path: Path) -> Iterator[Build]:
    """Return a function that builds a host with two cards and a parent."""
    made: list[TestHost] = []

    def build(*, cdev: bool = True, groups: bool = True) -> TestHost:
        spec = HostSpec(
            tuple(hosts.fpga(each.removesuffix(":00.0")) for each in CARDS),
            mdev_parents=(mtty(),),
            vfio_cdev=cdev,
            vfio_groups=groups,
        )
        named = [*(f'{{"address": "{each}"}}' for each in CARDS), MTTY]
        made.append(TestHost(tmp_path, spec, device_spec=named))
        return made[-1].__enter__()

    yield build
    for each in made:
        each.close()


@pytest.mark.parametrize("device", [CARD, SLOT])
def test_an_entry_has_the_node_that_the_kernel_shows(
    host_of: Build, device: str
) -> None:
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
def test_without_such_nodes_an_entry_has_none(host_of: Build, device: str) -> None:
    (entry,) = host_of(cdev=False).plug(1, device)
    assert "vfio_cdev" not in entry


def test_a_device_that_stays_with_the_host_has_none(host_of: Build) -> None:
    host = host_of()
    selected, specs = request(host.provider(CARD))
    specs["accel1:attach_target"] = "none"
    (entry,) = host.manager.plug(instance(1), selected, specs)
    assert "vfio_cdev" not in entry


def test_the_node_is_read_anew_for_each_entry(host_of: Build) -> None:
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


def test_a_node_that_udev_has_not_made_yet_is_none(host_of: Build) -> None:
    host = host_of()
    (entry,) = host.plug(1, CARD)
    os.unlink(host.root + entry["vfio_cdev"])
    assert vfio.cdev(host.root, CARD) is None
