# SPDX-License-Identifier: Apache-2.0

"""A plug that has both another image of the guest and NUMA cells of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from tests.expected_errors import Expected, raises
from tests.functional.host.attach.numa_host import (
    CARD,
    CELLS,
    FAR,
    NEAR,
    VF_NODES,
    set_nodes,
)
from tests.functional.host.attach.test_rebuild import images_of, vm_image, vm_images
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PCI_B, PF
from tests.unit.fpga import CRYPTO, GZIP, OTHER_CARD, held


def again(host: TestHost, image: str, *cells: int) -> list[dict[str, Any]]:
    """Plug the recorded accelerators of the guest."""
    info = instance(1) | {"image_id": image, "numa_cells": list(cells)}
    return host.manager.plug(info, None, None)


def refuse(host: TestHost, error: Expected, image: str, *cells: int) -> None:
    """Check that a plug fails, and that it changes neither host nor leases."""

    def state() -> object:
        return host.kernel.snapshot(), host.manager.store.leases(), host.programmings()

    before = state()
    with raises(error):
        again(host, image, *cells)
    assert state() == before


@pytest.fixture
def host(make_fpgas) -> TestHost:
    """Return a host with a NIC's VFs in several cells, and a card with a region."""
    nic = hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=4)
    host = make_fpgas(HostSpec((nic, hosts.dfl("0000:af", 1)), nodes=CELLS))
    set_nodes(host, VF_NODES)
    return host


@pytest.fixture
def images(host) -> dict[str, str]:
    return images_of(host)


def plug_both(host: TestHost, image: str, **requested: str) -> list[dict[str, Any]]:
    selected, specs = request(host.provider(CARD), host.provider(OTHER_CARD))
    specs |= {"accel1:numa_policy": "required", "accel2:numa_policy": "preferred"}
    specs |= {f"accel2:{key}": value for key, value in requested.items()}
    return host.manager.plug(instance(1) | {"image_id": image}, selected, specs)


@pytest.mark.parametrize("order", [*itertools.permutations(["image", "cells", "both"])])
def test_image_and_cells_are_applied_in_each_order(host, images, order):
    first, region = plug_both(host, images[GZIP])
    assert first["pci_id"] == FAR
    for each in order:
        image = images[CRYPTO] if each != "cells" else ""
        again(host, image, *([0] if each != "image" else []))
    assert set(host.plugged(1)) == {NEAR, OTHER_CARD}
    assert held(host, OTHER_CARD) == CRYPTO
    assert host.programmings() == ["done"] * 2
    entries = again(host, images[CRYPTO], 0)
    assert [each["uuid"] for each in entries] == [first["uuid"], region["uuid"]]


@pytest.mark.parametrize("cell", [0, 2])
def test_a_refused_image_leaves_the_devices_and_the_cells(host, images, cell):
    """The VF is replaced in cell 0, and stays in cell 2."""
    plug_both(host, images[GZIP], function_id=GZIP)
    refuse(host, exception.InvalidExtraSpec, images[CRYPTO], cell)
    host.kernel.hold(OTHER_CARD)
    other = vm_image(host, "vm", bitstream_name="crypto")
    refuse(host, exception.InvalidExtraSpec, other, cell)
    host.kernel.let_go(OTHER_CARD)
    again(host, images[GZIP], cell)
    assert (NEAR if cell == 0 else FAR) in host.plugged(1)


def test_a_device_in_use_leaves_the_cells_and_the_image(host, images):
    plug_both(host, images[GZIP])
    host.kernel.hold(OTHER_CARD)
    refuse(host, exception.DeviceInUse, images[CRYPTO], 0)
    refuse(host, exception.DeviceInUse, images[CRYPTO], 2)


def test_no_device_in_the_cells_leaves_the_image(host, images):
    plug_both(host, images[GZIP])
    refuse(host, exception.NoDeviceReason.NUMA_POLICY, images[CRYPTO], 3)


# -- a region with a PCI function in each cell -------------------------------------


@pytest.fixture
def region(two_functions) -> TestHost:
    acme_card.with_one_image(two_functions)
    return two_functions


def plug_region(host: TestHost, image: str = "") -> None:
    selected, specs = request(host.provider(PF))
    specs["accel1:numa_policy"] = "required"
    host.manager.plug(instance(1) | {"image_id": image}, selected, specs)
    assert host.plugged(1) == [PCI_A]
    set_nodes(host, {PCI_A: 1, PCI_B: 0})


def test_the_image_decides_what_the_other_device_reaches(region, programmed):
    plug_region(region)
    images = vm_images(region)
    # PCI B, in the guest's cell, will reach the other function.
    refuse(region, exception.RegionReason.MISMATCH, images[GZIP], 0)
    (entry,) = again(region, images[CRYPTO], 0)
    assert (entry["pci_id"], entry["function_id"]) == (PCI_B, CRYPTO)
    assert acme_card.held_functions(region) == (GZIP, CRYPTO)
    assert len(programmed) == 1
