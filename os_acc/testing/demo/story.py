# SPDX-License-Identifier: Apache-2.0

"""The steps of the demo in order, and their results as lines of text."""

from __future__ import annotations

import itertools
import json
import signal
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from oslo_utils import uuidutils

import os_acc
from os_acc import service
from os_acc.attach.manager import Manager
from os_acc.objects.api import InstanceDict
from os_acc.objects.device import Provider
from os_acc.objects.mdev import DeviceAddress
from os_acc.testing import Snapshot, request
from os_acc.testing.demo import host
from os_acc.testing.demo.host import DemoHost

#: Resource classes; the second GPU is for the plug that is killed.
_GPU, _NIC = "CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_NIC"
_PROGRAMMABLE = "CUSTOM_PROGRAMMABLE"
_ALL_EVENTS = 1000
_WIDTH = 88
_SHOWN_TRAITS = ("CUSTOM_FPGA_INTEL_", "CUSTOM_PROGRAMMABLE")


class Story:
    """Plug two accelerators for one guest, kill the plug for another.

    An FPGA is programmed for a third guest.
    """

    def __init__(self, host: DemoHost) -> None:
        self._host = host
        self._out = terminal = Terminal()
        self._guests: list[InstanceDict] = [
            {"uuid": uuidutils.generate_uuid(), "name": f"guest-{number}"}
            for number in (1, 2, 3)
        ]
        self._one, self._two, self._three = self._guests
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
        manager = host.start(self._host.config_file, self._host.root)
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
        selected_rp, extra_specs = request(gpu, nic)
        del extra_specs["group_policy"]
        extra_specs["group_policy"] = "isolate"
        self._plug(self._one, selected_rp, extra_specs)
        leases = manager.store.leases(self._one["uuid"])
        functions = tuple(address for lease in leases for address in lease.members)
        self._show.bindings(functions)
        return functions

    def _plug(
        self, guest: InstanceDict, selected_rp: Any, extra_specs: dict[str, str]
    ) -> None:
        for key, value in extra_specs.items():
            self._out.say(f"flavor: {key} = {value}")
        entries = os_acc.plug(guest, selected_rp, extra_specs)
        self._out.say("os_acc.plug() returns")
        self._show.entries(entries)

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
        manager = host.start(self._host.config_file, self._host.root)
        self._show.bindings(gpu.device.handles[0].members)
        self._show.new_events(manager)
        entries = host.plug_one(self._two, gpu)
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
        self._plug(self._three, {"uuid": fpga.uuid}, extra_specs)
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


class Terminal:
    """Writes numbered headings, tables and indented blocks."""

    def __init__(self) -> None:
        self._number = itertools.count(1)

    def step(self, title: str) -> None:
        """Write the heading of the next step."""
        print(f"\n{next(self._number)}. {title}", flush=True)

    def say(self, text: str, indent: int = 3) -> None:
        """Write a block of text, each line indented."""
        for line in text.splitlines():
            print(" " * indent + line, flush=True)

    def table(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows of cells, each column as wide as its widest cell."""
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.say("  ".join(cells).rstrip(), indent=5)


class Views:
    """Writes results to the terminal; each event of the journal once.

    :param names: of instances, by their uuid.
    """

    def __init__(
        self, host: DemoHost, terminal: Terminal, names: Mapping[str, str]
    ) -> None:
        self._host = host
        self._out = terminal
        self._names = names
        self._events = 0

    def providers(self, providers: Iterable[Provider]) -> None:
        """Show providers: name, resource class, capacity, NUMA node."""
        self._out.table(
            (
                provider.name,
                provider.device.resource_class,
                f"x{len(provider.device.handles)}",
                f"node {_or_dash(provider.device.numa_node)}",
            )
            for provider in providers
        )

    def functions_of(self, provider: Provider) -> None:
        """Show the traits of an FPGA's region and function, in one of their forms."""
        for trait in sorted(provider.device.traits):
            if trait.startswith(_SHOWN_TRAITS):
                self._out.say(trait, indent=5)

    def entries(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Show complete entries of plug, in lines of a terminal's width."""
        for entry in entries:
            text = json.dumps(entry)
            lines = textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
            self._out.say("\n ".join(lines), indent=5)

    def bindings(self, addresses: Iterable[DeviceAddress]) -> None:
        """Show functions with driver and override, from the host's tree."""
        states = [self._host.kernel.state(address) for address in addresses]
        self._out.table(
            (
                state.address,
                f"driver {_or_dash(state.driver)}",
                f"override {_or_dash(state.driver_override)}",
            )
            for state in states
        )

    def leases(self, manager: Manager) -> None:
        """Show all leases in the store, and the drivers that they will restore."""
        self._out.table(
            (
                f"lease {lease.state.value}",
                lease.guest.name or self._names[lease.consumer],
                lease.address,
                f"restores {', '.join(_or_dash(each.driver) for each in lease.prior)}",
            )
            for lease in manager.store.leases()
        )

    def new_events(self, manager: Manager) -> None:
        """Show the events that the journal has got since the last call."""
        events = manager.store.events(_ALL_EVENTS)
        self._out.table(
            (
                event.when.strftime("%H:%M:%S.%f"),
                event.operation,
                event.state,
                self._names[event.consumer],
                event.address,
            )
            for event in events[self._events :]
        )
        self._events = len(events)


def hostdev(entry: Mapping[str, Any]) -> str:
    """Return the ``<hostdev>`` element of an entry, as Nova 34 writes it.

    LibvirtConfigGuestHostdevPCI.format_dom() in nova/virt/libvirt/config.py;
    ``managed`` is ``yes``, so libvirt finds the device on vfio-pci and leaves
    it there.
    """
    element = ElementTree.Element(
        "hostdev", {"mode": "subsystem", "type": "pci", "managed": "yes"}
    )
    info = entry["attach_handle_info"]
    address = {
        "domain": f"0x{info['domain']}",
        "bus": f"0x{info['bus']}",
        "slot": f"0x{info['device']}",
        "function": f"0x{info['function']}",
    }
    source = ElementTree.SubElement(element, "source")
    ElementTree.SubElement(source, "address", address)
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding="unicode")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
