# SPDX-License-Identifier: Apache-2.0

"""A policy holds in each order of events: devices first, or the guest's cells first."""

from __future__ import annotations

import logging

import pytest

from os_acc import exception
from os_acc.objects.numa import NUMAPolicy
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.numa_host import (
    ALLOWED,
    LOCAL,
    REMOTE,
    SPEC,
    UNKNOWN,
    WORDS,
    again,
    plug,
    policy_from,
    set_nodes,
)
from tests.functional.host.operator_commands import adopt

PREFERRED = {"accel1:numa_policy": "preferred"}


@pytest.fixture
def host(make_bench) -> TestHost:
    return make_bench(SPEC)


def affinities(host: TestHost) -> list[str | None]:
    """Return the affinities of the guest's devices as they are recorded."""
    return [
        each["numa_affinity"] for each in host.manager.attached(instance(1))[uuid_of(1)]
    ]


@pytest.mark.parametrize(
    ("by", "between"),
    [("request", "restart"), ("record", "restart"), ("record", "reboot")],
)
def test_numa_affinity_is_true_once_the_cells_are_known(host, by, between):
    (first,) = plug(host, REMOTE, cells=None, **PREFERRED)
    assert first["numa_affinity"] is None
    if between == "reboot":
        host.kernel.reboot()
    host.restart()
    if by == "record":
        (entry,) = again(host, [0])
    else:
        (entry,) = plug(host, REMOTE, cells=[0], **PREFERRED)
    assert entry == first | {"numa_affinity": "remote"}
    assert affinities(host) == ["remote"]


def test_numa_affinity_is_true_after_the_cells_changed(host):
    (entry,) = plug(host, REMOTE, cells=[0], **PREFERRED)
    assert entry["numa_affinity"] == "remote"
    for cells, word in (([2], "local"), ([3], "same socket"), ([0, 2], "local")):
        (entry,) = plug(host, REMOTE, cells=cells, **PREFERRED)
        assert entry["numa_affinity"] == word
        assert affinities(host) == [word]


def test_numa_affinity_is_true_after_the_node_of_the_device_changed(host):
    """An administrator can correct it, as can another setup of the firmware."""
    (first,) = plug(host, REMOTE, cells=[0], **PREFERRED)
    set_nodes(host, {REMOTE: 0})
    (entry,) = again(host, [0])
    assert entry == first | {"numa_affinity": "local", "numa_node": 0}
    assert affinities(host) == ["local"]


def test_without_cells_the_affinity_to_the_known_ones_stays(host):
    """The caller does not know them; the guest has not moved."""
    (first,) = plug(host, REMOTE, cells=[2], **PREFERRED)
    host.restart()
    assert again(host, None) == [first]
    assert plug(host, REMOTE, cells=None, **PREFERRED) == [first]


@pytest.mark.parametrize("policy", NUMAPolicy)
def test_a_policy_is_kept_once_the_cells_are_known(host, policy):
    """Each provider has one device, so no other one can be taken."""
    specs = {"accel1:numa_policy": policy.value}
    for address, word in WORDS.items():
        (first,) = plug(host, address, cells=None, **specs)
        before, leases = host.kernel.snapshot(), host.manager.store.leases()
        for call in (
            lambda: plug(host, address, cells=[0], **specs),  # noqa: B023 - called here
            lambda: again(host, [0]),
        ):
            if address in ALLOWED[policy]:
                assert call() == [first | {"numa_affinity": word}]
                continue
            with raises(exception.NoDeviceReason.NUMA_POLICY) as caught:
                call()
            assert address in str(caught.value)
            assert policy.value in str(caught.value)
            assert host.manager.store.leases() == leases
        assert host.kernel.snapshot() == before
        assert host.unplug(1) == 1


def test_required_is_kept_when_the_cells_change(host):
    specs = {"accel1:numa_policy": "required"}
    (first,) = plug(host, REMOTE, cells=[2], **specs)
    with pytest.raises(exception.NoDeviceAvailable, match="required"):
        again(host, [0])
    assert affinities(host) == ["local"]
    assert again(host, [3, 2]) == [first]


@pytest.mark.parametrize("place", ["flavor", "image", "port"])
def test_each_source_of_a_policy_is_kept(host, place):
    """A later plug without the source keeps the policy of the first one."""
    info, specs = policy_from(place, "preferred")
    selected, flavor = request(host.provider(REMOTE))
    host.manager.plug(instance(1) | info, selected, flavor | specs)
    (entry,) = again(host, [0])
    assert entry["numa_affinity"] == "remote"


@pytest.mark.parametrize("place", ["flavor", "image", "port"])
def test_a_policy_that_is_given_later_applies(host, place):
    """The first plug had none, so that the default, legacy, would apply."""
    info, specs = policy_from(place, "required")
    info["numa_cells"] = [0]
    (first,) = plug(host, UNKNOWN, cells=None)
    selected, flavor = request(host.provider(UNKNOWN))
    for chosen in (selected, None):
        with pytest.raises(exception.NoDeviceAvailable, match="required"):
            host.manager.plug(instance(1) | info, chosen, flavor | specs)
    assert again(host, [0]) == [first | {"numa_affinity": "unknown"}]


def test_the_policy_of_a_group_precedes_that_of_the_guest(host):
    plug(host, LOCAL, REMOTE, cells=None, **{"accel2:numa_policy": "preferred"})
    image = {"image_properties": {"hw_pci_numa_affinity_policy": "required"}}
    entries = again(host, [0], **image)
    assert [each["numa_affinity"] for each in entries] == ["local", "remote"]


def test_one_device_that_is_not_allowed_leaves_all_as_they_were(host):
    plug(host, LOCAL, REMOTE, cells=None, **{"accel1:numa_policy": "preferred"})
    with pytest.raises(exception.NoDeviceAvailable, match=REMOTE):
        again(host, [0])
    assert affinities(host) == [None, None]


def test_a_cell_that_the_host_does_not_have_is_named(host):
    (first,) = plug(host, LOCAL, cells=None)
    with pytest.raises(exception.InvalidInput, match="has 7"):
        again(host, [0, 7])
    assert again(host, None) == [first]


def test_the_same_cells_again_write_nothing(host):
    plug(host, LOCAL, cells=None)
    again(host, [0])
    leases = host.manager.store.leases()
    again(host, [0])
    assert host.manager.store.leases() == leases


def test_remote_devices_are_logged_once_for_the_same_cells(host, caplog):
    caplog.set_level(logging.WARNING)
    plug(host, REMOTE, cells=None, **PREFERRED)
    assert "are not local" not in caplog.text
    for _ in range(2):
        again(host, [0])
    (warning,) = [each for each in caplog.messages if "are not local" in each]
    assert f"{REMOTE} (remote, node 2)" in warning


def test_an_adopted_device_is_allowed_until_a_policy_is_given(host):
    """The policies of its lost lease are unknown."""
    plug(host, REMOTE, cells=None, **PREFERRED)
    store = host.manager.store
    store.delete(store.leases())
    adopt(host, REMOTE, "nouveau")
    (entry,) = again(host, [0])
    assert entry["numa_affinity"] == "remote"
    image = {"image_properties": {"hw_pci_numa_affinity_policy": "required"}}
    with pytest.raises(exception.NoDeviceAvailable, match="required"):
        again(host, [0], **image)
