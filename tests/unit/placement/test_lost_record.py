# SPDX-License-Identifier: Apache-2.0

"""After the loss of the record, no guest starts without its allocated devices."""

import json

import pytest

from os_acc import exception
from os_acc.placement.sync import Publisher
from os_acc.testing import instance, request
from tests.unit.placement.nova_side import Nova

GPU, AUDIO, NIC = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0"


@pytest.fixture
def nova(bench):
    """Return Nova, which has published the host's devices."""
    found = Nova()
    found.cycle(bench.manager.update_provider_tree)
    return found


@pytest.fixture
def lost(bench, nova, tmp_path):
    """Lose the record while a guest has the GPU; return the GPU's provider."""
    gpu = bench.provider(GPU)
    bench.plug(1, GPU)
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    nova.cycle(bench.manager.update_provider_tree)
    return gpu


def pull_out(bench, nova, state_path):
    """Lose the record, and remove the GPU meanwhile."""
    bench.let_go()
    for each in (AUDIO, GPU):
        bench.kernel.hot_unplug(each)
    bench.restart(state_path=str(state_path))
    nova.cycle(bench.manager.update_provider_tree)


def refused(bench, *providers):
    """Assert that plugs of these providers for other guests are refused."""
    selected, specs = request(*providers)
    for number, each in enumerate((selected, {"allocations": selected["allocations"]})):
        with pytest.raises(exception.DeviceGone):
            bench.manager.plug(instance(2 + number), each, specs)
    assert bench.manager.attached(None) == {}


def test_its_next_guest_does_not_start_without_it(bench, lost):
    refused(bench, lost)


def test_its_next_guest_does_not_start_with_a_part(bench, lost):
    refused(bench, bench.provider(NIC), lost)


def test_its_next_guest_does_not_start_after_direct_publication(
    bench, double, tmp_path
):
    gpu = bench.provider(GPU)
    name = gpu.device.resource_class
    bench.plug(1, GPU)
    for state_path in (bench.state_path, tmp_path / "elsewhere"):
        bench.restart(state_path=str(state_path))
        bench.manager.publisher = Publisher(double.config(), "node1")
        assert bench.manager.publish().refused == ()
        double.providers[gpu.uuid].allocated = {"guest": {name: 1}}
    record = double.providers[gpu.uuid].inventories[name]
    assert (record["total"], record["reserved"]) == (1, 1)
    refused(bench, gpu)


def test_the_provider_is_on_record_by_the_next_start(bench, lost, tmp_path):
    bench.manager.discover()
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    refused(bench, lost)


def test_a_card_that_was_pulled_out_meanwhile_is_as_good_as_leased(
    bench, nova, tmp_path
):
    gpu = bench.provider(GPU)
    pull_out(bench, nova, tmp_path / "elsewhere")
    assert nova.units(gpu.uuid) == {gpu.device.resource_class: (1, 1)}
    refused(bench, gpu)


def test_all_of_its_classes_stay_and_are_reserved_cycle_after_cycle(
    bench, nova, tmp_path
):
    """Units of either class may be allocated; Nova could not remove those."""
    gpu = bench.provider(GPU)
    other, name = "CUSTOM_ACCELERATOR_AAA", gpu.device.resource_class
    record = nova.known.data(gpu.uuid).inventory[name]
    nova.known.update_inventory(gpu.uuid, {name: record, other: record})
    pull_out(bench, nova, tmp_path / "elsewhere")
    for _ in range(3):
        assert nova.units(gpu.uuid) == {name: (1, 1), other: (1, 1)}
        # The same holds once the record has the provider again.
        bench.manager.discover()
        nova.cycle(bench.manager.update_provider_tree)


def test_a_class_that_a_device_had_before_is_not_offered_beside_the_new_one(
    bench, nova, tmp_path
):
    gpu = bench.provider(GPU)
    named = json.dumps({"address": "0000:17:00.*", "resource_class": "CUSTOM_MINE"})
    bench.restart(state_path=str(tmp_path / "elsewhere"), device_spec=[named])
    for _ in range(2):
        nova.cycle(bench.manager.update_provider_tree)
        expected = {"CUSTOM_MINE": (1, 0), gpu.device.resource_class: (1, 1)}
        assert nova.units(gpu.uuid) == expected
