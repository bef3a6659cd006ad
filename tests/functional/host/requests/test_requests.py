# SPDX-License-Identifier: Apache-2.0

"""Each state of an accelerator request allows certain actions."""

import pytest

from os_acc import exception
from os_acc.attach import serialize
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.requests.request_states import (
    FPGA,
    FPGAS,
    GPU,
    GPUS,
    HAS_OTHERS,
    IN_STATE,
    NO_REQUEST,
    TOO_FAR,
    bind,
    binding,
    reach,
    states,
)

STATES = (
    RequestState.INITIAL,
    RequestState.BOUND,
    RequestState.BIND_FAILED,
    RequestState.UNBOUND,
)


# -- creation -------------------------------------------------------------------


def test_n_groups_of_m_accelerators_are_n_times_m_requests(book):
    made = book.create("many")
    assert [each.group for each in made] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({each.uuid for each in made}) == 12
    assert {each.state for each in made} == {RequestState.INITIAL}


def test_a_new_request_has_neither_host_nor_provider_nor_instance(book):
    for made in book.create("two"):
        entry = serialize.request(made)
        assert entry["hostname"] is None
        assert entry["device_rp_uuid"] is None
        assert entry["instance_uuid"] is None
        assert entry["attach_handle_uuid"] is None


def test_requests_are_there_after_a_restart(bench, book):
    made = book.create("two")
    bench.restart()
    assert book.find() == made


def test_a_profile_that_nobody_has_makes_none(book):
    with raises(exception.ObjectKind.PROFILE):
        book.create("other")
    assert book.find() == ()


# -- every transition -------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_what_can_be_bound(state, bench, book, one):
    reach(state, bench, book, one)
    if state is RequestState.BIND_FAILED:
        with raises(IN_STATE, match="BindFailed"):
            bind(bench, book, one)
        assert states(book) == [state]
        return
    (bound,) = bind(bench, book, one)
    assert bound.state is RequestState.BOUND
    assert bench.plugged(1) == [GPU]


@pytest.mark.parametrize("state", STATES)
def test_everything_can_be_unbound_and_bound_again(state, bench, book, one):
    reach(state, bench, book, one)
    had = int(state is RequestState.BOUND)
    assert book.unbind([one.uuid]) == had
    assert states(book) == [RequestState.UNBOUND]
    assert bench.plugged(1) == []
    (again,) = bind(bench, book, one)
    assert again.state is RequestState.BOUND


@pytest.mark.parametrize("state", STATES)
def test_what_has_nothing_can_be_deleted(state, bench, book, one):
    reach(state, bench, book, one)
    if state is RequestState.BOUND:
        with raises(IN_STATE, match="unbind it first"):
            book.delete([one.uuid])
        assert bench.plugged(1) == [GPU]
        return
    assert book.delete([one.uuid]) == 1
    assert book.find() == ()


@pytest.mark.parametrize("is_held", [False, True])
def test_what_is_not_given_back_is_neither_bound_nor_deleted(bench, book, one, is_held):
    bind(bench, book, one)
    if is_held:
        bench.kernel.hold(GPU)
    else:
        bench.kernel.fail(GPU, "driver_override", times=1000)
    with pytest.raises(exception.DevicesUnreleased):
        book.unbind([one.uuid])
    state = RequestState.DELETING if is_held else RequestState.UNBIND_FAILED
    assert states(book) == [state]
    for call in (
        lambda: bind(bench, book, one),
        lambda: book.delete([one.uuid]),
    ):
        with raises(IN_STATE, match=state.value):
            call()
    assert states(book) == [state]
    bench.kernel.lift()
    bench.kernel.let_go(GPU)
    assert book.unbind([one.uuid]) == 1
    assert states(book) == [RequestState.UNBOUND]


# -- binding ----------------------------------------------------------------------


def test_a_bound_request_is_what_a_plug_returns(bench, book, one):
    (bound,) = bind(bench, book, one)
    entry = serialize.request(bound)
    (attached,) = bench.manager.attached(instance(1))[uuid_of(1)]
    assert entry["uuid"] == attached["uuid"] == one.uuid
    assert entry["pci_id"] == GPU
    assert entry["hostname"] == "node1"
    assert (entry["device_profile_name"], entry["device_profile_group_id"]) == (
        "one",
        0,
    )
    assert attached.items() <= entry.items()


def test_the_same_binding_again_confirms(bench, book, one):
    first = bind(bench, book, one)
    writes = bench.kernel.writes()
    assert bind(bench, book, one) == first
    assert bench.kernel.writes() == writes


def test_all_requests_of_an_instance_are_bound_or_none(bench, book):
    first, second = book.create("two")
    bench.plug(9, FPGA)
    with pytest.raises(exception.NoDeviceAvailable):
        book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)})
    assert states(book, instance=uuid_of(1)) == [RequestState.BIND_FAILED] * 2
    assert bench.plugged(1) == []
    failed = book.find(uuid_of(1))
    assert all("no free device" in each.reason for each in failed)


def test_each_group_is_bound_to_a_provider_of_its_own(bench, book):
    first, second = book.create("two")
    bound = book.bind(
        {first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)}
    )
    kinds = {
        each.group: serialize.request(each)["attach_handle_type"] for each in bound
    }
    assert kinds == {0: "PCI", 1: "NONE"}


@pytest.mark.parametrize("place", [FPGA, GPU])
def test_an_instance_with_other_accelerators_is_a_conflict(bench, book, one, place):
    bench.plug(1, place)
    with raises(HAS_OTHERS):
        bind(bench, book, one)
    assert states(book, bind_state="resolved")[0] is RequestState.BIND_FAILED
    assert bench.plugged(1) == [place]


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        (None, "bindings is None"),
        ({}, "bindings is {}"),
        ({"x": {}}, "'x' is not a UUID"),
        ({uuid_of(1): None}, "is None"),
        ({uuid_of(1): {"hostname": "node1"}}, "device_rp_uuid"),
    ],
)
def test_what_is_no_binding_is_refused(book, wrong, reported):
    with pytest.raises(exception.InvalidInput) as caught:
        book.bind(wrong)
    assert reported in str(caught.value)


def test_nothing_is_bound_where_one_provider_is_not_this_hosts(bench, book):
    first, second = book.create("two")
    foreign = {**binding(bench, FPGA), "device_rp_uuid": uuid_of(77)}
    with pytest.raises(exception.ProviderNotFound, match=uuid_of(77)):
        book.bind({first.uuid: binding(bench, GPU), second.uuid: foreign})
    assert states(book) == [RequestState.BIND_FAILED] * 2
    assert all("does not belong to this host" in each.reason for each in book.find())
    assert bench.plugged(1) == []


def test_requests_of_two_profiles_are_not_bound_together(bench, book, one):
    (other,) = (each for each in book.create("two") if each.group == 1)
    with pytest.raises(exception.InvalidInput, match="one device profile"):
        book.bind({one.uuid: binding(bench, GPU), other.uuid: binding(bench, FPGA)})


def test_a_request_that_nobody_made_is_not_found(bench, book):
    for call in (
        lambda: book.bind({uuid_of(5): binding(bench, GPU)}),
        lambda: book.unbind([uuid_of(5)]),
        lambda: book.delete([uuid_of(5)]),
        lambda: book.events([uuid_of(5)]),
    ):
        with raises(NO_REQUEST, match=uuid_of(5)):
            call()


# -- plug and unplug --------------------------------------------------------------


def test_unplug_unbinds_the_requests_of_an_instance(bench, book, one):
    bind(bench, book, one)
    assert bench.unplug(1) == 1
    assert states(book) == [RequestState.UNBOUND]
    assert bind(bench, book, one, number=2)[0].state is RequestState.BOUND


def test_what_was_plugged_is_listed_as_bound(bench, book):
    bench.plug(1, GPU)
    (found,) = book.find(uuid_of(1), "resolved")
    assert (found.state, found.profile) == (RequestState.BOUND, "")
    assert serialize.request(found)["pci_id"] == GPU


def test_an_instance_that_is_deleted_leaves_no_request(bench, book):
    first, second = book.create("two")
    book.create("one")
    book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)})
    assert book.delete(instance=uuid_of(1)) == 2
    assert bench.plugged(1) == []
    assert [each.profile for each in book.find()] == ["one"]
    assert book.delete(instance=uuid_of(1)) == 0


@pytest.mark.parametrize(("cell", "near"), [(0, True), (1, False)])
def test_the_policy_of_a_bound_request_is_kept_once_the_cells_are_known(
    bench, book, cell, near
):
    """Nova binds requests before it fits the guest to the host's cells."""
    (one,) = book.create("near")
    bind(bench, book, one)
    assert bench.plugged(1) == [GPU]
    bench.restart()
    before, found = bench.kernel.snapshot(), book.find()
    guest = instance(1) | {"numa_cells": [cell]}
    if near:
        (entry,) = bench.manager.plug(guest, None, None)
        assert (entry["uuid"], entry["numa_affinity"]) == (one.uuid, "local")
        (bound,) = book.find()
        assert serialize.request(bound)["numa_affinity"] == "local"
        return
    with raises(TOO_FAR, match="required"):
        bench.manager.plug(guest, None, None)
    assert (bench.kernel.snapshot(), book.find()) == (before, found)


# -- lists and events ---------------------------------------------------------------


def test_requests_are_listed_by_instance_and_by_what_is_resolved(bench, book, one):
    book.create("one")
    bind(bench, book, one)
    assert [each.uuid for each in book.find(uuid_of(1))] == [one.uuid]
    assert [each.uuid for each in book.find(bind_state="resolved")] == [one.uuid]
    assert book.find(uuid_of(2)) == ()
    assert len(book.find()) == 2


@pytest.mark.parametrize("state", STATES)
def test_a_request_is_resolved_once_it_is_bound_or_has_failed(bench, book, one, state):
    reach(state, bench, book, one)
    is_resolved = state in (RequestState.BOUND, RequestState.BIND_FAILED)
    found = book.find(bind_state="resolved")
    assert [each.uuid for each in found] == [one.uuid] * is_resolved


def test_a_request_is_resolved_while_it_is_deleted(bench, book, one):
    bind(bench, book, one)
    bench.kernel.hold(GPU)
    with pytest.raises(exception.DevicesUnreleased):
        book.unbind([one.uuid])
    assert states(book, bind_state="resolved") == [RequestState.DELETING]


@pytest.mark.parametrize("wrong", [{"instance": "x"}, {"bind_state": "bound"}])
def test_a_list_is_asked_for_in_words_that_there_are(book, wrong):
    with pytest.raises(exception.InvalidInput):
        book.find(**wrong)


def test_nova_is_told_what_has_become_of_each(bench, book, one):
    (other,) = book.create("one")
    bind(bench, book, one)
    with pytest.raises(exception.NoDeviceAvailable):
        bind(bench, book, other, number=2)
    (waiting,) = book.create("one")
    reported = book.events([one.uuid, other.uuid, waiting.uuid])
    assert reported == {
        "events": [
            {
                "name": "accelerator-request-bound",
                "tag": uuid,
                "server_uuid": uuid_of(number),
                "status": status,
            }
            for uuid, number, status in (
                (one.uuid, 1, "completed"),
                (other.uuid, 2, "failed"),
            )
        ]
    }


def test_a_flavor_that_names_a_profile_is_plugged_as_its_groups(bench, book):
    provider = bench.provider(GPU)
    selected, _specs = request(provider)
    selected["mappings"] = {"device_profile_0": [provider.uuid]}
    specs = {"accel:device_profile": "one"}
    (entry,) = bench.manager.plug(instance(1), selected, specs)
    assert (entry["pci_id"], entry["request_group"]) == (GPU, "device_profile_0")
    assert bench.manager.requests_accelerators(specs)


def plug_two(bench, **more):
    """Plug a flavor with the profile "two" and these other extra specs."""
    gpu, fpga = bench.provider(GPU), bench.provider(FPGA)
    selected, _specs = request(gpu, fpga)
    selected["mappings"] = {
        "device_profile_0": [gpu.uuid],
        "device_profile_1": [fpga.uuid],
    }
    specs = {"accel:device_profile": "two", **more}
    return bench.manager.plug(instance(1), selected, specs)


def groups(book):
    return sorted((each.profile, each.group) for each in book.find(uuid_of(1)))


def test_what_a_flavor_with_a_profile_has_is_listed_with_profile_and_index(bench, book):
    plug_two(bench)
    bench.restart()
    assert groups(book) == [("two", 0), ("two", 1)]
    shown = [serialize.request(each) for each in book.find(uuid_of(1))]
    assert {
        (each["device_profile_name"], each["device_profile_group_id"]) for each in shown
    } == {("two", 0), ("two", 1)}
    # It is deleted with the instance, and leaves no request to bind again.
    assert book.delete(instance=uuid_of(1)) == 2
    assert book.find() == ()


def test_a_group_of_the_flavors_own_is_of_no_profile(bench, book):
    gpu, fpga = bench.provider(GPU), bench.provider(FPGA)
    selected, _specs = request(gpu, fpga)
    selected["mappings"] = {"device_profile_0": [gpu.uuid], "1": [fpga.uuid]}
    specs = {"accel:device_profile": "one", f"resources1:{FPGAS}": "1"}
    bench.manager.plug(instance(1), selected, specs)
    assert sorted(
        (each.profile, each.group, str(each.lease.address))
        for each in book.find(uuid_of(1))
    ) == [("", None, FPGA), ("one", 0, GPU)]


def test_a_flavor_that_names_the_profile_confirms_what_its_requests_have(bench, book):
    first, second = book.create("two")
    book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, FPGA)})
    found = plug_two(bench)
    assert {each["uuid"] for each in found} == {first.uuid, second.uuid}
    assert groups(book) == [("two", 0), ("two", 1)]


def test_a_flavor_that_has_the_groups_itself_is_another_request(bench, book, one):
    bind(bench, book, one)
    provider = bench.provider(GPU)
    selected, _specs = request(provider)
    selected["mappings"] = {"_one_0": [provider.uuid]}
    applied = {f"resources_one_0:{GPUS}": "1"}
    with raises(HAS_OTHERS):
        bench.manager.plug(instance(1), selected, applied)
    (entry,) = bench.manager.plug(instance(1), None, None)
    assert entry["uuid"] == one.uuid
