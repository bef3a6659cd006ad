# SPDX-License-Identifier: Apache-2.0

"""The XML of an entry of plug, as Nova's libvirt driver writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree


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
