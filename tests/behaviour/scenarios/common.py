# SPDX-License-Identifier: Apache-2.0

"""Steps of most scenarios: find a provider, plug, count."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import os_acc
from os_acc import service
from os_acc.objects.device import Provider

from ..host import HostUnderTest
from ..time_limit import in_time

Scenario = Callable[[HostUnderTest], None]
#: Every scenario, in the order of the files.
ALL: list[Scenario] = []
FOUR_VFS = 4
#: Seconds; far below the timeout of :func:`unplug` for a hanging unplug, and far
#: above the pauses of a stalled machine.
UNPLUG_TIMEOUT = 90.0


def scenario(function: Scenario) -> Scenario:
    """Register a function as a scenario."""
    ALL.append(function)
    return function


def instance() -> dict[str, str]:
    """Return a new instance in Nova's form."""
    return {"uuid": str(uuid.uuid4()), "name": "guest"}


def only_provider() -> Provider:
    """Return the only provider that the host offers."""
    (provider,) = service.get().providers()
    return provider


def offered() -> set[str]:
    """Return the addresses of all offered devices."""
    return {
        str(handle.address)
        for provider in service.get().providers()
        for handle in provider.device.handles
    }


def refusals() -> dict[str, str]:
    """Return the operator's reasons why named devices are not offered."""
    refused = service.get().discover().refused
    return {str(each.address): str(each) for each in refused}


def flavor(provider: Provider, amount: int = 1) -> dict[str, str]:
    """Return extra specs that request a provider's resource class and traits."""
    return {f"resources1:{provider.device.resource_class}": str(amount)}


def plug(guest: dict[str, str], amount: int = 1) -> list[dict[str, Any]]:
    """Plug devices of the only provider."""
    provider = only_provider()
    return os_acc.plug(guest, {"uuid": provider.uuid}, flavor(provider, amount))


def unplug(guest: dict[str, str]) -> int:
    """Unplug devices; a hang is a failure of this call alone."""
    return in_time(lambda: os_acc.unplug(guest))


def devices(entries: list[dict[str, Any]]) -> list[str]:
    """Return the addresses of entries."""
    return [entry["pci_id"] for entry in entries]


def vfs(host: HostUnderTest) -> dict[str, Any]:
    """Return the specification that creates four VFs and offers them.

    They are NVMe functions, without namespaces: the scenarios are about any function,
    and not about an erasure.
    """
    return {**pf(host), "num_vfs": FOUR_VFS}


def pf(host: HostUnderTest) -> dict[str, Any]:
    """Return the specification that offers the PF, or the VFs that it has."""
    return {"address": host.places.pf, "allow_no_erase": True}


def single(host: HostUnderTest) -> dict[str, Any]:
    """Return the specification that offers the single function."""
    return {"address": host.places.single}


def card(host: HostUnderTest) -> dict[str, Any]:
    """Return the specification that offers the card of two functions."""
    return {"address": host.places.card[1], "allow_no_erase": True}


def recorded() -> str:
    """Return all records of leases, as text to compare."""
    return json.dumps(os_acc.attached(), sort_keys=True)
