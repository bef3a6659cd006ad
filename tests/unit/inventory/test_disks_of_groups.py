# SPDX-License-Identifier: Apache-2.0

"""A disk goes to a guest with others of its IOMMU group if it is erased with them."""

import dataclasses
import json

import pytest

from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, hosts
from os_acc.testing.specs import FunctionSpec

DISK, SECOND = "0000:d9:00.0", "0000:d9:00.1"


def with_disk_behind(leader: FunctionSpec, class_code: int = 0x010802) -> HostSpec:
    """Return a host with a disk as second function of a card, in its group.

    :param leader: the first function, with the address of :data:`DISK`.
    """
    disk = dataclasses.replace(
        hosts.nvme_disk("0000:d9", 2), address=SECOND, group_of=DISK
    )
    if class_code != disk.class_code:
        disk = dataclasses.replace(disk, class_code=class_code, driver="", devices=())
    return HostSpec((leader, disk))


def named(*tagged: str) -> list[str]:
    """Return the entries that name both functions, these ones with the tag."""
    return [
        json.dumps(
            {"address": each} | ({"allow_no_erase": True} if each in tagged else {})
        )
        for each in (DISK, SECOND)
    ]


@pytest.mark.parametrize("class_code", [0x010802, 0x010601], ids=["NVMe", "SATA"])
@pytest.mark.parametrize(
    "device_spec", [[f'{{"address": "{DISK}"}}'], named()], ids=["card", "both"]
)
def test_a_disk_that_nothing_erases_keeps_its_card_on_the_host(
    make_bench, class_code, device_spec
):
    bench = make_bench(
        with_disk_behind(hosts.gpu("0000:d9")[0], class_code),
        device_spec=device_spec,
        enabled_plugins=["pci", "nvme"],
    )
    refused = bench.rejected(DISK)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert refused.detail == f"{SECOND}: {RejectReason.NO_ERASE.value}"


USB = 0x0C0330


@pytest.mark.parametrize("names", [DISK, "*:d9:*.*"])
def test_the_usb_controller_of_a_graphics_card_goes_along_without_the_tag(
    make_bench, names
):
    bench = make_bench(
        with_disk_behind(hosts.gpu("0000:d9")[0], USB),
        device_spec=[f'{{"address": "{names}"}}'],
    )
    bench.plug(1, DISK)
    assert bench.drivers(DISK, SECOND) == ["vfio-pci", "vfio-pci"]


def test_the_usb_controller_of_another_card_needs_the_tag(make_bench):
    bench = make_bench(
        with_disk_behind(dataclasses.replace(hosts.fpga("0000:d9"), address=DISK), USB),
        device_spec=named(),
    )
    refused = bench.rejected(DISK)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert refused.detail == f"{SECOND}: {RejectReason.NO_ERASE.value}"


@pytest.mark.parametrize(
    "device_spec",
    [[f'{{"address": "{DISK}", "allow_no_erase": true}}'], named(SECOND)],
    ids=["card", "disk"],
)
def test_a_disk_with_the_tag_goes_along(make_bench, device_spec):
    bench = make_bench(
        with_disk_behind(hosts.gpu("0000:d9")[0]), device_spec=device_spec
    )
    bench.plug(1, DISK)
    assert bench.drivers(DISK, SECOND) == ["vfio-pci", "vfio-pci"]


def test_disks_of_one_group_are_erased_together(make_bench):
    bench = make_bench(
        with_disk_behind(hosts.nvme_disk("0000:d9", 1)),
        device_spec=named(),
        enabled_plugins=["pci", "nvme"],
    )
    bench.plug(1, DISK)
    for each in (DISK, SECOND):
        bench.kernel.write_medium(each, 1, b"data of a guest.")
    bench.unplug(1)
    for attempt in bench.manager.retrier.continue_erasures():
        attempt.result(60)
    assert bench.manager.store.leases() == ()
    for each in (DISK, SECOND):
        assert b"data" not in bench.kernel.read_medium(each, 1)


@pytest.mark.parametrize("tagged", [DISK, SECOND])
def test_disks_of_one_group_are_all_erased_or_none(make_bench, tagged):
    bench = make_bench(
        with_disk_behind(hosts.nvme_disk("0000:d9", 1)),
        device_spec=named(tagged),
        enabled_plugins=["pci", "nvme"],
    )
    assert bench.manager.providers() == ()
    for each, other in ((DISK, SECOND), (SECOND, DISK)):
        refused = bench.rejected(each)
        assert refused.reason is RejectReason.NOT_ISOLATED
        assert f"only one of it and {each} has the tag" in refused.detail
        assert other in refused.detail
