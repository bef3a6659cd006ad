# SPDX-License-Identifier: Apache-2.0

"""Each candidate for a flavor leads to the requested devices of a guest.

A host is published. Placement gets Nova's query, and its candidates are allocated
as by the scheduler and plugged: without mappings, as in Nova compute for a flavor,
and with Placement's own mappings.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from os_acc.host.uevents import ErrorRecovery, Uevent
from os_acc.objects.pci import PciAddress
from tests.functional.openstack.accelerator_flavors import (
    AS_IT_IS,
    ONE_GPU,
    ONE_VF,
    PROGRAMMED,
    Asked,
    Candidate,
    Customers,
    Flavor,
)
from tests.functional.openstack.placement import Placement
from tests.functional.openstack.placement_site import (
    FPGA,
    GPU,
    GPU_A,
    GPU_B,
    NAMED,
    NETWORK,
    NIC,
    REGIONS,
    Site,
)
from tests.unit.fpga import GZIP, function_trait, upload


@pytest.fixture(scope="module")
def host(
    placement: Placement, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Yield two FPGA cards of two regions each, two GPUs, and a card with four VFs.

    For tests that leave it unchanged.
    """
    with Site(tmp_path_factory.mktemp("host"), placement) as host:
        host.published()
        yield host


@pytest.fixture
def customers(host: Site) -> Iterator[Customers]:
    """Yield customers of the shared host; end their guests afterwards."""
    customers = Customers(host)
    yield customers
    customers.end()
    host.published()


@pytest.fixture
def site(site: Site) -> Site:
    """Return such a host for one test, which may change it."""
    site.published()
    return site


def different(candidates: list[Candidate]) -> int:
    """Return the number of different allocations, regardless of their mappings."""
    return len({one.taken for one in candidates})


TWO_REGIONS = (PROGRAMMED, PROGRAMMED)
ALL_SORTS = (PROGRAMMED, ONE_GPU, ONE_VF, ONE_GPU)
TWO_OF_TWO = (ONE_VF, ONE_GPU, ONE_VF, ONE_GPU)


@pytest.mark.parametrize(
    ("groups", "policy", "count", "allocations"),
    [
        pytest.param((PROGRAMMED,), "", 4, 4, id="a region"),
        pytest.param((Asked(NETWORK, 4),), "", 1, 1, id="all VFs"),
        pytest.param(TWO_REGIONS, "isolate", 12, 6, id="two regions"),
        pytest.param((ONE_VF, Asked(NETWORK, 3)), "none", 1, 1, id="one card's VFs"),
        pytest.param((AS_IT_IS, ONE_VF), "none", 4, 4, id="a region as it is"),
        pytest.param(ALL_SORTS, "isolate", 8, 4, id="four, isolated"),
        pytest.param(TWO_OF_TWO, "none", 2, 1, id="four, two on one card"),
        pytest.param((ONE_VF,) * 4, "none", 1, 1, id="four, all on one card"),
    ],
)
def test_every_candidate_is_plugged_as_placement_means_it(
    customers: Customers,
    groups: tuple[Asked, ...],
    policy: str,
    count: int,
    allocations: int,
) -> None:
    flavor = Flavor(groups, policy)
    found = customers.candidates(flavor)
    assert (len(found), different(found)) == (count, allocations)
    assert customers.live_on_each(flavor, found) == allocations
    assert customers.live_as_mapped(flavor, found) == count


def test_there_is_no_candidate_where_isolated_groups_have_one_card(
    customers: Customers,
) -> None:
    flavor = Flavor((ONE_VF, ONE_VF), "isolate")
    assert customers.candidates(flavor) == []
    assert len(customers.candidates(Flavor((ONE_VF, ONE_VF), "none"))) == 1


def test_groups_of_one_class_are_told_apart_by_what_a_region_holds(
    host: Site, customers: Customers
) -> None:
    upload(host, function=GZIP)
    host.plug(1, REGIONS[2], function_id=GZIP)
    host.unplug(1)
    host.published()
    with_gzip = Asked(FPGA, traits=(function_trait(GZIP),))
    flavor = Flavor((AS_IT_IS, with_gzip), "isolate")
    found = customers.candidates(flavor)
    assert (len(found), different(found)) == (3, 3)
    holder = host.provider(REGIONS[2]).uuid
    assert {one.mappings["2"] for one in found} == {(holder,)}
    assert customers.live_on_each(flavor, found) == 3


@pytest.mark.parametrize("chosen", [GPU_A, GPU_B])
def test_groups_of_one_class_are_told_apart_by_what_placement_alone_knows(
    site: Site, chosen: str
) -> None:
    customers, rack = Customers(site), "CUSTOM_RACK_7"
    gpu = site.provider(chosen).uuid
    site.placement.set_traits(gpu, rack, *site.known(chosen).traits)
    flavor = Flavor((ONE_GPU, Asked(GPU, traits=(rack,))), "isolate")
    (found,) = customers.candidates(flavor)
    assert found.mappings["2"] == (gpu,)
    assert customers.live_on_each(flavor, [found]) == 1
    customers.end()


# -- several guests ------------------------------------------------------------


def test_what_the_others_have_left_is_plugged_as_well(
    host: Site, customers: Customers
) -> None:
    flavor = Flavor((PROGRAMMED, ONE_GPU), "isolate")
    assert len(customers.candidates(flavor)) == 8
    customers.settle(flavor)
    # The scheduler does not wait for the host's next publication.
    found = customers.candidates(flavor)
    host.published()
    assert customers.candidates(flavor) == found
    assert customers.live_on_each(flavor, found) == len(found) == 3


@pytest.mark.parametrize(
    ("groups", "guests"),
    [
        pytest.param((PROGRAMMED, ONE_VF), 4, id="regions and VFs"),
        pytest.param((ONE_GPU, Asked(NETWORK, 2)), 2, id="GPUs and pairs of VFs"),
        pytest.param((ONE_VF, ONE_VF, ONE_VF), 1, id="three VFs"),
    ],
)
def test_guests_come_until_placement_has_no_candidate_left(
    host: Site, customers: Customers, groups: tuple[Asked, ...], guests: int
) -> None:
    flavor = Flavor(groups, "none")
    before = customers.view()
    while customers.candidates(flavor):
        customers.settle(flavor)
        host.published()
    assert len(customers.guests) == guests
    devices = [device for each in customers.guests.values() for device in each]
    assert len(set(devices)) == len(devices) == guests * flavor.devices
    customers.end()
    host.published()
    assert customers.view() == before


# -- unavailable devices -------------------------------------------------------


def heard(site: Site, address: str, recovery: ErrorRecovery) -> None:
    """Report a device's health by a kernel event, and publish the result."""
    event = Uevent("change", PciAddress.parse(address), recovery)
    site.manager.catalog.health.note(event)
    site.published()


def count(customers: Customers, *asked: Asked) -> int:
    """Return the number of candidates, after a plug of each."""
    flavor = Flavor(asked)
    found = customers.candidates(flavor)
    assert customers.live_on_each(flavor, found) == len(found)
    return len(found)


@pytest.mark.parametrize(
    ("broken", "asked", "whole", "rest"),
    [
        pytest.param(GPU_A, ONE_GPU, 2, 1, id="a GPU"),
        pytest.param(REGIONS[1], PROGRAMMED, 4, 3, id="a region"),
        pytest.param("0000:5e:02.1", Asked(NETWORK, 4), 1, 0, id="a VF"),
    ],
)
def test_what_is_out_of_order_is_no_candidate_until_it_is_mended(
    host: Site, customers: Customers, broken: str, asked: Asked, whole: int, rest: int
) -> None:
    flavor = Flavor((asked,))
    before = customers.candidates(flavor)
    assert len(before) == whole
    assert broken in customers.free()
    heard(host, broken, ErrorRecovery.FAILED)
    assert broken not in customers.free()
    assert count(customers, asked) == rest
    heard(host, broken, ErrorRecovery.SUCCESSFUL)
    assert customers.candidates(flavor) == before


def test_the_vfs_beside_one_that_is_out_of_order_are_candidates(
    host: Site, customers: Customers
) -> None:
    broken = str(host.provider(NIC).device.handles[0].address)
    heard(host, broken, ErrorRecovery.FAILED)
    devices = customers.settle(Flavor((Asked(NETWORK, 3),)))
    assert len(devices) == 3
    assert broken not in devices
    assert count(customers, ONE_VF) == 0
    heard(host, broken, ErrorRecovery.SUCCESSFUL)
    assert count(customers, ONE_VF) == 1


def test_what_is_withdrawn_from_a_guest_is_no_candidate_for_another(
    site: Site,
) -> None:
    customers, gpus = Customers(site), Flavor((ONE_GPU,))
    for _ in range(2):
        customers.settle(gpus)
    site.renew(device_spec=[each for each in NAMED if ":17:" not in each])
    site.published()
    (leaver,) = [uuid for uuid, has in customers.guests.items() if GPU_A in has]
    customers.leave(leaver)
    site.published()
    assert customers.candidates(gpus) == []
    customers.end()
    assert count(customers, ONE_GPU) == 1
