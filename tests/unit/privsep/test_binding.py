# SPDX-License-Identifier: Apache-2.0

"""``take`` binds functions to VFIO drivers alone, and leaves those that have parts."""

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, pci_functions, record
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import DriverSpec, FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec

GPU, AUDIO, NIC = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0"
LEASE = "11111111-1111-4111-8111-111111111111"
MDEV = "6f0c9b52-2d21-4a2e-9d3c-000000000001"
HOST_DRIVER = "ice"
PLACE = PciAddress.parse(NIC)
OK = CallResult(Outcome.OK)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    """Return a kernel with a network card and a parent of mediated devices."""
    display, audio = hosts.gpu("0000:17")
    parent = MdevParentSpec(GPU, 2, (MdevTypeSpec("nvidia-558"),))
    display = dataclasses.replace(display, mdevs=parent)
    spec = HostSpec(
        (display, audio, hosts.nic("0000:3b", name="eno1", vfs=4)),
        drivers=(DriverSpec("acme-vfio-pci", manages_dma=True), DriverSpec("acme")),
    )
    with privileged_here(), FakeKernel.build(tmp_path, spec).installed() as kernel:
        yield kernel


def take(kernel: FakeKernel, *addresses: str) -> list[CallResult]:
    targets = []
    for address in map(PciAddress.parse, addresses):
        targets.append((address.parts, pci_functions.identity(address)))
    group = kernel.group(addresses[0])
    found = binding.take(group, tuple(targets), 1, 30_000, LEASE)
    return [CallResult(*each) for each in found]


def take_on(kernel: FakeKernel, driver: str) -> CallResult:
    """Take the network card for a guest, on this driver."""
    target = (PLACE.parts, pci_functions.identity(PLACE), driver)
    (found,) = binding.take(kernel.group(NIC), (target,), 1, 30_000, LEASE)
    return CallResult(*found)


def make_vfs(kernel: FakeKernel) -> None:
    kernel.write(f"{kernel.root}/sys/bus/pci/devices/{NIC}/sriov_numvfs", "1")


def make_mdev(kernel: FakeKernel) -> None:
    types = f"{kernel.root}/sys/class/mdev_bus/{GPU}/mdev_supported_types"
    kernel.write(f"{types}/nvidia-558/create", MDEV)


def test_a_pf_with_a_vf_is_refused(kernel):
    make_vfs(kernel)
    before = kernel.writes()
    assert take(kernel, NIC) == [CallResult(Outcome.IN_PARTS, errno.EBUSY, NIC, "1 VF")]
    assert kernel.writes() == before
    assert not record.exists(PLACE)


@pytest.mark.parametrize("first", [GPU, AUDIO])
def test_no_function_of_a_group_is_touched_if_one_is_a_parent(kernel, first):
    make_mdev(kernel)
    before = kernel.writes()
    second = AUDIO if first == GPU else GPU
    answers = dict(zip((first, second), take(kernel, first, second), strict=True))
    parts = f"the mediated device {MDEV}"
    assert answers[GPU] == CallResult(Outcome.IN_PARTS, errno.EBUSY, GPU, parts)
    assert answers[AUDIO].outcome == Outcome.UNREACHED
    assert kernel.writes() == before
    assert not record.exists(PciAddress.parse(AUDIO))


def test_a_mediated_device_of_another_parent_is_none_of_the_function(kernel):
    make_mdev(kernel)
    assert take(kernel, NIC) == [OK]


def test_a_device_below_the_function_may_be_the_parent(kernel):
    place = f"{kernel.root}/sys/bus/pci/devices/{GPU}/drm/card1/{MDEV}"
    os.makedirs(place)
    os.symlink(place, f"{kernel.root}/sys/bus/mdev/devices/{MDEV}")
    assert take(kernel, GPU, AUDIO)[0].outcome == Outcome.IN_PARTS


def test_a_function_divided_while_another_one_is_taken_is_not_unbound(
    kernel, monkeypatch
):
    """Its driver may have needed seconds to release the function before."""
    rebind = pci_functions.rebind

    def slow(address, name):
        rebind(address, name)
        make_mdev(kernel)

    monkeypatch.setattr(pci_functions, "rebind", slow)
    first, second = take(kernel, AUDIO, GPU)
    assert (first, second.outcome) == (OK, Outcome.IN_PARTS)
    assert pci_functions.driver(PciAddress.parse(GPU)) == "nouveau"


def test_a_call_may_be_repeated_after_a_guest_has_made_vfs(kernel):
    """With ``enable_sriov`` of vfio-pci, a guest's PF may have VFs."""
    assert take(kernel, NIC) == [OK]
    below = Path(kernel.root, "sys/bus/pci/devices", NIC, "virtfn0")
    below.symlink_to("../0000:3b:02.0")
    assert take(kernel, NIC) == [OK]


def test_a_pf_that_was_prepared_with_vfs_is_refused(kernel):
    """It is on vfio-pci without a record: the VFs may be those of other guests."""
    assert take(kernel, NIC) == [OK]
    record.remove(PLACE)
    below = Path(kernel.root, "sys/bus/pci/devices", NIC, "virtfn0")
    below.symlink_to("../0000:3b:02.0")
    assert take(kernel, NIC)[0].outcome == Outcome.IN_PARTS


def test_no_function_is_taken_if_the_mediated_devices_are_unknown(kernel, monkeypatch):
    listdir = os.listdir

    def fail(path):
        if str(path).endswith("mdev/devices"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", fail)
    assert take(kernel, NIC) == [CallResult(Outcome.REFUSED, errno.EIO, "devices")]
    assert not record.exists(PLACE)


def test_a_variant_is_bound(kernel):
    assert take_on(kernel, "acme-vfio-pci") == OK
    assert pci_functions.driver(PLACE) == "acme-vfio-pci"


@pytest.mark.parametrize(
    ("driver", "error"),
    [
        *((each, errno.EPERM) for each in ("acme", "nvidia", "vfiopci", "novfio")),
        *((each, errno.ENODEV) for each in ("nope_vfio_pci", "vfio", "_vfio")),
    ],
)
def test_neither_a_driver_of_the_host_nor_a_missing_variant_is_bound(
    kernel, driver, error
):
    before = kernel.writes()
    refused = CallResult(Outcome.REFUSED, error, "driver", HOST_DRIVER)
    assert take_on(kernel, driver) == refused
    assert kernel.writes() == before
    assert not record.exists(PLACE)


def test_a_name_with_a_blank_at_its_end_is_none(kernel):
    assert take_on(kernel, "acme-vfio-pci ").outcome == Outcome.INVALID


def test_a_function_stays_on_its_driver_until_it_is_given_back(kernel):
    before = kernel.writes()
    assert take_on(kernel, HOST_DRIVER) == OK
    assert record.exists(PLACE)
    target = (PLACE.parts, pci_functions.identity(PLACE), HOST_DRIVER, "")
    (found,) = binding.give_back(kernel.group(NIC), (target,), 1, 30_000, True, LEASE)
    assert CallResult(*found) == OK
    assert not record.exists(PLACE)
    assert kernel.writes() == before
