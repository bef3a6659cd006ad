# SPDX-License-Identifier: Apache-2.0

"""The public API is the recorded one: see the manual's page on compatibility."""

from __future__ import annotations

import json

import os_acc
from tools import public_api

RECORDED = json.loads(public_api.RECORD.read_text())
FOUND = public_api.describe()


def test_nothing_recorded_was_removed_or_changed() -> None:
    assert public_api.incompatible(RECORDED, FOUND) == []


def test_every_addition_is_recorded() -> None:
    added = [name for name in FOUND if name not in RECORDED]
    assert added == [], "run: python tools/public_api.py --record"


def test_the_record_has_each_kind_of_promise() -> None:
    assert {f"os_acc.{name}" for name in os_acc.__all__ if name != "Node"} <= set(FOUND)
    assert {
        "os_acc.Node.plug",
        "os_acc.requests.bind",
        "os_acc.numa.fit_to_host",
        "InstanceDict['uuid']",
        "AcceleratorEntry['pci_id']",
        "os_acc.exception.DeviceInUse",
        "[os_acc] device_spec",
        "os-acc device list --state",
        "nova.api.extra_spec_validators: os_acc",
        "accel:attach_target",
        "device_spec: num_vfs",
        "state: Bound",
    } <= set(FOUND)


def test_a_removed_name_and_a_changed_signature_are_incompatible() -> None:
    changed = FOUND | {"os_acc.plug": "()"}
    del changed["os-acc unplug"]
    assert len(public_api.incompatible(FOUND, changed)) == 2


def test_an_addition_is_compatible() -> None:
    assert public_api.incompatible(FOUND, FOUND | {"os_acc.more": "()"}) == []
