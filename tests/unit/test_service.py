# SPDX-License-Identifier: Apache-2.0

"""The library is initialized once, or reports why it cannot be."""

import threading
import time
from concurrent import futures
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from stevedore import ExtensionManager

import os_acc
from os_acc import exception, privsep, service
from os_acc.host import numa
from os_acc.inventory import plugin_discovery
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.numa import NUMATopology
from os_acc.testing import instance, uuid_of
from os_acc.testing.test_host import EVERYTHING, config_of
from tests.expected_errors import raises
from tests.unit.acme import NeverReturns
from tests.unit.numa.test_network_options import WORKED_EXAMPLE
from tests.unit.placement.placement_double import Double, Provider
from tests.unit.store.store_files import execute, file_in

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
#: Far longer than a slow machine needs.
LONG = 120.0


@pytest.fixture
def api(bench, monkeypatch):
    """Return a function that initializes the public API on the bench's host."""
    monkeypatch.setattr(service, "nodes", service.Nodes())

    def initialize(
        reset: bool = False, wait_for_placement: bool = False, **options: object
    ):
        return service.initialize(
            reset,
            wait_for_placement=wait_for_placement,
            config=bench.config(**options),
            root=bench.root,
        )

    yield initialize
    for each in service.nodes._services.values():
        assert each.manager is None or each.manager.retrier.stop(LONG)


def test_nothing_is_served_before(api):
    for call in (
        lambda: os_acc.plug(instance(1)),
        lambda: os_acc.unplug(instance(1)),
        lambda: os_acc.rekey(uuid_of(1), uuid_of(2)),
        lambda: os_acc.attached(),
        lambda: os_acc.requests_accelerators({}),
        os_acc.providers,
        os_acc.host_info,
    ):
        with pytest.raises(exception.NotInitialized) as caught:
            call()
        assert "initialize()" in caught.value.hint


def test_the_public_api_serves_afterwards(api, bench):
    api()
    before = bench.kernel.snapshot()
    (provider,) = [
        each for each in service.get().providers() if str(each.device.address) == FPGA
    ]
    specs = {f"resources:{provider.device.resource_class}": "1"}
    assert os_acc.requests_accelerators(specs)
    (entry,) = os_acc.plug(instance(1), {"uuid": provider.uuid}, specs)
    assert entry["pci_id"] == FPGA
    assert os_acc.attached() == {uuid_of(1): [entry]}
    assert os_acc.rekey(uuid_of(1), uuid_of(2)) == 1
    assert os_acc.unplug(instance(2)) == 1
    assert bench.kernel.snapshot() == before
    loaded = [each["name"] for each in os_acc.host_info()["plugins"]]
    fallbacks = ["mdev", "nic", "nvme", "pci"]
    assert loaded == ["dfl", "nvidia", "qat", "xrt", *fallbacks]


@pytest.mark.parametrize("options", [{}, {"device_spec": []}], ids=["devices", "none"])
def test_initialize_is_called_unconditionally_and_the_others_by_the_flavor(
    api, bench, options
):
    bench.restart(device_spec=[EVERYTHING])
    specs = {f"resources:{bench.provider(GPU).device.resource_class}": "1"}
    before = bench.kernel.snapshot()
    api(**options)
    assert bench.kernel.snapshot() == before
    assert not os_acc.requests_accelerators({"resources:VCPU": "1"})
    assert os_acc.requests_accelerators(specs)


def test_a_second_time_changes_nothing(api):
    assert api() is api()


def test_a_reset_reads_the_options_anew_and_keeps_the_leases(api, bench):
    manager = api()
    bench._manager = manager
    entries = bench.plug(1, GPU)
    writes = bench.kernel.writes()
    again = api(reset=True, device_spec=[])
    assert again is not manager
    assert service.get().providers() == ()
    assert os_acc.attached() == {uuid_of(1): entries}
    assert bench.kernel.writes() == writes
    assert os_acc.unplug(instance(1)) == 1


def test_a_reset_that_fails_leaves_what_was(api):
    manager = api()
    with pytest.raises(exception.InvalidConfiguration):
        api(reset=True, device_spec=["not JSON"])
    assert service.get() is manager


def test_many_threads_initialize_once(api):
    with futures.ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: api(), range(4)))
    assert len(set(map(id, made))) == 1


# -- logged rejections -------------------------------------------------------


def refusals(caplog) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "not offered" in record.getMessage()
    ]


def test_what_is_not_offered_is_in_the_log_once(api, bench, caplog):
    api()
    logged = refusals(caplog)
    assert len(logged) == 4
    assert any("0000:16:00.0" in text and "a bridge" in text for text in logged)
    api(reset=True)
    assert refusals(caplog) == logged


def test_only_news_is_told_by_a_reset(api, bench, caplog):
    api()
    before = refusals(caplog)
    bench.bind(FPGA, "vfio-pci")
    api(reset=True)
    (news,) = refusals(caplog)[len(before) :]
    assert FPGA in news
    assert "no lease of it is recorded" in news


# -- failed initialization ---------------------------------------------------


def test_a_helper_that_does_not_start_is_told(api, monkeypatch):
    for context in (privsep.base, privsep.inspect):
        context.set_client_mode(True)
        monkeypatch.setattr(context, "channel", None)
        monkeypatch.setattr(context, "connect", fail_to_start)
    with pytest.raises(exception.HelperUnavailable, match="no sudo"):
        api()
    with pytest.raises(exception.NotInitialized):
        service.get()


def fail_to_start() -> None:
    raise FileNotFoundError("no sudo")


def test_a_helper_that_hangs_is_waited_for_no_longer_than_allowed(api, monkeypatch):
    gate = threading.Event()

    def start() -> None:
        gate.wait()
        fail_to_start()

    for context in (privsep.base, privsep.inspect):
        context.set_client_mode(True)
        monkeypatch.setattr(context, "channel", None)
        monkeypatch.setattr(context, "connect", start)
    try:
        with pytest.raises(exception.HelperUnavailable, match="in time"):
            api(initialize_timeout=1.0)
    finally:
        gate.set()


def test_the_start_limit_of_a_helper_is_an_option(api, monkeypatch):
    monkeypatch.setattr(privsep.base, "connect", fail_to_start)
    hands = api(helper_start_timeout=5_000.0).life._helper
    for context in (privsep.base, privsep.inspect):
        context.set_client_mode(True)
    link = hands._links[privsep.base]
    assert link.start().until > time.monotonic() + 1_000


def test_a_state_path_that_cannot_be_used_is_told(api, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(exception.StateUnavailable) as caught:
        api(state_path=str(tmp_path / "file" / "state"))
    assert str(tmp_path / "file") in str(caught.value)
    assert "state_path" in caught.value.hint


def test_plugins_that_never_answer_are_a_timeout(api, monkeypatch):
    monkeypatch.setattr(plugin_discovery, "_DISCOVER_SECONDS", 0.05)
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        "os_acc",
        [EntryPoint("slow", "tests.unit.acme:NeverReturns", "os_acc")],
    )
    NeverReturns.gate.clear()
    try:
        with pytest.raises(exception.InitializeTimeout, match="slow"):
            api()
    finally:
        NeverReturns.gate.set()


# -- faults that stop nothing else -------------------------------------------


def test_a_damaged_record_stops_nothing(api, bench):
    bench._manager = api()
    bench.plug(1, GPU)
    bench.plug(2, FPGA)
    execute(
        file_in(bench.state_path),
        f"UPDATE leases SET payload = '{{}}' WHERE consumer = '{uuid_of(1)}'",
    )
    bench._manager = api(reset=True)
    assert list(os_acc.attached()) == [uuid_of(2)]
    # A device that the damaged record may concern is not offered.
    assert bench.rejected(GPU).reason is RejectReason.UNKNOWN_STATE
    assert bench.unplug(2) == 1


def test_a_lease_whose_device_is_gone_stops_nothing(api, bench):
    bench._manager = api()
    bench.plug(1, FPGA)
    (lease,) = bench.manager.store.leases()
    bench.kernel.hot_unplug(FPGA)
    bench._manager = api(reset=True)
    assert bench.manager.store.leases() == (lease,)
    assert lease.state is LeaseState.HELD
    bench.plug(2, GPU)


def test_nothing_is_read_of_the_arguments_but_yes_or_no(api):
    for value in (None, 1, "True", []):
        with pytest.raises(exception.InvalidInput, match="reset"):
            service.initialize(value)  # type: ignore[arg-type]
        with pytest.raises(exception.InvalidInput, match="wait_for_placement"):
            os_acc.initialize(wait_for_placement=value)  # type: ignore[arg-type]


# -- networks ----------------------------------------------------------------


@pytest.fixture
def with_networks(bench, tmp_path, api):
    """Return a function that initializes with these lines in nova.conf."""

    def initialize(text: str):
        path = tmp_path / "nova.conf"
        path.write_text(text)
        bench._read = lambda: config_of(path)
        return api(reset=True)

    return initialize


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[neutron]\nphysnets = a", r"\[neutron_physnet_a\] numa_nodes is not set"),
        ("[neutron]\nphysnets = a,,b", r"\[neutron\] physnets"),
        ("[neutron_tunnel]\nnuma_nodes = zero", r"\[neutron_tunnel\] numa_nodes"),
        ("[neutron_tunnel]\nnuma_nodes = 1,1", "1 more than once"),
        ("[neutron_tunnel]\nnuma_nodes = 0,7", "the host's NUMA nodes are 0, 1"),
        (
            "[neutron]\nphysnets = a\n[neutron_physnet_a]\nnuma_nodes = 2",
            r"\[neutron_physnet_a\] numa_nodes has 2",
        ),
    ],
)
def test_initialize_rejects_invalid_network_options(with_networks, bench, text, named):
    with pytest.raises(exception.InvalidConfiguration, match=named) as caught:
        with_networks(text)
    assert caught.value.hint
    assert not Path(bench.state_path).exists()
    with pytest.raises(exception.NotInitialized):
        service.get()


def test_initialize_accepts_the_worked_example_of_the_specification(with_networks):
    assert with_networks(WORKED_EXAMPLE.replace("\n ", "\n")).providers()


def test_a_host_without_networks_needs_no_topology(with_networks, monkeypatch):
    def fail(_root: str) -> NUMATopology:
        raise exception.HostStepFailed("cannot read the NUMA nodes")

    monkeypatch.setattr(numa, "read_topology", fail)
    assert with_networks("[neutron]\nphysnets =\n").providers()
    with pytest.raises(exception.HostStepFailed):
        with_networks("[neutron_tunnel]\nnuma_nodes = 0")


# -- waiting for Placement ---------------------------------------------------


@pytest.fixture
def placement(bench):
    """Run a double of Placement, which the options of the bench name."""
    double = Double()
    bench.groups["os_acc_placement"] = {
        "auth_type": "none",
        "endpoint_override": double.url,
        "connect_retries": 0,
        "status_code_retries": 0,
    }
    yield double
    double.end()


def published(double: Double) -> dict[str, set[str]]:
    return {each.uuid: each.traits for each in double.providers.values() if each.parent}


def test_initialize_returns_the_node(api, bench):
    """Specification: "Returns None on success"; the handle is an addition."""
    api()
    node = os_acc.initialize(config=bench.config())
    assert node.name == "node1"
    assert os_acc.initialize(config=bench.config()) is node


def test_initialize_ends_when_all_devices_are_enumerated_and_traits_published(
    api, placement
):
    manager = api(wait_for_placement=True)
    expected = {each.uuid: each.device.traits for each in manager.providers()}
    assert expected
    assert published(placement) == expected


def test_by_default_placement_is_not_asked(api, placement):
    api()
    assert placement.requests == []


def test_initialize_again_waits_for_what_is_new(api, placement, bench):
    manager = api(wait_for_placement=True)
    writes = placement.writes()
    assert api(wait_for_placement=True) is manager
    assert placement.writes() == writes
    bench.kernel.hot_unplug(FPGA)
    api(wait_for_placement=True)
    assert len(published(placement)) == len(manager.providers())


def test_initialize_waits_until_placement_answers(api, placement):
    placement.trouble("GET", "/resource_providers", 503, times=3)
    manager = api(wait_for_placement=True)
    assert published(placement).keys() == {each.uuid for each in manager.providers()}


def test_a_placement_that_does_not_answer_is_cyborg_agent_unavailable(api, placement):
    """Specification: "Throws CyborgAgentUnavailable exception"."""
    placement.trouble("GET", "/", 503, times=10**6)
    with pytest.raises(exception.CyborgAgentUnavailable, match="Placement") as caught:
        api(wait_for_placement=True, initialize_timeout=3.0)
    assert isinstance(caught.value, exception.InitializeTimeout)
    assert isinstance(caught.value.__cause__, exception.ServiceUnavailable)
    # The library serves: a second call waits for Placement alone.
    assert service.get().providers()


def test_a_compute_node_that_placement_does_not_have_is_waited_for(api, placement):
    placement.providers.clear()
    with pytest.raises(exception.InitializeTimeout, match="node1") as caught:
        api(wait_for_placement=True, initialize_timeout=3.0)
    assert "nova-compute" in caught.value.hint


def test_a_change_that_placement_refuses_for_good_is_not_waited_for(api, placement):
    bench_providers = api().providers()
    taken = bench_providers[0]
    other = Provider(uuid_of(77), taken.name, None)
    placement.providers[other.uuid] = other
    with raises(exception.RefusalReason.NAME_TAKEN):
        api(wait_for_placement=True, initialize_timeout=LONG)


def test_a_placement_that_is_not_configured_is_refused(api):
    with raises(exception.ConfigurationReason.NOT_CONFIGURED):
        api(wait_for_placement=True)
