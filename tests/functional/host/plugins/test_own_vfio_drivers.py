# SPDX-License-Identifier: Apache-2.0

"""A function stays on the driver that its vendor's plugin declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.testing import TestHost, conformance, instance
from tests.functional.host.plugins.test_nvidia import written
from tests.unit.plugins.staying_vendor import DRIVER, HERE, NAMED, VFS, make

VF, OTHER = VFS


@pytest.fixture
def host(tmp_path: Path, install_plugins: Callable[..., None]) -> Iterator[TestHost]:
    install_plugins(acme=f"{HERE}:AcmeGpu")
    with make(tmp_path) as found:
        yield found


def test_a_guest_gets_the_function_on_its_driver(host):
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, VF)
    assert (entry["pci_id"], entry["vfio_driver"]) == (VF, DRIVER)
    assert host.drivers(VF) == [DRIVER]
    host.kernel.hold(VF)
    host.kernel.let_go(VF)
    host.unplug(1)
    assert host.kernel.snapshot() == before
    # Neither an override nor an unbind nor a reset.
    assert written(host) == ["guest=1", "guest=0"]


def test_a_second_plug_of_the_guest_changes_nothing(host):
    (first,) = host.plug(1, VF)
    (second,) = host.manager.plug(instance(1), None, None)
    assert (first, written(host)) == (second, ["guest=1"])


def test_a_driver_that_does_not_offer_it_fails_the_plug(tmp_path, install_plugins):
    install_plugins(acme=f"{HERE}:Unprepared")
    with make(tmp_path) as host:
        with pytest.raises(exception.HostStepFailed, match="vfio"):
            host.plug(1, VF)
        assert host.manager.store.leases() == ()


@pytest.mark.parametrize("declaring", ["", f"{HERE}:DeclaresNothing"])
def test_no_other_plugin_gets_it(tmp_path, install_plugins, declaring):
    install_plugins(**({"acme": declaring} if declaring else {}))
    with make(tmp_path) as host:
        refused = host.rejected(VF)
        assert (refused.reason, refused.detail) == (
            RejectReason.NO_PLUGIN,
            f"no plugin has {DRIVER} in own_vfio_drivers",
        )


@pytest.mark.parametrize("version", ["DeclaresVfio", "DeclaresText", "DeclaresJunk"])
def test_a_plugin_declares_drivers_of_the_host_alone(
    tmp_path, install_plugins, version
):
    install_plugins(acme=f"{HERE}:{version}")
    with make(tmp_path) as host:
        (aside,) = host.manager.host_info()["set_aside"]
        assert (aside["name"], "own_vfio_drivers" in aside["reason"]) == ("acme", True)


def test_a_function_that_has_left_the_driver_is_rejected(host):
    host.bind(VF, "vfio-pci")
    host.restart(device_spec=[NAMED[0].replace("}", ', "prebound": true}')])
    refused = host.rejected(VF)
    assert refused.reason is RejectReason.NO_VFIO_DRIVER
    assert refused.detail == f"it is bound to vfio-pci, not to {DRIVER}"


@pytest.mark.parametrize("check", conformance.QUICK, ids=conformance.name_of)
def test_the_plugin_conforms(host, check):
    check(host, "acme")
