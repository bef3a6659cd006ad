# SPDX-License-Identifier: Apache-2.0

"""Keep and return a vGPU that root's file, the store or the mark names no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost, instance
from tests.expected_errors import raises
from tests.functional.host.operator_commands import adopt, release
from tests.unit.plugins.vgpus import (
    HALF,
    VFS,
    WHOLE,
    set_type,
    tagged,
    type_of,
)
from tests.unit.plugins.vgpus import host as host
from tests.unit.privsep.root_config import limit_to
from tests.unit.store.store_files import lose_store


@pytest.mark.parametrize("values", [tagged(*VFS[1:]), ["{"]], ids=["other VFs", "bad"])
def test_an_unplug_deletes_what_root_s_configuration_names_no_more(host, values):
    limit_to(host.root, *tagged(*VFS))
    host.plug(1, VFS[0])
    limit_to(host.root, *values)
    assert host.unplug(1) == 1
    assert type_of(host, VFS[0]) == 0


def test_a_denied_creation_is_no_lack_of_capacity(host):
    """Also on a card that is full, another host would not help."""
    limit_to(host.root, *tagged(*VFS))
    host.plug(1, VFS[0])
    set_type(host, VFS[0], 0)
    for each in VFS[1:3]:
        set_type(host, each, HALF)
    limit_to(host.root, *tagged(*VFS[1:]))
    with raises(exception.StepReason.DENIED, match="root's configuration"):
        host.restart().plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == 0


def test_a_denied_deletion_is_no_use_by_a_guest(host):
    """It needs the operator: without the helper's record root's file decides."""
    host.plug(1, VFS[0])
    host.remove_records()
    limit_to(host.root, *tagged(*VFS[1:]))
    with pytest.raises(exception.DevicesUnreleased) as caught:
        host.unplug(1)
    ((_, error),) = caught.value.unreleased
    assert (type(error), error.errno) == (exception.HostStepFailed, 0)
    assert error.reason is exception.StepReason.DENIED
    assert "privileged.conf" in str(error.hint)
    assert host.lease_state() is LeaseState.QUARANTINED
    limit_to(host.root, *tagged(*VFS))
    release(host, VFS[0])
    assert type_of(host, VFS[0]) == 0
    assert host.manager.store.leases() == ()


def test_an_adopted_vgpu_keeps_its_type(host):
    host.plug(1, VFS[0])
    lose_store(host)
    adopted = adopt(host, VFS[0])
    assert (adopted.handle.vgpu_type, adopted.driver) == (HALF, "nvidia")
    host.kernel.reboot()
    host.restart(device_spec=tagged(*VFS, kind=WHOLE)).plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == HALF
    assert host.unplug(1) == 1
    assert type_of(host, VFS[0]) == 0


def lose_marks(host: TestHost) -> None:
    for each in Path(host.root, "run/os_acc").glob("*.vgpu"):
        each.unlink()


def test_a_vgpu_without_a_mark_waits_for_the_operator(host):
    """It may be the guest's: the next one must not get its memory."""
    host.plug(1, VFS[0])
    lose_marks(host)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        host.unplug(1)
    ((_, error),) = caught.value.unreleased
    assert "mark" in str(error)
    assert "nvidia/current_vgpu_type" in str(error.hint)
    assert type_of(host, VFS[0]) == HALF
    assert host.lease_state() is LeaseState.QUARANTINED
    set_type(host, VFS[0], 0)
    release(host, VFS[0])
    assert host.manager.store.leases() == ()


def test_a_lost_mark_of_a_deleted_vgpu_does_not_matter(host):
    host.plug(1, VFS[0])
    lose_marks(host)
    set_type(host, VFS[0], 0)
    assert host.unplug(1) == 1


def test_a_vgpu_goes_with_its_driver(host):
    host.plug(1, VFS[0])
    directory = Path(host.root, "sys/bus/pci/devices", VFS[0], "nvidia")
    for name in ("current_vgpu_type", "creatable_vgpu_types"):
        (directory / name).unlink()
    assert host.unplug(1) == 1
    assert not list(Path(host.root, "run/os_acc").glob("*.vgpu"))
