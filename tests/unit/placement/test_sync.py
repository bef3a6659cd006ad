# SPDX-License-Identifier: Apache-2.0

"""Publishing survives misbehaviour of Placement or of a proxy, at a bounded cost.

The lane ``openstack`` tests the same against Placement itself.
"""

import dataclasses
import re
import socket
import time

import pytest

from os_acc import exception
from os_acc.objects import provider_names
from os_acc.objects.device import CardProvider
from os_acc.placement import sync
from os_acc.placement.client import Client
from os_acc.placement.sync import SyncResult
from os_acc.testing import uuid_of
from tests.expected_errors import has, kind_of
from tests.unit.placement.capacity_examples import CLASS
from tests.unit.placement.placement_double import NODE, Provider
from tests.unit.placement.publishing import OF_PLACEMENT, ONE, TWO, Service, capacity


def kinds(found):
    return [kind_of(each.error) for each in found.refused]


# -- cost in requests --------------------------------------------------------------


def test_one_of_64_devices_that_has_changed_costs_one_write(double, service):
    before = [capacity(number) for number in range(64)]
    service.sync(*before)
    double.requests.clear()
    assert service.sync(*before) == SyncResult((), (), reads=1, writes=0)
    assert double.requests == [f"GET /resource_providers?in_tree={NODE}"]
    double.requests.clear()
    found = service.sync(capacity(0, reserved=1), *before[1:])
    assert (found.reads, found.writes) == (1, 1)
    path = f"/resource_providers/{before[0].uuid}/inventories"
    assert double.writes() == [f"PUT {path}"]
    assert service.sync(capacity(0, reserved=1), *before[1:]).writes == 0


def test_a_new_device_costs_what_it_has_and_names_are_asked_for_once(double, service):
    service.sync(ONE)
    found = service.sync(ONE, TWO)
    # Create the provider, set traits and inventory; all names exist already.
    assert (found.reads, found.writes) == (1, 3)


def test_the_first_time_each_name_is_made_once(double, service):
    service.sync(ONE, TWO)
    names = [each for each in double.writes() if "/resource_providers" not in each]
    assert sorted(names) == [
        f"PUT /resource_classes/{CLASS}",
        "PUT /traits/CUSTOM_FAST",
    ]


# -- names and versions unknown to Placement ---------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.25"])
def test_a_placement_that_is_too_old_is_told(double, service, version):
    double.version = version
    with pytest.raises(
        exception.ServiceUnavailable,
        check=has(
            service=exception.ServiceType.PLACEMENT,
            reason=exception.OutageReason.TOO_OLD,
        ),
        match=re.escape(version),
    ):
        service.sync(ONE)
    assert double.writes() == []


@pytest.mark.parametrize("version", ["1.26", "1.99"])
def test_versions_that_will_do(double, service, version):
    double.version = version
    assert service.sync(ONE).refused == ()


@pytest.mark.parametrize(("version", "moves"), [("1.36", False), ("1.37", True)])
def test_a_provider_is_put_below_its_card_where_placement_can(
    double, service, version, moves
):
    double.version = version
    service.sync(ONE)
    name = provider_names.of_card("node1", "1")
    card = CardProvider(provider_names.uuid_of(name), name)
    provider = dataclasses.replace(ONE.provider, card=card)
    found = service.sync(dataclasses.replace(ONE, provider=provider))
    # A card without regions is not created.
    assert len(found.done) == 2 * moves
    parent = card.uuid if moves else NODE
    assert double.providers[ONE.uuid].parent == parent


def test_a_standard_trait_that_is_too_new_costs_itself_alone(double, service):
    wanted = capacity(1, traits=("HW_NIC_SRIOV", "HW_YOUNGER", "CUSTOM_FAST"))
    for is_new in (True, False):
        found = service.sync(wanted, TWO)
        assert kinds(found) == [exception.RefusalReason.REFUSED]
        assert "HW_YOUNGER" in str(found.refused[0])
        assert bool(found.writes) is is_new
    assert double.providers[ONE.uuid].traits == {"HW_NIC_SRIOV", "CUSTOM_FAST"}
    assert double.providers[TWO.uuid].traits == {"CUSTOM_FAST"}


def test_a_standard_class_that_is_too_new_costs_its_inventory_alone(double, service):
    wanted = capacity(1, name="YOUNGER")
    found = service.sync(wanted, TWO)
    assert kinds(found) == [exception.RefusalReason.REFUSED]
    assert double.providers[ONE.uuid].inventories == {}
    assert double.providers[TWO.uuid].inventories.keys() == {CLASS}


def test_a_name_that_is_refused_costs_itself_alone(double, service):
    double.trouble("PUT", "/traits/CUSTOM_FAST", 400, times=99)
    found = service.sync(capacity(1, traits=("CUSTOM_FAST", "CUSTOM_SLOW")), TWO)
    assert [each.what for each in found.refused] == ["create trait CUSTOM_FAST"]
    assert double.providers[ONE.uuid].traits == {"CUSTOM_SLOW"}
    assert double.providers[TWO.uuid].inventories.keys() == {CLASS}


# -- conflicts ---------------------------------------------------------------------


def test_conflicts_are_met_by_a_fresh_read(double, service):
    """Weakness 27 of Cyborg: a conflict counts as success."""
    double.trouble("PUT", "/traits$", 409, code="placement.concurrent_update", times=3)
    found = service.sync(ONE, TWO)
    assert found.refused == ()
    assert double.providers[ONE.uuid].traits == {"CUSTOM_FAST"}


def test_a_storm_of_conflicts_has_an_end_and_blocks_nobody_else(double, service):
    stormy = f"{ONE.uuid}/inventories"
    code = "placement.concurrent_update"
    double.trouble("PUT", stormy, 409, code=code, times=10**6)
    found = service.sync(ONE, TWO)
    assert kinds(found) == [exception.RefusalReason.CONFLICT]
    tries = [
        each for each in double.requests if each == f"PUT /resource_providers/{stormy}"
    ]
    assert len(tries) == sync.ROUNDS
    assert double.providers[TWO.uuid].inventories.keys() == {CLASS}


def test_a_storm_ends_with_the_time(double, service, monkeypatch):
    monkeypatch.setattr(sync, "_PAUSE", 10**6)
    double.trouble("PUT", "traits", 409, code="placement.concurrent_update", times=99)
    assert kinds(service.sync(ONE)) == [exception.RefusalReason.CONFLICT]


# -- failures ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502])
def test_a_change_that_fails_blocks_no_other(double, service, status):
    double.trouble("PUT", f"{ONE.uuid}/traits", status, times=sync.ROUNDS)
    found = service.sync(ONE, TWO)
    (refused,) = found.refused
    assert refused.error.retryable
    assert double.providers[TWO.uuid].inventories.keys() == {CLASS}
    assert service.sync(ONE, TWO).refused == ()
    assert double.providers[ONE.uuid].inventories.keys() == {CLASS}


@pytest.mark.parametrize(("status", "done"), [(500, True), (500, False), (None, True)])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "resource_providers$"), ("PUT", "/inventories"), ("PUT", "/traits$")],
)
def test_a_change_that_fails_once_is_made_up_for(
    double, service, method, path, status, done
):
    """The result is the same whether the failed request was carried out or not."""
    double.trouble(method, path, status, done=done)
    assert service.sync(ONE, TWO).refused == ()
    assert service.sync(ONE, TWO) == SyncResult((), (), 1, 0)


def test_a_read_that_fails_is_an_error(double, service):
    double.trouble("GET", "in_tree", 500)
    with pytest.raises(exception.ServiceUnavailable, check=OF_PLACEMENT):
        service.sync(ONE)
    assert service.sync(ONE).refused == ()


@pytest.mark.parametrize("status", [503, None])
def test_what_passes_soon_is_asked_again(double, service, status):
    double.trouble("POST", "/resource_providers", status, times=2)
    double.trouble("PUT", "/inventories", status, times=2)
    double.trouble("GET", "in_tree", status, times=2)
    assert service.sync(ONE, TWO).refused == ()
    assert double.providers[ONE.uuid].inventories.keys() == {CLASS}


def test_one_who_never_answers_is_waited_for_until_the_deadline(double):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        service = Service(double, endpoint_override=address)
        began = time.monotonic()
        with pytest.raises(
            exception.ServiceUnavailable, check=OF_PLACEMENT, match="in time"
        ):
            service.sync(ONE, seconds=0.5)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("answer", [None, [], "x", {"versions": []}, {"hello": 1}])
def test_what_answers_elsewhere_is_told_as_a_wrong_endpoint(
    double, service, monkeypatch, answer
):
    """None: the response is not JSON."""
    monkeypatch.setattr(double, "_answered", lambda *_: (200, answer))
    with pytest.raises(exception.InvalidConfiguration) as error:
        service.sync(ONE)
    assert "endpoint_override" in error.value.hint


def test_what_was_begun_goes_on_after_a_restart(double, service):
    """Both Placement and the service stopped in the middle."""
    double.trouble("PUT", "/inventories", times=99)
    with pytest.raises(exception.ServiceUnavailable, check=OF_PLACEMENT):
        service.sync(ONE, TWO)
    double._troubles.clear()
    assert Service(double, service.record).sync(ONE, TWO).refused == ()
    assert double.providers[TWO.uuid].inventories.keys() == {CLASS}


# -- several services of one host ----------------------------------------------


@pytest.mark.parametrize("name", [None, "renamed"])
def test_one_of_ours_in_the_tree_of_an_earlier_node_is_to_be_deleted(
    double, service, name
):
    """The compute node was created again, with another UUID."""
    earlier = Provider(uuid_of(78), "node1-before", None)
    old = Provider(ONE.uuid, name or ONE.provider.name, earlier.uuid)
    double.providers |= {earlier.uuid: earlier, old.uuid: old}
    (refused,) = service.sync(ONE).refused
    assert refused.error.reason is exception.RefusalReason.NAME_TAKEN
    assert f"openstack resource provider delete {ONE.uuid}" in refused.error.hint
    assert "owner" not in refused.error.hint
    del double.providers[old.uuid]
    assert service.sync(ONE).refused == ()


def test_what_another_service_has_just_made_is_in_no_other_tree(double, service):
    """It appears between two reads: after the tree's, before the name's."""
    stranger = Provider(uuid_of(77), ONE.provider.name, None)
    double.providers[stranger.uuid] = stranger
    assert kinds(service.sync(ONE)) == [exception.RefusalReason.NAME_TAKEN]
    del double.providers[stranger.uuid]

    class Late(Client):
        def tree(self, root, deadline):
            found = super().tree(root, deadline)
            Service(double, service.record).sync(ONE)
            return found

    late = Service(double, service.record, client=Late(double.config()))
    assert late.sync(ONE).refused == ()
    assert double.providers[ONE.uuid].inventories[CLASS]["total"] == 4
