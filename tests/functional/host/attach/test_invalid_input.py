# SPDX-License-Identifier: Apache-2.0

"""Each invalid input has its own error, raised before anything is changed."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator

import pytest

import os_acc
from os_acc import exception, requests
from os_acc.attach import operations
from os_acc.objects.api import ProviderEntry
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.random_values import RandomValues
from tests.unit.invalid_values import HUGE, NO_MAPPING, WRONG, is_told

GPU = "0000:17:00.0"
CLASS = "CUSTOM_ACCELERATOR_GPU"
STRANGER = "99999999-9999-4999-8999-999999999999"


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
@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_instance_info_is_a_mapping(value, shown):
    for call in (os_acc.plug, os_acc.unplug):
        error = is_told(lambda call=call: call(value), *instance_error(shown))
        assert "uuid" in error.hint
    if value is not None:
        is_told(lambda: os_acc.attached(value), *instance_error(shown))


def instance_error(shown: str) -> tuple[type[exception.OsAccError], str]:
    return exception.InvalidInput, shown


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *WRONG,
        pytest.param("", "''", id="empty"),
        pytest.param(uuid_of(1)[:-1], uuid_of(1)[:-1], id="short"),
        pytest.param(f"{{{uuid_of(1)}}}", uuid_of(1), id="braces"),
        pytest.param(f"urn:uuid:{uuid_of(1)}", "urn", id="urn"),
        pytest.param(f" {uuid_of(1)[:-1]}", uuid_of(1)[:-1], id="blank"),
        pytest.param(uuid_of(1).replace("1", "g"), "g", id="no hexadecimal"),
        pytest.param(
            uuid_of(1).replace("1", "\N{ARABIC-INDIC DIGIT ONE}"),
            "\N{ARABIC-INDIC DIGIT ONE}",
            id="foreign digits",
        ),
    ],
)
@pytest.mark.share(4)
def test_an_instance_has_a_uuid(value, shown):
    for call in (os_acc.plug, os_acc.unplug, os_acc.attached):
        is_told(lambda call=call: call({"uuid": value}), *instance_error(shown))
    is_told(lambda: os_acc.plug({}), *instance_error("None"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_id": uuid_of(5), "image_ref": uuid_of(6)},
        {"networks": {"physnet": []}},
        {"numa_cells": ["a"]},
        {"image_properties": 7},
        {"port_numa_policies": 7},
        {"name": 7},
    ],
)
def test_unplug_reads_the_uuid_only(api: TestHost, wrong: dict[str, object]) -> None:
    """No other key prevents Nova from deleting a server."""
    mine = instance(1) | wrong
    assert os_acc.attached(mine) == os_acc.attached(instance(1))
    assert os_acc.unplug(mine) == 1


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "key", ["name", "project_id", "tenant_id", "image_id", "image_ref", "image_uuid"]
)
@pytest.mark.parametrize(
    ("value", "shown"),
    [each for each in WRONG if each.id not in ("None", "text", "surrogate", "long")],
)
@pytest.mark.share(6)
def test_what_else_is_said_of_an_instance_is_text(key, value, shown):
    error = is_told(
        lambda: os_acc.plug({"uuid": uuid_of(1), key: value}), *instance_error(shown)
    )
    assert key in str(error)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("value", [0, "0", [True], [-1], [0.0], ["0"], {0: 1}, {0}])
def test_numa_cells_are_numbers_of_cells(value):
    error = is_told(
        lambda: os_acc.plug({"uuid": uuid_of(1), "numa_cells": value}),
        *instance_error("numa_cells"),
    )
    assert str(value) in str(error)


@pytest.mark.usefixtures("unchanged")
def test_numa_cells_are_the_hosts(api):
    selected, specs = request(api.provider(GPU))
    mine = {"uuid": uuid_of(2), "numa_cells": [0, 7]}
    error = is_told(
        lambda: os_acc.plug(mine, selected, specs), *instance_error("has 7")
    )
    assert "host cells" in error.hint


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("key", ["image_properties", "port_numa_policies"])
@pytest.mark.parametrize("value", [0, "required", ["required"], {1: "required"}])
def test_what_is_said_by_name_is_a_mapping(key, value):
    error = is_told(
        lambda: os_acc.plug({"uuid": uuid_of(1), key: value}), *instance_error(key)
    )
    assert str(value) in str(error)


@pytest.mark.parametrize(
    "name", ["\ud800", "\0", "'; DROP TABLE leases; --", "é" * 999]
)
def test_any_text_may_be_a_name(api, name):
    provider = api.provider(GPU)
    selected, specs = request(provider)
    mine = {"uuid": uuid_of(2), "name": name}
    entries = os_acc.plug(mine, selected, specs)
    assert os_acc.attached(mine) == {uuid_of(2): entries}
    assert api.manager.store.leases(uuid_of(2))[0].guest.name == name
    assert os_acc.unplug(mine) == 1


def test_any_mapping_will_do(api):
    mine = collections.UserDict(instance(1))
    assert len(os_acc.attached(mine)) == 1


# -- selected_rp -------------------------------------------------------------


def plug(selected: object, specs: object = None) -> Callable[[], object]:
    return lambda: os_acc.plug(instance(2), selected, specs)  # type: ignore[arg-type]


def selected_error(shown: str) -> tuple[type[exception.OsAccError], str]:
    return exception.InvalidAllocation, shown


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), NO_MAPPING)
def test_a_selection_is_a_mapping(value, shown):
    error = is_told(plug(value), *selected_error(shown))
    assert "allocation request" in error.hint


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_a_provider_is_a_uuid(value, shown):
    is_told(plug({"uuid": value}), *selected_error(shown))
    allocations = {GPU: {"resources": {CLASS: 1}}}
    is_told(plug({"allocations": allocations}), *selected_error(GPU))
    allocations = {STRANGER: {"resources": {CLASS: 1}}}
    mappings = {"1": [value]}
    is_told(
        plug({"allocations": allocations, "mappings": mappings}),
        *selected_error(shown),
    )


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_allocations_and_mappings_have_placements_form(value, shown):
    good = {STRANGER: {"resources": {CLASS: 1}}}
    for selected in (
        {"allocations": value},
        {"allocations": {STRANGER: value}},
        {"allocations": {STRANGER: {"resources": value}}},
        {"allocations": good, "mappings": value},
        {"allocations": good, "mappings": {"1": value}},
    ):
        error = is_told(plug(selected), exception.InvalidAllocation, "selected")
        assert shown in str(error) or "None" in str(error)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "amount", [None, True, 0, -1, 2**31, HUGE, 1.0, "1", [1]], ids=type
)
def test_an_allocated_amount_is_a_number(amount):
    allocations = {STRANGER: {"resources": {CLASS: amount}}}
    is_told(plug({"allocations": allocations}), *selected_error(CLASS))


@pytest.mark.usefixtures("unchanged")
def test_one_form_at_a_time():
    is_told(plug({}), *selected_error("either"))
    is_told(plug({"uuid": STRANGER, "allocations": {}}), *selected_error("either"))
    is_told(plug({"mappings": {}}), *selected_error("either"))


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
        is_told(plug(selected, {f"resources1:{CLASS}": "1"}), *selected_error(shown))


def test_a_selection_without_a_request_is_nothing_to_guess_at(api, unchanged):
    provider = api.provider(GPU)
    is_told(plug({"uuid": provider.uuid}), *selected_error(CLASS))
    is_told(plug({"uuid": provider.uuid}, {}), *selected_error(provider.uuid))


# -- extra specs -------------------------------------------------------------


def specs_error(shown: str) -> tuple[type[exception.OsAccError], str]:
    return exception.InvalidExtraSpec, shown


def ask(specs: object) -> Iterator[Callable[[], object]]:
    yield plug({"uuid": STRANGER}, specs)
    yield lambda: os_acc.requests_accelerators(specs)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "_shown"), NO_MAPPING)
def test_extra_specs_are_a_mapping(value, _shown):
    for call in ask(value):
        error = is_told(call, *specs_error(type(value).__name__))
        assert error.hint


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("specs", "shown"),
    [
        ({7: "1"}, "7"),
        ({None: "1"}, "None"),
        ({f"resources:{CLASS}": None}, "None"),
        ({f"resources:{CLASS}": 1.5}, "1.5"),
        ({f"resources:{CLASS}": True}, "True"),
        ({f"resources:{CLASS}": ["1"]}, "['1']"),
        ({f"resources:{CLASS}": str(2**31)}, str(2**31)),
        ({"resources:CUSTOM_" + "X" * 300: "1"}, "XXX"),
        ({f"resources1:{CLASS}": "1", "trait1:CUSTOM_X": 7}, "7"),
        ({f"resources1:{CLASS}": "1", "trait1:a b": "required"}, "a b"),
        ({"trait1:CUSTOM_X": "required"}, "CUSTOM_X"),
        ({"group_policy": 7}, "7"),
        ({"group_policy": None}, "None"),
        (
            {f"resources1:{CLASS}": "1", f"resources2:{CLASS}": "1"},
            "group_policy",
        ),
        (
            {
                f"resources1:{CLASS}": "1",
                f"resources2:{CLASS}": "1",
                "group_policy": "both",
            },
            "group_policy",
        ),
        ({"accel:bitstream_idd": "x"}, "bitstream_idd"),
        ({"os_acc:what": "x"}, "what"),
    ],
)
def test_an_extra_spec_that_cannot_be_meant_is_refused(specs, shown):
    for call in ask(specs):
        is_told(call, *specs_error(shown))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("key", ["accel:numa_policy", "os_acc1:numa_policy"])
def test_a_numa_policy_that_is_none_is_told_with_those_that_are(key):
    for call in ask({key: "prefered"}):
        error = is_told(call, exception.InvalidExtraSpec, key)
        assert "preferred" in error.hint


def test_what_nova_drops_is_dropped_with_novas_warning(api, unchanged, caplog):
    assert os_acc.requests_accelerators({f"resources:{CLASS}": "many"}) is False
    assert "'many'" in caplog.text


# -- consumers ---------------------------------------------------------------


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_consumers_are_uuids(value, shown):
    for pair in ((value, uuid_of(2)), (uuid_of(1), value)):
        error = is_told(
            lambda pair=pair: os_acc.rekey(*pair), exception.InvalidInput, shown
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
    is_told(plug(None), exception.ObjectKind.LEASE, uuid_of(2))
    is_told(
        lambda: os_acc.rekey(uuid_of(2), uuid_of(3)),
        exception.ObjectKind.LEASE,
        uuid_of(2),
    )
    assert os_acc.unplug(instance(2)) == 0


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("value", "shown"), [*WRONG, pytest.param(GPU, GPU, id="address")]
)
def test_an_operator_names_a_device_by_its_address(api, value, shown):
    for call in (
        lambda: operations.release_device(api.manager, value, "nvme"),
        lambda: operations.adopt_device(api.manager, value, uuid_of(2), "nvme"),
    ):
        is_told(call, exception.InvalidInput, shown)


# -- random values -----------------------------------------------------------

FAMILIAR = ("uuid", "allocations", "mappings", "resources", CLASS, STRANGER, uuid_of(1))


def test_whatever_is_passed_raises_nothing_but_typed_errors(api):
    """The first instance keeps its device. The stress lane tries far more values."""
    for number in range(150):
        rng = RandomValues(str(number), FAMILIAR)
        selected, specs = map(rng.near, request(api.provider(GPU)))
        calls = wrong_calls(api, rng, rng.near(instance(2)), selected, specs)
        for call in calls:
            with contextlib.suppress(exception.OsAccError):
                call()
        assert os_acc.attached(instance(1)), number


def wrong_calls(
    api: TestHost, rng: RandomValues, info: object, selected: object, specs: object
) -> Iterator[Callable[[], object]]:
    other = rng.value()
    yield lambda: os_acc.plug(info, selected, specs)
    yield lambda: os_acc.plug(info, selected)
    yield lambda: os_acc.requests_accelerators(specs)
    yield lambda: os_acc.attached(info)
    yield lambda: os_acc.rekey(other, info)
    yield lambda: os_acc.unplug(other)
    yield lambda: operations.release_device(api.manager, other, other)
    yield lambda: operations.adopt_device(api.manager, other, other, other)


def test_a_lookup_of_no_argument_needs_none(api):
    assert set(os_acc.providers()[0]) == set(ProviderEntry.__annotations__)
    assert set(os_acc.host_info()) == {"contract", "plugins", "set_aside"}


# -- accelerator requests ----------------------------------------------------


def input_error(shown: str) -> tuple[type[exception.OsAccError], str]:
    return exception.InvalidInput, shown


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_accelerator_requests_are_asked_for_by_uuids(value, shown):
    for call in (requests.unbind, requests.events, requests.notify):
        is_told(lambda call=call: call(value), *input_error(shown))
        is_told(lambda call=call: call([value]), *input_error(shown))
    if value is not None:
        is_told(lambda: requests.delete(value), *input_error(shown))
        is_told(lambda: requests.find(value), *input_error(shown))
        is_told(lambda: requests.find(None, value), *input_error(shown))
        is_told(lambda: requests.delete(instance=value), *input_error(shown))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("value", "shown"), WRONG)
@pytest.mark.parametrize("field", ["hostname", "device_rp_uuid", "instance_uuid"])
@pytest.mark.share(6)
def test_a_binding_is_three_texts(field, value, shown):
    binding = {
        "hostname": "node1",
        "device_rp_uuid": STRANGER,
        "instance_uuid": uuid_of(2),
    }
    is_told(
        lambda: requests.bind({STRANGER: {**binding, field: value}}),
        *input_error(shown),
    )


@pytest.mark.usefixtures("unchanged")
def test_requests_are_deleted_by_uuid_or_by_instance():
    for arguments in ({}, {"uuids": [STRANGER], "instance": STRANGER}):
        with pytest.raises(exception.InvalidInput, match="either"):
            requests.delete(**arguments)
