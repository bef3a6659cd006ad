# SPDX-License-Identifier: Apache-2.0

"""VFs that NVIDIA's driver has registered with VFIO before they are vGPUs.

No document tells when the driver does so: the type alone tells whether one is a vGPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims
from os_acc.privsep.outcome import Outcome
from os_acc.testing import TestHost, functions, vfio
from os_acc.testing.tree import Tree
from tests.functional.host.operator_commands import release
from tests.unit.plugins.vgpus import HALF, VFS, set_type, type_of
from tests.unit.plugins.vgpus import host as host
from tests.unit.store.store_files import lose_store


def register(host: TestHost, *vfs: str) -> None:
    with Tree(host.root).transaction() as tree:
        for each in vfs:
            assert vfio.register(tree, each) == 0


def hide(host: TestHost, vf: str) -> None:
    """Let a function have no vfio-dev, while its group has a node."""
    with Tree(host.root).transaction() as tree:
        vfio.hide(tree, functions.place(tree, vf))


@pytest.fixture
def registered(host: TestHost) -> TestHost:
    register(host, *VFS)
    return host


def test_a_guest_gets_a_registered_vf(registered):
    assert registered.manager.discover().refused == ()
    registered.plug(1, VFS[0])
    assert type_of(registered, VFS[0]) == HALF
    assert registered.unplug(1) == 1
    assert type_of(registered, VFS[0]) == 0


def test_a_vf_that_is_registered_after_the_scan_is_still_free(host, monkeypatch):
    check_same = verification.check_same

    def checked_late(*arguments: Any) -> None:
        check_same(*arguments)
        register(host, *VFS)

    monkeypatch.setattr(verification, "check_same", checked_late)
    host.plug(1, VFS[0])
    assert type_of(host, VFS[0]) == HALF


def test_the_vgpu_of_another_tool_is_in_use_and_not_unknown(registered):
    set_type(registered, VFS[0], HALF)
    refused = registered.rejected(VFS[0])
    assert refused.reason is RejectReason.HOST_USES


def test_a_vf_that_is_no_vgpu_is_not_released(registered):
    with pytest.raises(exception.NotFound, match="not prepared for a guest"):
        release(registered, VFS[0])


def test_the_record_of_a_guest_stays_while_its_driver_may_offer_the_vf(registered):
    """With ``vfio-dev`` or without: a release alone removes it."""
    registered.plug(1, VFS[0])
    (lease,) = registered.manager.store.leases()
    hide(registered, VFS[0])
    (answer,) = claims.forget(
        (PciAddress.parse(VFS[0]).parts,), lease.epoch, 60_000, lease.uuid
    )
    assert answer[0] == Outcome.REFUSED
    assert registered.unplug(1) == 1


def test_a_guest_keeps_a_vgpu_that_has_no_vfio_dev(registered):
    registered.plug(1, VFS[0])
    hide(registered, VFS[0])
    (before,) = registered.manager.store.leases()
    registered.restart().plug({"uuid": before.consumer}, None, None)
    (lease,) = registered.manager.store.leases()
    assert (lease.state, lease.handle.vgpu_type) == (LeaseState.HELD, HALF)
    lose_store(registered)
    release(registered, VFS[0])
    assert type_of(registered, VFS[0]) == 0
    assert not list(Path(registered.root, "run/os_acc").glob("*.vgpu"))
