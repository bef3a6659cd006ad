# SPDX-License-Identifier: Apache-2.0

"""The driver fits the release of Nova, or nova-compute does not start."""

import inspect
import re

import pytest
from nova.virt import driver as interface
from nova.virt.libvirt import driver as libvirt
from nova.virt.libvirt import guest, host

from os_acc import exception
from os_acc.nova import driver, guest_devices, hooks, live_migration

OURS, NOVAS = driver.LibvirtDriver, libvirt.LibvirtDriver


def test_this_release_fits():
    hooks.check(OURS, NOVAS)


def test_the_table_has_each_method_that_the_driver_overrides_or_calls():
    own = vars(live_migration.MigratingDriver) | vars(OURS)
    overridden = {
        name
        for name, found in own.items()
        if inspect.isfunction(found) and hasattr(NOVAS, name) and name != "__init__"
    }
    source = inspect.getsource(driver) + inspect.getsource(guest_devices)
    called = {
        name
        for name in re.findall(r"\bself\.(_\w+)\(", source)
        if hasattr(NOVAS, name) and name not in own
    }
    assert overridden | called == {*hooks.PUBLIC, *hooks.PRIVATE}
    for used, kind in ((hooks.OF_GUEST, guest.Guest), (hooks.OF_HOST, host.Host)):
        for name in used:
            assert f".{name}(" in source
            assert hasattr(kind, name)


def test_the_public_ones_are_those_of_the_interface():
    assert all(hasattr(interface.ComputeDriver, name) for name in hooks.PUBLIC)
    assert not any(hasattr(interface.ComputeDriver, name) for name in hooks.PRIVATE)


@pytest.mark.parametrize("name", [*hooks.PUBLIC, *hooks.PRIVATE])
def test_a_renamed_method_is_refused_by_its_name(name, monkeypatch):
    for each in (NOVAS, interface.ComputeDriver):
        if name in vars(each):
            monkeypatch.delattr(each, name)
    with pytest.raises(exception.InvalidConfiguration, match=f"has no method {name} "):
        hooks.check(OURS, NOVAS)


@pytest.mark.parametrize(
    "changed",
    [
        lambda self, context, network_info, instance, *, destroy_vifs=True: None,
        lambda self, context, instance, network_info: None,
    ],
    ids=["moved", "removed"],
)
def test_a_changed_parameter_is_refused(changed):
    novas = type("LibvirtDriver", (NOVAS,), {"cleanup": changed})
    with pytest.raises(exception.InvalidConfiguration, match="cleanup does not accept"):
        hooks.check(OURS, novas)


def test_parameters_that_a_decorator_hides_are_not_compared():
    hidden = {"cleanup": lambda *args, **kwargs: None}
    hooks.check(OURS, type("LibvirtDriver", (NOVAS,), hidden))


def test_nova_compute_does_not_start_with_a_release_that_does_not_fit(monkeypatch):
    monkeypatch.delattr(NOVAS, "_guest_add_accel_pci_devices")
    virt = OURS.__new__(OURS)
    with pytest.raises(exception.InvalidConfiguration, match="_guest_add_accel_pci"):
        virt.init_host("host")
