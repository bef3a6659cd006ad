# SPDX-License-Identifier: Apache-2.0

"""``take`` binds a function to a VFIO driver, and to no driver of the host."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, functions, record
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import DriverSpec, FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here

NIC, HOST_DRIVER = "0000:3b:00.0", "ice"
LEASE = "11111111-1111-4111-8111-111111111111"
PLACE = PciAddress.parse(NIC)
OK = CallResult(Outcome.OK)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    """Return a kernel with a network card and a variant of vfio-pci."""
    spec = HostSpec(
        (hosts.nic("0000:3b", name="eno1"),),
        drivers=(DriverSpec("acme-vfio-pci", manages_dma=True), DriverSpec("acme")),
    )
    with privileged_here(), FakeKernel.build(tmp_path, spec).installed() as kernel:
        yield kernel


def take(kernel: FakeKernel, driver: str) -> CallResult:
    target = (PLACE.parts, functions.identity(PLACE), driver)
    (found,) = binding.take(kernel.group(NIC), (target,), 1, 30_000, LEASE)
    return CallResult(*found)


def test_a_variant_is_bound(kernel: FakeKernel) -> None:
    assert take(kernel, "acme-vfio-pci") == OK
    assert functions.driver(PLACE) == "acme-vfio-pci"


@pytest.mark.parametrize("driver", ["acme", "nvidia", "vfiopci", "novfio"])
def test_a_driver_of_the_host_is_not_bound(kernel: FakeKernel, driver: str) -> None:
    before = kernel.writes()
    refused = CallResult(Outcome.REFUSED, errno.EPERM, "driver", HOST_DRIVER)
    assert take(kernel, driver) == refused
    assert kernel.writes() == before
    assert not record.exists(PLACE)


@pytest.mark.parametrize("driver", ["nope_vfio_pci", "vfio", "_vfio"])
def test_a_variant_that_is_not_loaded_leaves_all_as_it_is(
    kernel: FakeKernel, driver: str
) -> None:
    before = kernel.writes()
    refused = CallResult(Outcome.REFUSED, errno.ENODEV, "driver", HOST_DRIVER)
    assert take(kernel, driver) == refused
    assert kernel.writes() == before
    assert not record.exists(PLACE)


def test_a_name_with_a_blank_at_its_end_is_none(kernel: FakeKernel) -> None:
    assert take(kernel, "acme-vfio-pci ").outcome == Outcome.INVALID


def test_a_function_stays_on_its_driver_until_it_is_given_back(
    kernel: FakeKernel,
) -> None:
    before = kernel.writes()
    assert take(kernel, HOST_DRIVER) == OK
    assert record.exists(PLACE)
    target = (PLACE.parts, functions.identity(PLACE), HOST_DRIVER, "")
    (found,) = binding.give_back(kernel.group(NIC), (target,), 1, 30_000, True, LEASE)
    assert CallResult(*found) == OK
    assert not record.exists(PLACE)
    assert kernel.writes() == before
