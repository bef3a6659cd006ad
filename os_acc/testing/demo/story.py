# SPDX-License-Identifier: Apache-2.0

"""The steps of the demo, in order."""

from __future__ import annotations

import signal

from oslo_utils import uuidutils

import os_acc
from os_acc import service
from os_acc.attach.manager import Manager
from os_acc.objects.api import InstanceDict
from os_acc.objects.device import Provider
from os_acc.objects.mdev import DeviceAddress
from os_acc.testing import Snapshot
from os_acc.testing.demo import compute
from os_acc.testing.demo.host import DemoHost
from os_acc.testing.demo.views import Terminal, Views, hostdev

#: Resource classes; the second GPU is for the plug that is killed.
_GPU, _NIC = "CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_NIC"
_PROGRAMMABLE = "CUSTOM_PROGRAMMABLE"


class Story:
    """Plug two accelerators for one guest, kill the plug for another.

    An FPGA is programmed for a third guest.
    """

    def __init__(self, host: DemoHost, terminal: Terminal) -> None:
        self._host = host
        self._out = terminal
        self._one: InstanceDict = {"uuid": uuidutils.generate_uuid(), "name": "guest-1"}
        self._two: InstanceDict = {"uuid": uuidutils.generate_uuid(), "name": "guest-2"}
        self._three: InstanceDict = {
            "uuid": uuidutils.generate_uuid(),
            "name": "guest-3",
        }
        self._guests = (self._one, self._two, self._three)
        names = {each["uuid"]: each["name"] for each in self._guests}
        self._show = Views(host, terminal, names)

    def run(self) -> bool:
        """Show all steps; return whether the host ends as it was."""
        manager = self._discover()
        before = self._host.kernel.snapshot()
        gpu, other_gpu = (each for each in service.get().providers() if _is(each, _GPU))
        (nic,) = (each for each in service.get().providers() if _is(each, _NIC))
        functions = self._plug_two(manager, gpu, nic)
        self._xml()
        self._journal(manager)
        functions += self._die_half_way(manager, other_gpu)
        self._recover(other_gpu)
        functions += self._program()
        self._unplug()
        return self._compare(functions, before, self._host.kernel.snapshot())

    def _discover(self) -> Manager:
        self._out.step("Discover: what os_acc offers of a simulated two-socket host")
        manager = compute.start(self._host.config_file, self._host.root)
        for each in manager.settings.device_spec:
            self._out.say(f"[os_acc] device_spec = {each}")
        self._show.providers(service.get().providers())
        self._out.say("What it does not offer, though device_spec names it:")
        self._out.table((each.address, each) for each in manager.discover().refused)
        return manager

    def _plug_two(
        self, manager: Manager, gpu: Provider, nic: Provider
    ) -> tuple[DeviceAddress, ...]:
        self._out.step("Plug two accelerators for guest-1")
        extra_specs = {
            f"resources1:{_GPU}": "1",
            f"resources2:{_NIC}": "1",
            "group_policy": "isolate",
        }
        selected_rp = {
            "allocations": {
                gpu.uuid: {"resources": {_GPU: 1}},
                nic.uuid: {"resources": {_NIC: 1}},
            },
            "mappings": {"1": [gpu.uuid], "2": [nic.uuid]},
        }
        for key, value in extra_specs.items():
            self._out.say(f"flavor: {key} = {value}")
        entries = os_acc.plug(self._one, selected_rp, extra_specs)
        self._out.say("os_acc.plug() returns")
        self._show.entries(entries)
        leases = manager.store.leases(self._one["uuid"])
        functions = tuple(address for lease in leases for address in lease.members)
        self._show.bindings(functions)
        return functions

    def _xml(self) -> None:
        self._out.step("The XML that Nova's libvirt driver makes of these entries")
        for entry in os_acc.attached(self._one)[self._one["uuid"]]:
            self._out.say(hostdev(entry), indent=5)

    def _journal(self, manager: Manager) -> None:
        self._out.step("The journal: leases with what to restore, and their history")
        self._show.leases(manager)
        self._show.new_events(manager)

    def _die_half_way(
        self, manager: Manager, gpu: Provider
    ) -> tuple[DeviceAddress, ...]:
        self._out.step("Kill a plug for guest-2 half-way, in a process of its own")
        status = self._host.kill_in_mid_plug(self._two, gpu)
        self._out.say(f"It died by {signal.Signals(-status).name} and left")
        functions = gpu.device.handles[0].members
        self._show.bindings(functions)
        self._show.leases(manager)
        return functions

    def _recover(self, gpu: Provider) -> None:
        self._out.step("Recover: os_acc.initialize() goes back, and guest-2 is served")
        manager = compute.start(self._host.config_file, self._host.root)
        self._show.bindings(gpu.device.handles[0].members)
        self._show.new_events(manager)
        entries = compute.plug_one(self._two, gpu)
        self._out.say("os_acc.plug(), called again for guest-2, returns")
        self._show.entries(entries)

    def _program(self) -> tuple[DeviceAddress, ...]:
        self._out.step("Program an FPGA for guest-3, whose flavor names a function")
        (fpga,) = (
            each
            for each in service.get().providers()
            if _PROGRAMMABLE in each.device.traits
        )
        self._out.say(f"Placement gets the provider {fpga.name}")
        self._show.functions_of(fpga)
        extra_specs = {
            f"resources1:{fpga.device.resource_class}": "1",
            f"trait1:{_PROGRAMMABLE}": "required",
            "accel1:function_name": "gzip",
        }
        for key, value in extra_specs.items():
            self._out.say(f"flavor: {key} = {value}")
        entries = os_acc.plug(self._three, {"uuid": fpga.uuid}, extra_specs)
        self._out.say("os_acc.plug() returns")
        self._show.entries(entries)
        (held,) = self._host.kernel.held_by_hardware(fpga.device.address)
        self._out.say(f"the card holds {held}")
        (fpga,) = (each for each in service.get().providers() if each.uuid == fpga.uuid)
        self._out.say(
            "Placement gets no function trait: the guest could replace the function"
        )
        self._show.functions_of(fpga)
        return fpga.device.handles[0].members

    def _unplug(self) -> None:
        self._out.step("Unplug")
        for instance in self._guests:
            count = os_acc.unplug(instance)
            self._out.say(f"os_acc.unplug() for {instance['name']}: {count} released")
        self._out.say(f"os_acc.attached(): {os_acc.attached()}")

    def _compare(
        self, functions: tuple[DeviceAddress, ...], before: Snapshot, after: Snapshot
    ) -> bool:
        self._out.step("Compare the host with what it was before the first plug")
        self._show.bindings(functions)
        changed = set(before) ^ set(after)
        for state in sorted(changed, key=lambda each: each.address):
            when = "before" if state in before else "now"
            self._out.say(f"differs, {when}: {state}")
        self._out.say(
            f"{len(after)} functions compared (driver, override, VFs): "
            f"{len({state.address for state in changed})} differ"
        )
        return not changed


def _is(provider: Provider, resource_class: str) -> bool:
    return provider.device.resource_class == resource_class
