# SPDX-License-Identifier: Apache-2.0

"""A record of one device permits no step on another that root does not name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, claims, pci_functions
from os_acc.privsep.nvme import steps
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from tests.unit import vendor_steps
from tests.unit.privsep.nvme_drives import DATA
from tests.unit.privsep.root_config import DENIED, GPU, LEASE, limit_to, named

NAMED, OTHER = PciAddress(0, 0xD8, 0, 0), PciAddress(0, 0xD9, 0, 0)
OTHER_GPU = PciAddress(0, 0x65, 0, 0)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeKernel]:
    """Yield a host with two drives and two GPUs; root names one of each."""
    drives = hosts.nvme_disk("0000:d8", 1), hosts.nvme_disk("0000:d9", 2)
    gpus = hosts.gpu("0000:17")[0], hosts.gpu("0000:65")[0]
    fake = FakeKernel.build(tmp_path, HostSpec((*drives, *gpus)))
    for each in (NAMED, OTHER):
        fake.write_medium(each, 1, DATA)
    limit_to(fake.root, named(NAMED), named(GPU))
    with fake.installed(), privileged_here():
        yield fake


def target(place: PciAddress, *more: str) -> tuple[object, ...]:
    return (place.parts, pci_functions.identity(place), *more)


def reserve(
    place: PciAddress, epoch: int, serial: str = "", *, plugin: str = "nvme"
) -> CallResult:
    given = (target(place, "", "", serial),)
    group = pci_functions.group(place)
    more = ("host", "", plugin, plugin)
    (answer,) = claims.reserve(group, given, epoch, 30_000, LEASE, *more)
    return CallResult(*answer)


def erase(place: PciAddress, epoch: int) -> CallResult:
    given = (target(place, "", "", ""),)
    more = ((("format",),), "return", "")
    return CallResult(*steps.erase(place.parts, given, (), epoch, 30_000, LEASE, *more))


def test_the_number_of_another_drive_is_not_recorded(fake):
    pci_functions.rebind(NAMED, "vfio-pci")
    answer = reserve(NAMED, 1, pci_functions.serial(OTHER))
    assert (answer.outcome, answer.step) == (Outcome.CHANGED, "serial")
    assert erase(OTHER, 2).outcome == DENIED
    assert fake.read_medium(OTHER, 1).startswith(DATA)


def test_a_number_that_no_drive_shows_gives_no_other_drive_to_the_lease(fake):
    for each in (NAMED, OTHER):
        pci_functions.rebind(each, "vfio-pci")
    assert reserve(NAMED, 1, "INVENTED").outcome == Outcome.OK
    given = (target(NAMED, "nvme", "", ""),)
    more = (2, 30_000, True, LEASE, "nvme")
    binding.give_back(pci_functions.group(NAMED), given, *more)
    assert reserve(OTHER, 3).outcome == DENIED
    assert erase(OTHER, 4).outcome == DENIED
    assert fake.read_medium(OTHER, 1).startswith(DATA)


def test_a_number_is_no_address(fake):
    answer = reserve(GPU, 1, str(OTHER_GPU), plugin="acme")
    assert (answer.outcome, answer.step) == (Outcome.CHANGED, "serial")
    more = (2, 30_000, LEASE, (), "return", "acme")
    members = (target(OTHER_GPU),)
    found = vendor_steps.describe(OTHER_GPU.parts, members, (), *more)
    assert found.outcome == DENIED
