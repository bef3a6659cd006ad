# SPDX-License-Identifier: Apache-2.0

"""Checks of ``discover()``: it is stable, only reads, and names devices for good."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from os_acc.objects.device import Provider, RejectReason
from os_acc.objects.mdev import DeviceAddress, MdevSlot
from os_acc.testing.conformance.common import contents, offered, require, require_equal
from os_acc.testing.test_host import TestHost

_DEVICES = "sys/bus/pci/devices"
_STRANGER = "0a5c0000-7b1e-4c9d-8f3a-00000000c0de"


def discovery_is_stable(host: TestHost, plugin: str) -> None:
    """Two scans find equal devices.

    :raises RuleBroken: no device is offered, or two scans differ.
    """
    first = offered(host, plugin)
    require(offered(host, plugin) == first, "two scans find equal devices")


def discovery_only_reads(host: TestHost, plugin: str) -> None:
    """A scan writes nothing, to no attribute and to no file.

    Neither the first scan nor a later one does, and none writes a text that is there
    already. A service without the plugin has made the VFs before.

    :raises RuleBroken: no device is offered, or a scan changed the host.
    """
    _of_new_node(host, plugin, "others", enabled_plugins=[_other_than(plugin)])
    before, writes = contents(host, times=True), len(host.kernel.writes())
    for _ in range(2):
        offered(host, plugin)
        require(not host.kernel.writes(writes), "discover() writes nothing")
        require_equal(before, host, "discover() writes nothing", times=True)


def devices_are_valid(host: TestHost, plugin: str) -> None:
    """Each device and rejection is valid, and each name and unit is offered once.

    So is each result of the plugin's health step, if it has one, which only reads.

    :raises RuleBroken: with the first rule that one broke; or discovery failed.
    """
    inventory = host.manager.discover()
    invalid = (e for e in inventory.refused if e.reason is RejectReason.INVALID)
    for rule in (*(each.detail for each in invalid), *inventory.broken_rules):
        require(not rule.startswith(f"{plugin}: "), rule)
    for each in (*host.manager.plugins.set_aside, *inventory.set_aside):
        require(each.name != plugin, f"discover() returns devices: {each.reason}")
    offered(host, plugin)
    reader, writes = host.manager.health_steps, len(host.kernel.writes())
    reader.read()
    if plugin in host.manager.plugins.health_steps:
        require(not host.kernel.writes(writes), "the health step writes nothing")
    for (name, _function), defect in reader.defects.items():
        require(name != plugin, f"the health step reads a function: {defect}")


def names_survive_restart(host: TestHost, plugin: str) -> None:
    """Providers have the same names after the service starts again.

    :raises RuleBroken: no device is offered, or a provider has another name.
    """
    before = _names(offered(host, plugin))
    host.restart()
    after = _names(offered(host, plugin))
    require(after == before, "providers have the same names after a restart")


def names_ignore_usable_functions(host: TestHost, plugin: str) -> None:
    """A provider's name does not depend on the functions that are usable.

    The first two units of a device and its last one are hidden in turn, on a host
    whose providers are not recorded yet: a function is on vfio-pci without a lease, a
    unit of mediated devices is that of another tool.

    :raises RuleBroken: no device is offered, or a provider has another name.
    """
    found = offered(host, plugin)
    every = {each.device.address for each in found}
    for provider in found:
        units = [each.address for each in provider.device.handles]
        # A plugin may name a device after its first or its last unit.
        hidden = dict.fromkeys([*units[:2], *units[-1:]])
        for unit in hidden if len(units) > 1 else ():
            with _hidden(host, unit):
                names = {
                    each.device.address
                    for each in _of_new_node(host, plugin, str(unit))
                }
            require(
                names <= every and provider.device.address in names,
                f"the name of {provider.name} does not depend on {unit}",
            )


def names_survive_vfs(host: TestHost, plugin: str) -> None:
    """Providers keep their names while VFs vanish and appear again.

    :raises RuleBroken: no device is offered, or a provider has another name.
    """
    before = _names(offered(host, plugin))
    for attribute, number in _vf_counts(host, plugin).items():
        host.kernel.write(attribute, "0")
        host.manager.discover()
        host.kernel.write(attribute, str(number))
        after = _names(offered(host, plugin))
        require(after == before, "providers have the same names once VFs are back")


def _names(providers: list[Provider]) -> list[tuple[str, str]]:
    return [(each.uuid, each.name) for each in providers]


def _vf_counts(host: TestHost, plugin: str) -> dict[str, int]:
    """Return ``sriov_numvfs`` of each PF whose VFs are offered, by its path."""
    found: dict[str, int] = {}
    for provider in offered(host, plugin):
        for handle in provider.device.handles:
            pf = host.kernel.path(_DEVICES, str(handle.address), "physfn")
            if os.path.exists(pf):
                path = os.path.join(os.path.realpath(pf), "sriov_numvfs")
                found[path] = int(host.kernel.read(path))
    return found


def _other_than(plugin: str) -> str:
    return "mdev" if plugin == "pci" else "pci"


def _of_new_node(
    host: TestHost, plugin: str, name: str, **options: object
) -> list[Provider]:
    """Return the providers as a service finds them that has recorded none."""
    state = host.directory / "conformance" / name.replace("/", "_")
    manager = host.start(state_path=str(state), **options)
    return [each for each in manager.providers() if each.device.plugin == plugin]


@contextlib.contextmanager
def _hidden(host: TestHost, address: DeviceAddress) -> Iterator[None]:
    """Take a unit away from os_acc in a block."""
    if isinstance(address, MdevSlot):
        with _taken(host, address):
            yield
        return
    state = host.kernel.state(address)
    host.bind(str(address), "vfio-pci")
    try:
        yield
    finally:
        device = host.kernel.path(_DEVICES, str(address))
        host.kernel.write(f"{device}/driver/unbind", str(address))
        host.kernel.write(f"{device}/driver_override", "\n")
        if state.driver is not None:
            host.kernel.write(
                host.kernel.path("sys/bus/pci/drivers_probe"), str(address)
            )


@contextlib.contextmanager
def _taken(host: TestHost, slot: MdevSlot) -> Iterator[None]:
    parent = host.kernel.path("sys/class/mdev_bus", slot.type.parent)
    kind = os.path.join(parent, "mdev_supported_types", slot.type.name)
    host.kernel.write(os.path.join(kind, "create"), _STRANGER)
    try:
        yield
    finally:
        made = host.kernel.path("sys/bus/mdev/devices", _STRANGER, "remove")
        host.kernel.write(made, "1")
