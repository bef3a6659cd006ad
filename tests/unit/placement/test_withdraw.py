# SPDX-License-Identifier: Apache-2.0

"""Without an initialized library, no free unit stays on offer, and leases are known."""

import pytest

import os_acc
from os_acc import exception, service
from os_acc.store import snapshot
from os_acc.testing import instance, uuid_of
from tests.unit.placement.nova_side import NODE, Nova
from tests.unit.store.store_files import execute, file_in

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"


@pytest.fixture
def nova(bench):
    """Return Nova, with the providers of a node whose service has just ended."""
    found = Nova()
    bench.plug(1, FPGA)
    found.cycle(bench.manager.update_provider_tree)
    return found


@pytest.fixture
def failed(bench, nova, monkeypatch):
    """Return the configuration of a process in which initialize() fails."""
    monkeypatch.setattr(service, "nodes", service.Nodes())
    config = bench.config(device_spec=["not JSON"], plug_timeout=float("nan"))
    with pytest.raises(exception.InvalidConfiguration):
        os_acc.initialize(config=config)
    return config


def withdraw(nova: Nova, config, **arguments) -> tuple[int, set[str]]:
    counted = []
    changed = nova.cycle(
        lambda tree, name: counted.append(
            os_acc.withdraw_providers(tree, name, config=config, **arguments)
        )
    )
    return counted[0], changed


def units(nova: Nova) -> dict[str, tuple[int, int]]:
    return {
        name: found
        for name, uuid in nova.ours().items()
        for found in nova.units(uuid).values()
    }


def test_withdrawn_providers_offer_no_unit(nova, failed):
    before = units(nova)
    assert {reserved for _total, reserved in before.values()} == {0}
    counted, changed = withdraw(nova, failed)
    assert counted == len(before)
    assert units(nova) == {name: (total, total) for name, (total, _) in before.items()}
    assert changed == set(nova.ours().values())
    assert withdraw(nova, failed) == (counted, set())


def test_an_initialized_node_offers_them_again(nova, failed, bench):
    before = {uuid: nova.known.data(uuid) for uuid in nova.known.get_provider_uuids()}
    withdraw(nova, failed)
    nova.cycle(bench.restart().update_provider_tree)
    assert before == {
        uuid: nova.known.data(uuid) for uuid in nova.known.get_provider_uuids()
    }


def test_they_are_recognized_without_a_store(nova, failed, bench):
    file_in(bench.state_path).write_bytes(b"damaged")
    with pytest.raises(exception.StateUnavailable):
        os_acc.recorded(failed)
    counted, changed = withdraw(nova, failed)
    assert counted == len(changed) > 0


def test_a_class_that_others_added_is_reserved_as_well(nova, failed, bench):
    uuid = bench.provider(GPU).uuid
    (name,) = nova.units(uuid)
    record = nova.known.data(uuid).inventory[name]
    nova.known.update_inventory(uuid, {name: record, "CUSTOM_Z": {**record}})
    withdraw(nova, failed)
    assert set(nova.units(uuid).values()) == {(1, 1)}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_class_that_nova_adds_is_removed(nova, failed, bench, by_name):
    gpu = bench.provider(GPU)
    ((name, record),) = nova.known.data(gpu.uuid).inventory.items()
    for uuid in nova.ours().values():
        classes = nova.known.data(uuid).inventory | {"CUSTOM_Z": {**record}}
        nova.known.update_inventory(uuid, classes)
    added = {gpu.name if by_name else gpu.uuid: ["CUSTOM_Z"]}
    withdraw(nova, failed, added=added)
    assert nova.units(gpu.uuid) == {name: (1, 1)}
    assert nova.units(bench.provider(FPGA).uuid)["CUSTOM_Z"] == (1, 1)


def test_providers_of_another_node_stay(nova, failed, bench):
    other = bench.config(node_name=None)
    assert withdraw(nova, other, node_name="node2") == (0, set())
    counted, _changed = withdraw(nova, other, node_name="node1")
    assert counted == len(nova.ours())
    # The option takes precedence, as in initialize().
    assert withdraw(nova, failed, node_name="node2")[0] == counted


def test_a_provider_with_a_name_like_ours_stays(nova, failed):
    stranger = uuid_of(77)
    nova.known.new_child("node1_accel_stranger", NODE, uuid=stranger)
    nova.known.update_inventory(stranger, {"CUSTOM_Y": {"total": 2, "reserved": 0}})
    withdraw(nova, failed)
    assert nova.units(stranger) == {"CUSTOM_Y": (2, 0)}


@pytest.mark.parametrize(
    ("tree", "name", "options"),
    [
        (None, "node1", {}),
        ("tree", 7, {}),
        ("tree", "missing", {}),
        ("tree", "node1", {"node_name": ""}),
        ("tree", "node1", {"config": {}}),
    ],
)
def test_an_invalid_argument_is_refused_and_changes_nothing(
    nova, failed, tree, name, options
):
    before = units(nova)
    with pytest.raises(exception.InvalidInput):
        os_acc.withdraw_providers(
            nova.known if tree else None, name, **{"config": failed, **options}
        )
    assert units(nova) == before


# -- leases ----------------------------------------------------------------------


def test_the_leases_are_known(bench, failed):
    bench.manager.rekey(uuid_of(1), uuid_of(4))
    bench.kernel.fail(GPU, "unbind", times=None)
    with pytest.raises(exception.OsAccError):
        bench.plug(2, GPU)
    bench.kernel.lift()
    expected = bench.manager.attached(None)
    assert os_acc.recorded(failed) == expected
    assert expected[uuid_of(4)][0]["state"] == "Bound"


def test_entries_that_may_not_reach_a_guest_are_not_bound(bench, failed):
    (entry,) = bench.manager.attached(instance(1))[uuid_of(1)]
    bench.kernel.fail(FPGA, "unbind", times=None)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    bench.kernel.lift()
    ((found,),) = os_acc.recorded(failed).values()
    assert found["uuid"] == entry["uuid"]
    assert (entry["state"], found["state"]) == ("Bound", "UnbindFailed")


def test_a_damaged_record_is_in_the_log(bench, failed, caplog):
    execute(file_in(bench.state_path), "UPDATE leases SET payload = '{}'")
    assert os_acc.recorded(failed) == {}
    assert any(
        FPGA in each.getMessage() and "damaged" in each.getMessage()
        for each in caplog.records
    )


def test_reading_starts_neither_plugins_nor_a_scan(bench, failed, monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the host was read")

    for name in ("loader.load", "discovery.discover", "client.Helper"):
        module, _, attribute = name.partition(".")
        monkeypatch.setattr(getattr(service, module), attribute, fail)
    assert list(os_acc.recorded(failed)) == [uuid_of(1)]
    assert snapshot.read(bench.state_path).leases
