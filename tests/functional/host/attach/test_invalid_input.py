# SPDX-License-Identifier: Apache-2.0

"""Each invalid input has its own error, raised before anything is changed."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator

import pytest

import os_acc
from os_acc import exception, requests
from os_acc.attach import operator_actions
from os_acc.objects.api import ProviderEntry
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.unit.invalid_values import NO_MAPPING, WRONG, is_told

GPU = "0000:17:00.0"
CLASS = "CUSTOM_ACCELERATOR_GPU"
STRANGER = "99999999-9999-4999-8999-999999999999"
#: Values, and what an error shows of each.
VALUES = [each.values for each in WRONG]
NOT_MAPPINGS = [each.values for each in NO_MAPPING]


@pytest.fixture
def unchanged(api: TestHost) -> Iterator[None]:
    """Check that the test changes neither the host nor the store."""
    store = api.manager.store
    before = (api.kernel.writes(), api.kernel.snapshot(), store.leases())
    events = store.events(1000)
    yield
    assert (api.kernel.writes(), api.kernel.snapshot(), store.leases()) == before
    assert store.events(1000) == events


# -- instance_info -----------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
def test_instance_info_is_a_mapping():
    for value, shown in VALUES:
        for call in (os_acc.plug, os_acc.unplug):
            error = is_told(lambda c=call, v=value: c(v), exception.InvalidInput, shown)
            assert "uuid" in error.hint
        if value is not None:
            is_told(lambda v=value: os_acc.attached(v), exception.InvalidInput, shown)


@pytest.mark.usefixtures("unchanged")
def test_an_instance_has_a_uuid():
    digit = "\N{ARABIC-INDIC DIGIT ONE}"
    forms = [
        ("", "''"),
        (uuid_of(1)[:-1], uuid_of(1)[:-1]),
        (f"{{{uuid_of(1)}}}", uuid_of(1)),
        (f"urn:uuid:{uuid_of(1)}", "urn"),
        (f" {uuid_of(1)[:-1]}", uuid_of(1)[:-1]),
        (uuid_of(1).replace("1", "g"), "g"),
        (uuid_of(1).replace("1", digit), digit),
    ]
    for value, shown in [*VALUES, *forms]:
        for call in (os_acc.plug, os_acc.unplug, os_acc.attached):
            mine = {"uuid": value}
            is_told(lambda c=call, m=mine: c(m), exception.InvalidInput, shown)
    is_told(lambda: os_acc.plug({}), exception.InvalidInput, "None")


def test_unplug_reads_the_uuid_only(api):
    """No other key prevents Nova from deleting a server."""
    mine = instance(1) | {
        "image_id": uuid_of(5),
        "image_ref": uuid_of(6),
        "networks": {"physnet": []},
        "numa_cells": ["a"],
        "image_properties": 7,
        "port_numa_policies": 7,
        "name": 7,
    }
    assert os_acc.attached(mine) == os_acc.attached(instance(1))
    assert os_acc.unplug(mine) == 1


def shown(*values: object) -> list[tuple[object, str]]:
    return [(each, str(each)) for each in values]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("keys", "values"),
    [
        pytest.param(
            ("name", "project_id", "tenant_id", "image_id", "image_ref", "image_uuid"),
            [each for each in NOT_MAPPINGS if not isinstance(each[0], str)],
            id="texts",
        ),
        pytest.param(
            ("numa_cells",),
            shown(0, "0", [True], [-1], [0.0], ["0"], {0: 1}, {0}),
            id="numbers of cells",
        ),
        pytest.param(
            ("image_properties", "port_numa_policies"),
            shown(0, "required", ["required"], {1: "required"}),
            id="mappings",
        ),
    ],
)
def test_each_key_of_an_instance_has_its_type(keys, values):
    for key, (value, text) in itertools.product(keys, values):
        mine = {"uuid": uuid_of(1), key: value}
        error = is_told(lambda m=mine: os_acc.plug(m), exception.InvalidInput, key)
        assert text in str(error)


@pytest.mark.usefixtures("unchanged")
def test_numa_cells_are_the_hosts(api):
    selected, specs = request(api.provider(GPU))
    mine = {"uuid": uuid_of(2), "numa_cells": [0, 7]}
    error = is_told(
        lambda: os_acc.plug(mine, selected, specs), exception.InvalidInput, "has 7"
    )
    assert "host cells" in error.hint


def test_any_mapping_will_do(api):
    mine = collections.UserDict(instance(1))
    assert len(os_acc.attached(mine)) == 1


# -- selected_rp -------------------------------------------------------------


def plug(selected: object, specs: object = None) -> Callable[[], object]:
    return lambda: os_acc.plug(instance(2), selected, specs)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchanged")
def test_a_selection_is_a_mapping_of_uuids():
    for value, shown in NOT_MAPPINGS:
        error = is_told(plug(value), exception.InvalidAllocation, shown)
        assert "allocation request" in error.hint
    resources = {"resources": {CLASS: 1}}
    for value, shown in VALUES:
        is_told(plug({"uuid": value}), exception.InvalidAllocation, shown)
        mapped = {"allocations": {STRANGER: resources}, "mappings": {"1": [value]}}
        is_told(plug(mapped), exception.InvalidAllocation, shown)
    is_told(plug({"allocations": {GPU: resources}}), exception.InvalidAllocation, GPU)


@pytest.mark.usefixtures("unchanged")
def test_a_provider_has_to_be_one_of_ours():
    error = is_told(
        plug({"uuid": STRANGER}, {f"resources:{CLASS}": "1"}),
        exception.ProviderNotFound,
        STRANGER,
    )
    assert "provider list" in error.hint


def test_an_allocation_that_cannot_be_served_fails_the_plug(api, unchanged):
    provider = api.provider(GPU)
    for resources, shown in (
        ({CLASS: 2}, "but the groups request 1"),
        ({"CUSTOM_ACCELERATOR_FPGA": 1}, "cannot serve the allocation"),
    ):
        selected = {"allocations": {provider.uuid: {"resources": resources}}}
        is_told(
            plug(selected, {f"resources1:{CLASS}": "1"}),
            exception.InvalidAllocation,
            shown,
        )


def test_a_selection_without_a_request_is_nothing_to_guess_at(api, unchanged):
    provider = api.provider(GPU)
    is_told(plug({"uuid": provider.uuid}), exception.InvalidAllocation, CLASS)
    is_told(
        plug({"uuid": provider.uuid}, {}), exception.InvalidAllocation, provider.uuid
    )


# -- extra specs -------------------------------------------------------------


def ask(specs: object) -> Iterator[Callable[[], object]]:
    yield plug({"uuid": STRANGER}, specs)
    yield lambda: os_acc.requests_accelerators(specs)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchanged")
def test_extra_specs_are_a_mapping():
    for value, _ in NOT_MAPPINGS:
        for call in ask(value):
            error = is_told(call, exception.InvalidExtraSpec, type(value).__name__)
            assert error.hint


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("specs", "shown"),
    [
        ({f"resources:{CLASS}": 1.5}, "1.5"),
        ({f"resources1:{CLASS}": "1", "trait1:a b": "required"}, "a b"),
        ({"accel:bitstream_idd": "x"}, "bitstream_idd"),
        ({"os_acc:what": "x"}, "what"),
    ],
)
def test_an_extra_spec_that_cannot_be_meant_is_refused(specs, shown):
    for call in ask(specs):
        is_told(call, exception.InvalidExtraSpec, shown)


def test_what_nova_drops_is_dropped_with_novas_warning(api, unchanged, caplog):
    assert os_acc.requests_accelerators({f"resources:{CLASS}": "many"}) is False
    assert "'many'" in caplog.text


# -- consumers ---------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
def test_consumers_are_uuids():
    for value, shown in VALUES:
        for pair in ((value, uuid_of(2)), (uuid_of(1), value)):
            error = is_told(
                lambda p=pair: os_acc.rekey(*p), exception.InvalidInput, shown
            )
            assert error.hint


def test_a_consumer_that_holds_something_else_keeps_it(api, unchanged):
    selected, specs = request(api.provider(GPU))
    error = is_told(
        lambda: os_acc.plug(instance(1), selected, specs),
        exception.ConflictReason.CONSUMER,
        uuid_of(1),
    )
    assert "unplug" in error.hint


@pytest.mark.usefixtures("unchanged")
def test_nothing_is_made_ready_that_is_not_recorded():
    error = is_told(plug(None), exception.ObjectKind.LEASE, uuid_of(2))
    assert "selected_rp" in error.hint
    is_told(
        lambda: os_acc.rekey(uuid_of(2), uuid_of(3)),
        exception.ObjectKind.LEASE,
        uuid_of(2),
    )
    assert os_acc.unplug(instance(2)) == 0


@pytest.mark.usefixtures("unchanged")
def test_an_operator_names_a_device_by_its_address(api):
    for value, shown in [*VALUES, (GPU, GPU)]:
        for operate in (
            operator_actions.release_device,
            functools.partial(operator_actions.adopt_device, consumer=uuid_of(2)),
        ):
            is_told(
                lambda o=operate, v=value: o(api.manager, v, driver="nvme"),
                exception.InvalidInput,
                shown,
            )


def test_a_lookup_of_no_argument_needs_none(api):
    assert set(os_acc.providers()[0]) == set(ProviderEntry.__annotations__)
    assert set(os_acc.host_info()) == {"contract", "plugins", "set_aside"}


# -- accelerator requests ----------------------------------------------------


@pytest.mark.usefixtures("unchanged")
def test_accelerator_requests_are_named_by_uuids():
    for value, shown in VALUES:
        calls = [requests.unbind, requests.events, requests.notify]
        if value is not None:
            calls += [
                requests.delete,
                requests.find,
                lambda v: requests.find(None, v),
                lambda v: requests.delete(instance=v),
            ]
        for call in calls:
            is_told(lambda c=call, v=value: c(v), exception.InvalidInput, shown)
        for call in calls[:3]:
            is_told(lambda c=call, v=value: c([v]), exception.InvalidInput, shown)


@pytest.mark.usefixtures("unchanged")
def test_a_binding_is_three_texts():
    binding = {
        "hostname": "node1",
        "device_rp_uuid": STRANGER,
        "instance_uuid": uuid_of(2),
    }
    for field, (value, shown) in itertools.product(binding, VALUES):
        wrong = {STRANGER: {**binding, field: value}}
        is_told(lambda w=wrong: requests.bind(w), exception.InvalidInput, shown)


@pytest.mark.usefixtures("unchanged")
def test_requests_are_deleted_by_uuid_or_by_instance():
    for arguments in ({}, {"uuids": [STRANGER], "instance": STRANGER}):
        with pytest.raises(exception.InvalidInput, match="either"):
            requests.delete(**arguments)
