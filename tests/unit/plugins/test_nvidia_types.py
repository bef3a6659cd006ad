# SPDX-License-Identifier: Apache-2.0

"""vGPUs of more than one type on a card of NVIDIA."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost, instance
from tests.unit.plugins.vgpus import HALF, VFS, WHOLE, set_type, type_of
from tests.unit.plugins.vgpus import host as host


def test_the_vgpu_of_another_type_is_not_the_one_of_the_lease(host: TestHost) -> None:
    host.plug(1, VFS[0])
    set_type(host, VFS[0], 0)
    set_type(host, VFS[0], WHOLE)
    host.unplug(1)
    assert type_of(host, VFS[0]) == WHOLE
    assert host.manager.store.leases() == ()


@pytest.mark.parametrize("how", ["deleted and made", "rebooted"])
def test_a_guest_does_not_get_the_vgpu_of_another_type(
    host: TestHost, how: str
) -> None:
    """Another tool has made it, perhaps before os_acc started in this boot."""
    host.plug(1, VFS[0])
    if how == "rebooted":
        host.kernel.reboot()
    else:
        set_type(host, VFS[0], 0)
    set_type(host, VFS[0], WHOLE)
    host.restart()
    before = host.kernel.snapshot()
    for _ in range(2):
        with pytest.raises(exception.DeviceInUse) as caught:
            host.manager.plug(instance(1), None, None)
        assert caught.value.message == (
            f"{VFS[0]} is a vGPU of type {WHOLE}, and its guest needs one of type "
            f"{HALF}"
        )
        assert "current_vgpu_type" in caught.value.hint
    assert host.kernel.snapshot() == before
    assert host.lease_state() is LeaseState.HELD

    set_type(host, VFS[0], 0)
    host.manager.plug(instance(1), None, None)
    assert type_of(host, VFS[0]) == HALF
    host.unplug(1)
    assert type_of(host, VFS[0]) == 0
