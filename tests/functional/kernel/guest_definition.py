# SPDX-License-Identifier: Apache-2.0

"""The definition of a guest by Nova's classes, and the devices that it names."""

from __future__ import annotations

import json
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

from . import lane
from .nova_definitions import ANSWER, FOLDER, REQUEST

#: Seconds that Nova, on the host, may take to start.
_DEADLINE = 300.0
_PARTS = ("domain", "bus", "slot", "function")


def define(entries: Sequence[Any]) -> str:
    """Return the XML of a guest with entries of ``os_acc.plug``.

    :raises TimeoutError: the process on the host has not answered.
    """
    folder = lane.RESULTS / FOLDER
    folder.mkdir(exist_ok=True)
    unfinished = folder / str(uuid.uuid4())
    unfinished.write_text(json.dumps(entries))
    unfinished.rename(unfinished.with_suffix(REQUEST))
    answer, limit = unfinished.with_suffix(ANSWER), time.monotonic() + _DEADLINE
    while not answer.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"no definition; see {lane.NOVA_LOG} on the host")
        time.sleep(0.2)
    return answer.read_text()


def devices(xml: str) -> tuple[str, ...]:
    """Return the names of the host devices that libvirt would attach.

    These are addresses of PCI functions, then UUIDs of mediated devices.

    Source: https://libvirt.org/formatdomain.html, "Host device assignment".
    """
    guest = ElementTree.fromstring(xml)
    found = "devices/hostdev[@type='{}']/source/address"
    functions = (
        "{:04x}:{:02x}:{:02x}.{:x}".format(
            *(int(address.attrib[name], 16) for name in _PARTS)
        )
        for address in guest.iterfind(found.format("pci"))
    )
    mdevs = (each.attrib["uuid"] for each in guest.iterfind(found.format("mdev")))
    return (*functions, *mdevs)
