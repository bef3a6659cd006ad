# SPDX-License-Identifier: Apache-2.0

"""Results of the library, and the state of the host, as lines of text."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from os_acc.attach.manager import Manager
from os_acc.objects.device import Provider
from os_acc.objects.mdev import DeviceAddress
from os_acc.testing.demo.host import DemoHost

_ALL_EVENTS = 1000
_WIDTH = 88
_SHOWN_TRAITS = ("CUSTOM_FPGA_INTEL_", "CUSTOM_PROGRAMMABLE")


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
