# SPDX-License-Identifier: Apache-2.0

"""Let Nova's classes define guests, for the machine, in a process on the host.

``nova_definitions.py <results folder>`` answers the requests of
:mod:`.guest_definition` until its standard input ends. In the machine, software
emulation would take a minute to import Nova.
"""

from __future__ import annotations

import importlib
import json
import select
import sys
import time
import uuid
from pathlib import Path
from typing import Any

#: The folder of requests and answers, in the results folder.
FOLDER = "definitions"
REQUEST, ANSWER = ".json", ".xml"
#: Seconds between two looks for requests.
_INTERVAL = 0.2


def definition(entries: list[Any]) -> str:
    """Return the XML of a guest with entries of ``os_acc.plug``.

    The driver of os_acc passes ``accel_info`` and the UUIDs of mediated devices to
    ``_get_guest_config`` of Nova's driver, which calls these two methods.
    """
    conversion = importlib.import_module("os_acc.nova.conversion")
    devices = importlib.import_module("os_acc.nova.guest_devices").GuestDevices
    driver = importlib.import_module("os_acc.nova.driver").LibvirtDriver
    config = importlib.import_module("nova.virt.libvirt.config")
    guest = config.LibvirtConfigGuest()
    guest.uuid = guest.name = str(uuid.uuid4())
    guest.memory, guest.vcpus, guest.virt_type = 64 * 1024, 1, "qemu"
    accel_info = conversion.accel_info(entries)
    assert all(each["attach_handle_type"] == "PCI" for each in accel_info)
    # Its constructor needs libvirt.
    of_nova = driver.__new__(driver)
    of_nova._guest_add_accel_pci_devices(guest, accel_info)
    of_nova._guest_add_mdevs(guest, sorted(devices.of_entries(entries).mdevs))
    xml: str = guest.to_xml()
    return xml


def answer(request: Path) -> None:
    """Write the answer to a request; the machine sees it when it is complete."""
    xml = definition(json.loads(request.read_text()))
    request.unlink()
    written = request.with_suffix(".new")
    written.write_text(xml)
    written.rename(request.with_suffix(ANSWER))


def main(results: Path) -> None:
    # As nova-compute begins; this environment has no eventlet.
    importlib.import_module("nova.monkey_patch").patch(backend="threading")
    while not select.select([sys.stdin], [], [], 0)[0]:
        for request in (results / FOLDER).glob(f"*{REQUEST}"):
            answer(request)
        time.sleep(_INTERVAL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
