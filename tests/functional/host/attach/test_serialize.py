# SPDX-License-Identifier: Apache-2.0

"""A plug returns entries in the format of the specification and of Nova's driver."""

from __future__ import annotations

import datetime

import pytest

import os_acc
from os_acc import exception
from os_acc.attach.serialize import accelerator
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import uuid_of
from tests.unit import leases


def lease(place: str, state: LeaseState = LeaseState.HELD, node: int | None = 1):
    address = PciAddress.parse(place)
    return leases.lease(
        address,
        group="_gpu",
        numa_node=node,
        state=state,
        created_at=1_795_443_021_000_250,
    )


def test_an_entry_is_a_bound_accelerator_request():
    assert accelerator(lease("0000:3b:1f.7")) == {
        "pci_id": "0000:3b:1f.7",
        "uuid": uuid_of(1),
        "state": "Bound",
        "attach_handle_type": "PCI",
        "attach_handle_uuid": uuid_of(1),
        "attach_handle_info": {
            "domain": "0000",
            "bus": "3b",
            "device": "1f",
            "function": "7",
        },
        "device_rp_uuid": uuid_of(3),
        "instance_uuid": uuid_of(2),
        "request_group": "_gpu",
        "numa_node": 1,
        "numa_affinity": None,
        "created_at": "2026-11-23T14:10:21.000250+00:00",
    }


def test_a_vmd_domain_has_as_many_digits_as_it_needs():
    found = accelerator(lease("10000:01:00.0", node=None))
    assert found["pci_id"] == "10000:01:00.0"
    assert found["attach_handle_info"]["domain"] == "10000"
    assert found["numa_node"] is None


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (LeaseState.PREPARING, "BindStarted"),
        (LeaseState.HELD, "Bound"),
        (LeaseState.RELEASING, "Deleting"),
        (LeaseState.QUARANTINED, "UnbindFailed"),
    ],
)
def test_states_have_the_names_that_nova_knows(state, name):
    assert accelerator(lease("0000:3b:00.0", state))["state"] == name


def test_every_state_has_a_name():
    assert all(
        accelerator(lease("0000:3b:00.0", state))["state"] for state in LeaseState
    )


@pytest.mark.parametrize(("age", "held"), [(90.0, 90.0), (-5.0, 0.0)])
def test_the_age_of_an_entry_is_in_seconds_and_never_negative(age, held):
    created = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    entry = accelerator(lease("0000:3b:00.0")) | {"created_at": created.isoformat()}
    assert os_acc.held_seconds(entry) == pytest.approx(held, abs=30)
    assert os_acc.held_seconds(entry) >= held


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"created_at": 7}, {"created_at": "x"}, {"created_at": "2026-11-23"}],
)
def test_the_age_of_anything_else_is_refused(entry):
    with pytest.raises(exception.InvalidInput, match="created_at"):
        os_acc.held_seconds(entry)
