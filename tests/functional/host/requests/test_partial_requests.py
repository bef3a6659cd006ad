# SPDX-License-Identifier: Apache-2.0

"""An instance keeps its other devices when a part of its requests is unbound."""

import pytest
import yaml

from os_acc import exception
from os_acc.objects.accelerator_request import RequestState
from os_acc.objects.lease import LeaseState
from os_acc.testing import instance, uuid_of
from tests.expected_errors import raises
from tests.functional.host.operator_commands import release
from tests.functional.host.requests.request_states import (
    FPGA,
    FPGAS,
    GPU,
    GPUS,
    binding,
    states,
)
from tests.unit.store.store_files import execute, file_in

NIC, NICS = "0000:3b:00.0", "CUSTOM_ACCELERATOR_NIC"
OTHER_GPU = "0000:b1:00.0"


def create(book, tmp_path, *classes):
    """Create requests of a profile with a group for each resource class."""
    groups = [{f"resources:{each}": "1"} for each in classes]
    catalogue = [{"name": "both", "groups": groups}]
    (tmp_path / "profiles.yaml").write_text(yaml.safe_dump(catalogue))
    return book.create("both")


@pytest.fixture
def both(bench, book, tmp_path):
    """Return two requests of one guest, both bound."""
    first, second = create(book, tmp_path, GPUS, NICS)
    book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, NIC)})
    return first, second


def is_whole(bench, book, first):
    """Assert that the guest restarts with its device, and the same bind confirms."""
    (entry,) = bench.manager.plug(instance(1), None, None)
    assert entry["uuid"] == first.uuid
    (again,) = book.bind({first.uuid: binding(bench, GPU)})
    assert again.state is RequestState.BOUND
    bench.restart()
    (entry,) = bench.manager.plug(instance(1), None, None)
    assert entry["uuid"] == first.uuid


def test_a_part_that_is_given_back_after_all_leaves_the_rest_whole(bench, book, both):
    """The guest has closed the device; the next start completes the unbind."""
    first, second = both
    bench.kernel.hold(NIC, 4711)
    with pytest.raises(exception.DevicesUnreleased):
        book.unbind([second.uuid])
    bench.kernel.let_go(NIC)
    bench.restart()
    assert states(book) == [RequestState.BOUND, RequestState.UNBOUND]
    is_whole(bench, book, first)


def test_a_part_that_an_operator_releases_leaves_the_rest_whole(bench, book, both):
    first, second = both
    bench.kernel.fail(NIC, "driver_override", times=1000)
    with pytest.raises(exception.DevicesUnreleased):
        book.unbind([second.uuid])
    bench.kernel.lift()
    (waiting,) = (
        lease
        for lease in bench.manager.store.leases()
        if lease.state is LeaseState.QUARANTINED
    )
    release(bench, waiting.address)
    assert states(book) == [RequestState.BOUND, RequestState.UNBOUND]
    is_whole(bench, book, first)


def test_what_was_asked_for_and_never_bound_is_no_part(bench, book, both, monkeypatch):
    """The service was killed between the intent of a bind and the bind."""
    first, second = both
    book.unbind([first.uuid, second.uuid])
    made = book.create("both")
    with monkeypatch.context() as killed:
        killed.setattr(type(bench.manager), "bind", lambda *_args: None)
        found = book.bind(
            {
                each.uuid: binding(bench, place)
                for each, place in zip(made, (GPU, NIC), strict=True)
            }
        )
    assert {(each.state, each.instance) for each in found} == {
        (RequestState.INITIAL, uuid_of(1))
    }
    book.bind({first.uuid: binding(bench, GPU), second.uuid: binding(bench, NIC)})
    assert book.unbind([second.uuid]) == 1
    is_whole(bench, book, first)


def test_what_is_plugged_is_never_less_than_whole(bench, book):
    """No guest starts with only a part of its plugged devices."""
    bench.plug(1, GPU, FPGA)
    store = bench.manager.store
    (lease,) = (each for each in store.leases() if str(each.address) == FPGA)
    store.delete([lease])
    with raises(exception.ObjectKind.LEASE, match="1 of 2"):
        bench.manager.plug(instance(1), None, None)


# -- requests that are bound together ------------------------------------------------


def is_refused(bench, book, asked, match):
    """Assert that a bind is refused before it changes anything; return the error."""
    before = book.find(), bench.manager.store.leases()
    writes = bench.kernel.writes()
    with pytest.raises(exception.InvalidInput, match=match) as caught:
        book.bind(asked)
    assert (book.find(), bench.manager.store.leases()) == before
    assert bench.kernel.writes() == writes
    return caught.value


@pytest.mark.parametrize(("part", "place"), [(0, GPU), (1, FPGA)])
def test_a_part_of_a_profile_is_not_bound_and_nothing_changes(bench, book, part, place):
    made = book.create("two")
    asked = {made[part].uuid: binding(bench, place)}
    error = is_refused(bench, book, asked, "1 of the 2 accelerator requests")
    assert made[1 - part].uuid in error.hint


def test_a_part_of_a_group_is_not_bound_and_nothing_changes(bench, book):
    one_of_each = book.create("many")[::4]
    asked = {each.uuid: binding(bench, GPU) for each in one_of_each}
    is_refused(bench, book, asked, "3 of the 12 accelerator requests")


def test_a_part_that_was_unbound_is_bound_again_with_the_whole_profile(
    bench, book, both
):
    first, second = both
    book.unbind([second.uuid])
    asked = {second.uuid: binding(bench, NIC)}
    is_refused(bench, book, asked, "1 of the 2 accelerator requests")
    book.unbind([first.uuid])
    bound = book.bind({first.uuid: binding(bench, GPU), **asked})
    assert {each.state for each in bound} == {RequestState.BOUND}


def test_the_accelerators_of_one_profile_are_not_divided_among_instances(bench, book):
    first, second = book.create("two")
    asked = {
        first.uuid: binding(bench, GPU),
        second.uuid: binding(bench, FPGA, number=2),
    }
    is_refused(bench, book, asked, "1 of the 2 accelerator requests")


def test_of_two_instances_none_is_bound_where_one_is_refused(bench, book):
    (whole,) = book.create("one")
    part, _rest = book.create("two")
    for first, second in ((1, 2), (2, 1)):
        asked = {
            whole.uuid: binding(bench, GPU, number=first),
            part.uuid: binding(bench, FPGA, number=second),
        }
        is_refused(bench, book, asked, "1 of the 2 accelerator requests")


def test_of_two_instances_none_is_bound_where_one_has_another_device(bench, book, one):
    """The request is bound already, to another instance."""
    book.bind({one.uuid: binding(bench, GPU, number=9)})
    (free,) = book.create("reserved")
    before, writes = book.find(), bench.kernel.writes()
    for first, second in ((1, 2), (2, 1)):
        with pytest.raises(exception.Conflict, match="Bound"):
            book.bind(
                {
                    free.uuid: binding(bench, FPGA, number=first),
                    one.uuid: binding(bench, GPU, number=second),
                }
            )
    assert (book.find(), bench.kernel.writes()) == (before, writes)


def test_a_profile_one_of_whose_requests_is_deleted_is_created_anew(bench, book):
    first, second = book.create("two")
    book.delete([second.uuid])
    asked = {first.uuid: binding(bench, GPU)}
    error = is_refused(bench, book, asked, "1 of the 2 accelerator requests")
    assert "create" in error.hint


def test_requests_of_two_creations_are_not_one_profile(bench, book):
    """Each group is complete; the groups are of different creations."""
    first, second = book.create("two"), book.create("two")
    asked = {
        first[0].uuid: binding(bench, GPU),
        second[1].uuid: binding(bench, FPGA),
    }
    is_refused(bench, book, asked, "created together")
    both = {
        each.uuid: binding(bench, place)
        for made in (first, second)
        for each, place in zip(made, (GPU, FPGA), strict=True)
    }
    is_refused(bench, book, both, "created together")


def test_requests_of_two_versions_of_a_profile_are_not_one_group(bench, book, tmp_path):
    old = create(book, tmp_path, GPUS, NICS)
    new = create(book, tmp_path, GPUS, FPGAS)
    for first, second in ((old[0], new[1]), (new[0], old[1])):
        asked = {each.uuid: binding(bench, GPU) for each in (first, second)}
        is_refused(bench, book, asked, "created together")


def test_a_request_is_named_once_however_it_is_spelt(bench, book, one):
    asked = {
        each: binding(bench, GPU, number)
        for number, each in enumerate((one.uuid, one.uuid.upper()), start=1)
    }
    with pytest.raises(exception.InvalidInput, match="twice"):
        book.bind(asked)


@pytest.mark.parametrize(
    ("own", "other"),
    [("node1.a.example", "node1.b.example"), ("node1", "node2"), ("node1", "")],
)
def test_a_host_of_another_full_name_is_another_host(bench, book, one, own, other):
    bench.restart(node_name=own)
    with pytest.raises(exception.InvalidInput, match="cannot bind request"):
        book.bind({one.uuid: binding(bench, GPU, host=other)})


@pytest.mark.parametrize("own", ["node1", "node1.a.example"])
def test_a_host_is_the_same_by_its_short_and_its_full_name(bench, book, one, own):
    bench.restart(node_name=own)
    for other in ("node1", "node1.a.example", "node1"):
        (bound,) = book.bind({one.uuid: binding(bench, GPU, host=other)})
        assert bound.state is RequestState.BOUND


# -- bindings of several instances in one call ------------------------------------


@pytest.fixture
def batches(book):
    """Return a request for the first and one for the second instance."""
    (first,), (second,) = book.create("one"), book.create("reserved")
    return first, second


@pytest.mark.parametrize(
    ("place", "plugged", "error"),
    [
        (None, None, exception.ProviderNotFound),
        (OTHER_GPU, None, exception.InvalidAllocation),
        (FPGA, OTHER_GPU, exception.Conflict),
    ],
    ids=["foreign provider", "other resource", "other accelerators"],
)
def test_an_instance_that_cannot_be_served_leaves_the_others_unbound(
    bench, book, batches, place, plugged, error
):
    first, second = batches
    if plugged:
        bench.plug(2, plugged)
    asked = binding(bench, place or FPGA, 2)
    if not place:
        asked["device_rp_uuid"] = uuid_of(77)
    before = bench.kernel.snapshot()
    with pytest.raises(error):
        book.bind({first.uuid: binding(bench, GPU, 1), second.uuid: asked})
    found = {each.uuid: each for each in book.find()}
    assert found[first.uuid] == first
    assert found[second.uuid].state is RequestState.BIND_FAILED
    assert found[second.uuid].reason
    assert bench.plugged(1) == []
    assert bench.kernel.snapshot() == before


def test_bindings_of_two_instances_are_made_in_one_call(bench, book, batches):
    first, second = batches
    asked = {first.uuid: binding(bench, GPU, 1), second.uuid: binding(bench, FPGA, 2)}
    assert {each.state for each in book.bind(asked)} == {RequestState.BOUND}
    assert book.bind(asked)
    assert (bench.plugged(1), bench.plugged(2)) == ([GPU], [FPGA])


# -- other leases of the same guest --------------------------------------------------


def test_a_part_whose_record_is_damaged_was_not_given_back(bench, book, tmp_path):
    """The device is allocated to the guest, which does not start without it."""
    made = create(book, tmp_path, GPUS, NICS, FPGAS)
    asked = zip(made, (GPU, NIC, FPGA), strict=True)
    book.bind({each.uuid: binding(bench, place) for each, place in asked})
    execute(
        file_in(bench.state_path),
        f"UPDATE leases SET digest = 'wrong' WHERE uuid = '{made[2].uuid}'",
    )
    bench.restart()
    assert book.unbind([made[1].uuid]) == 1
    with raises(exception.ObjectKind.LEASE, match="1 of 2"):
        bench.manager.plug(instance(1), None, None)


def test_what_waits_in_quarantine_of_before_is_no_part_of_what_is_bound_since(
    bench, book, both, tmp_path
):
    first, second = both
    bench.kernel.fail(NIC, "driver_override", times=1000)
    with pytest.raises(exception.DevicesUnreleased):
        book.unbind([first.uuid, second.uuid])
    bench.kernel.lift()
    (waiting,) = bench.manager.store.leases()
    third, fourth = create(book, tmp_path, GPUS, FPGAS)
    book.bind({third.uuid: binding(bench, GPU), fourth.uuid: binding(bench, FPGA)})
    assert book.unbind([fourth.uuid]) == 1
    is_whole(bench, book, third)
    release(bench, waiting.address)
    is_whole(bench, book, third)
