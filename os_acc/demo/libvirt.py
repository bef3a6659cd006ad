# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What Nova's libvirt driver makes of an entry of plug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree


def hostdev(entry: Mapping[str, Any]) -> str:
    """The ``<hostdev>`` element of an entry, as Nova 34 writes it.

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
