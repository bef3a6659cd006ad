# SPDX-License-Identifier: Apache-2.0

"""Required and forbidden traits apply in every form of ``selected_rp``."""

import pytest

from os_acc import exception
from os_acc.testing import instance
from tests.expected_errors import raises

GPU, OTHER_GPU = "0000:17:00.0", "0000:b1:00.0"
#: A trait of the GPU's provider, and one of a network card's provider.
OWN, OTHERS = "CUSTOM_PCI_10DE_2235", "CUSTOM_PCI_8086_1592"
FOREIGN = "CUSTOM_RACK_7"


@pytest.fixture
def provider(bench):
    found = bench.provider(GPU)
    assert OWN in found.device.traits
    assert any(OTHERS in each.device.traits for each in bench.manager.providers())
    return found


@pytest.fixture(params=["uuid", "allocations"])
def selected(request, provider):
    """Return a provider for a flavor with one group, in both forms without mappings."""
    if request.param == "uuid":
        return {"uuid": provider.uuid}
    resources = {provider.device.resource_class: 1}
    return {"allocations": {provider.uuid: {"resources": resources}}}


def flavor(provider, suffix, **traits):
    specs = {f"resources{suffix}:{provider.device.resource_class}": "1"}
    return specs | {f"trait{suffix}:{name}": word for name, word in traits.items()}


@pytest.mark.parametrize("suffix", ["", "1"])
@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({OWN: "forbidden"}, f"has the forbidden trait {OWN}"),
        ({OWN: "required", OTHERS: "required"}, OTHERS),
    ],
    ids=["forbidden", "one of two"],
)
def test_a_provider_with_the_wrong_traits_is_refused(
    bench, provider, selected, suffix, traits, message
):
    before = bench.kernel.snapshot()
    with raises(exception.AllocationReason.NO_ASSIGNMENT, match=message):
        bench.manager.plug(instance(1), selected, flavor(provider, suffix, **traits))
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


@pytest.mark.parametrize(
    "traits",
    [
        {OWN: "required", OTHERS: "forbidden"},
        # A trait of another service: Placement has already applied it.
        {FOREIGN: "required"},
        {FOREIGN: "forbidden"},
    ],
    ids=["own", "foreign", "foreign forbidden"],
)
def test_a_provider_with_the_right_traits_serves(bench, provider, selected, traits):
    specs = flavor(provider, "1", **traits)
    (entry,) = bench.manager.plug(instance(1), selected, specs)
    assert entry["pci_id"] == GPU
    assert bench.manager.plug(instance(1), selected, specs) == [entry]


def test_a_trait_of_a_group_for_others_is_theirs(bench, provider):
    specs = flavor(provider, "1") | {
        "resources2:SRIOV_NET_VF": "1",
        f"trait2:{OWN}": "forbidden",
        "group_policy": "none",
    }
    assert bench.manager.plug(instance(1), {"uuid": provider.uuid}, specs)


def test_what_was_plugged_stays_though_its_traits_have_changed(bench, provider):
    specs = flavor(provider, "1", **{OTHERS: "forbidden"})
    entries = bench.manager.plug(instance(1), {"uuid": provider.uuid}, specs)
    tagged = f'{{"address": "0000:17:00.0", "traits": "{OTHERS}"}}'
    bench.restart(device_spec=[tagged])
    assert OTHERS in bench.provider(GPU).device.traits
    assert bench.manager.plug(instance(1), {"uuid": provider.uuid}, specs) == entries
