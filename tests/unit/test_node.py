# SPDX-License-Identifier: Apache-2.0

"""A process serves several nodes; each has a handle, and state of its own."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import os_acc
from os_acc import exception, service
from os_acc.inventory import discovery
from os_acc.store import Store, state_files
from os_acc.store.database import Database
from os_acc.testing import TestHost, hosts, instance, uuid_of

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
#: Far longer than a slow machine needs.
LONG = 120.0
MODULE = (os_acc.attached, os_acc.providers, os_acc.host_info)


@pytest.fixture
def start(bench: TestHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that initializes a node with one device and its own store."""
    monkeypatch.setattr(service, "nodes", service.Nodes())

    def initialize(
        name: str, address: str, *, reset: bool = False, plain: bool = False, **options
    ) -> os_acc.Node:
        options.setdefault("state_path", str(bench.directory / str(name)))
        config = bench.config(
            **{
                "node_name": name if plain else None,
                "device_spec": [f'{{"address": "{address}"}}'],
                **options,
            }
        )
        return os_acc.initialize(
            reset, node_name=None if plain else name, config=config
        )

    yield initialize
    for each in service.nodes._services.values():
        assert each.manager is None or each.manager.retrier.stop(LONG)


@pytest.fixture
def two(start: Callable[..., os_acc.Node]) -> tuple[os_acc.Node, os_acc.Node]:
    return start("gpus", GPU), start("fpgas", FPGA)


def test_two_nodes_have_their_own_devices_leases_and_providers(two, bench):
    before = bench.kernel.snapshot()
    for number, (node, address) in enumerate(zip(two, (GPU, FPGA), strict=True), 1):
        (provider,) = node.providers()
        assert address in provider["addresses"]
        assert provider["name"].startswith(f"{node.name}_accel_")
        specs = {f"resources:{provider['resource_class']}": "1"}
        assert node.requests_accelerators(specs)
        (entry,) = node.plug(instance(number), {"uuid": provider["uuid"]}, specs)
        assert entry["pci_id"] == address
        assert node.attached() == {uuid_of(number): [entry]}
    first, second = two
    with pytest.raises(exception.ProviderNotFound):
        first.plug(
            instance(3),
            {"uuid": second.providers()[0]["uuid"]},
            {"resources:CUSTOM_ACCELERATOR_FPGA": "1"},
        )
    assert first.rekey(uuid_of(1), uuid_of(4)) == 1
    assert (first.unplug(instance(2)), second.unplug(instance(2))) == (0, 1)
    assert first.unplug(instance(4)) == 1
    assert bench.kernel.snapshot() == before


def test_the_name_that_a_service_passes_is_recorded_for_the_command(start, bench):
    path = str(bench.directory / "state")
    start("of-nova", GPU, state_path=path)
    assert state_files.recorded_node_name(path) == "of-nova"


def test_a_service_that_passes_no_name_removes_the_record(start, tmp_path):
    state_files.record_node_name(str(tmp_path), "of-nova")
    start("of-the-host", GPU, state_path=str(tmp_path), plain=True)
    assert state_files.recorded_node_name(str(tmp_path)) is None


def test_the_handle_of_a_node_is_one_and_survives_a_reset(start):
    node = start("gpus", GPU)
    assert isinstance(node, os_acc.Node)
    assert start("gpus", GPU) is node
    assert start("gpus", FPGA, reset=True) is node
    (provider,) = node.providers()
    assert provider["addresses"] == [FPGA]
    assert repr(node) == "<os_acc.Node 'gpus'>"


def test_a_device_that_another_node_has_is_not_given_twice(start, bench):
    both = '{"address": "*:*:*.*"}'
    first = start("one", GPU, device_spec=[both])
    second = start("two", GPU, device_spec=[both])
    taken = {each["addresses"][0]: each["uuid"] for each in first.providers()}
    twin = {each["addresses"][0]: each["uuid"] for each in second.providers()}
    specs = {"resources:CUSTOM_ACCELERATOR_FPGA": "1"}
    first.plug(instance(1), {"uuid": taken[FPGA]}, specs)
    with pytest.raises(exception.OsAccError):
        second.plug(instance(2), {"uuid": twin[FPGA]}, specs)
    assert second.attached() == {}
    assert list(first.attached()) == [uuid_of(1)]


def test_the_option_wins_over_the_argument(start):
    node = start("of-nova", GPU, node_name="of-the-operator")
    assert node.name == "of-the-operator"
    assert node.providers()[0]["name"].startswith("of-the-operator_accel_")


@pytest.mark.parametrize("linked", [False, True])
def test_two_nodes_do_not_share_a_state_directory(start, tmp_path, linked):
    first = start("one", GPU, state_path=str(tmp_path / "shared"))
    path = tmp_path / "shared"
    if linked:
        path = tmp_path / "link"
        os.symlink(tmp_path / "shared", path)
    with pytest.raises(exception.InvalidConfiguration, match="of node one") as caught:
        start("two", FPGA, state_path=str(path))
    assert "state_path" in caught.value.hint
    assert start("one", GPU, reset=True, state_path=str(path)) is first


def test_the_functions_of_the_module_serve_the_only_node(start):
    node = start("gpus", GPU)
    assert os_acc.providers() == node.providers()
    assert os_acc.initialize.__annotations__["return"] == "Node"


def test_the_functions_of_the_module_serve_the_plain_one_of_several_nodes(two, start):
    for call in MODULE:
        with pytest.raises(exception.NotInitialized, match="fpgas, gpus") as caught:
            call()
        assert "os_acc.Node" in caught.value.hint
    plain = start("plain", "0000:3b:00.0", plain=True)
    assert os_acc.providers() == plain.providers()
    start("gpus", GPU, reset=True)
    assert os_acc.providers() == plain.providers()
    assert start("gpus", GPU, plain=True) is two[0]
    assert os_acc.providers() == two[0].providers()


def test_a_node_that_cannot_be_initialized_leaves_the_others(start, tmp_path):
    node = start("gpus", GPU)
    (tmp_path / "file").touch()
    for _ in range(2):
        with pytest.raises(exception.StateUnavailable):
            start("fpgas", FPGA, state_path=str(tmp_path / "file" / "state"))
    assert os_acc.providers() == node.providers()
    assert start("fpgas", FPGA).providers()[0]["addresses"] == [FPGA]


def test_faults_of_one_node_are_not_those_of_another(two):
    first, second = (service.nodes.service(each.name) for each in two)
    assert first.health is not second.health
    assert first.rejections is not second.rejections


@pytest.mark.parametrize("name", ["", 7, "line\nfeed", b"node"])
def test_an_invalid_node_name_is_refused(start, name):
    with pytest.raises(exception.InvalidInput, match="node_name"):
        start(name, GPU)


def test_a_configuration_is_one_of_oslo_config(start):
    with pytest.raises(exception.InvalidInput, match="ConfigOpts"):
        os_acc.initialize(config={"os_acc": {}})  # type: ignore[arg-type]


def test_a_handle_of_a_node_that_was_never_ready_is_not_initialized():
    node = service.Nodes().service("never").node
    with pytest.raises(exception.NotInitialized, match="never"):
        node.attached()


# -- allocations that are of this host --------------------------------------------


def allocations(uuid: str, resource_class: str) -> dict[str, Any]:
    return {
        uuid_of(90): {"resources": {"VCPU": 2, "MEMORY_MB": 512}, "generation": 3},
        uuid: {"resources": {resource_class: 1}, "generation": 4},
    }


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which neither the host nor the store can be read."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the host was read")

    def lock() -> None:
        monkeypatch.setattr(discovery, "discover", fail)
        monkeypatch.setattr(Database, "transaction", fail)

    return lock


def test_allocations_are_known_without_a_look_at_the_host(two, bench, unread):
    first, second = two
    ((mine,), (others,)) = first.providers(), second.providers()
    bench.kernel.hot_unplug(GPU)
    unread()
    assert first.owns_any(allocations(mine["uuid"], mine["resource_class"]))
    assert not first.owns_any(allocations(uuid_of(91), "CUSTOM_WIDGET"))
    assert not first.owns_any({})
    assert not first.owns_any(None)
    assert second.owns_any({others["uuid"]: {"resources": {"CUSTOM_ANYTHING": 1}}})


def test_a_provider_of_another_process_is_found_in_the_store(two, bench):
    node = two[0]
    assert not node.owns_any(allocations(uuid_of(91), "CUSTOM_ACCELERATOR_GPU"))
    store = Store.open(str(bench.directory / "gpus"), 10.0)
    store.record_providers({uuid_of(91): "CUSTOM_ACCELERATOR_GPU"})
    assert node.owns_any(allocations(uuid_of(91), "CUSTOM_ACCELERATOR_GPU"))


def test_only_allocations_of_accelerators_depend_on_the_store(two, monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise exception.StateUnavailable("the disk is full")

    monkeypatch.setattr(Database, "transaction", fail)
    assert not two[0].owns_any(allocations(uuid_of(91), "DISK_GB"))
    with pytest.raises(exception.StateUnavailable):
        two[0].owns_any(allocations(uuid_of(91), "VGPU"))


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "x",
        {"x": {}},
        {uuid_of(1): None},
        {uuid_of(1): {}},
        {uuid_of(1): {"resources": {"VCPU": -1}}},
    ],
)
def test_allocations_have_the_form_of_placement(two, wrong):
    with pytest.raises(exception.InvalidAllocation, match="allocations"):
        two[0].owns_any(wrong)


def test_a_flavor_is_known_without_a_look_at_the_host(two, bench, unread):
    (provider,) = two[0].providers()
    unread()
    ask = two[0].requests_accelerators
    assert ask({f"resources1:{provider['resource_class']}": "1"})
    assert not ask(None)
    assert not ask({})
    assert not ask({"hw:cpu_policy": "dedicated", "trait:HW_CPU_X86_VMX": "required"})


def test_a_flavor_with_an_unknown_class_is_compared_with_the_present_host(start, bench):
    node = start("gpus", GPU, device_spec=['{"address": "0000:5e:*.*"}'])
    (offered,) = node.providers()
    bench.kernel.hot_unplug(FPGA)
    fresh = start("fresh", FPGA)
    ask = {f"resources:{offered['resource_class']}": "1"}
    assert not fresh.requests_accelerators(ask)
    (function,) = (
        each for each in hosts.two_socket_host().functions if str(each.address) == FPGA
    )
    bench.kernel.hot_plug(function)
    assert fresh.requests_accelerators(ask)
