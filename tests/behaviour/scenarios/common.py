# SPDX-License-Identifier: Apache-2.0

"""What most scenarios do: find a provider, plug, count."""

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
#: Seconds; far below what :func:`unplug` waits for an unplug that hangs, and far
#: above what a machine that stands still for a while needs.
UNPLUG_TIMEOUT = 90.0


def scenario(function: Scenario) -> Scenario:
    """Make a function one of the scenarios."""
    ALL.append(function)
    return function


def instance() -> dict[str, str]:
    """A new instance, as Nova describes it."""
    return {"uuid": str(uuid.uuid4()), "name": "guest"}


def only_provider() -> Provider:
    """The one provider that the host offers."""
    (provider,) = service.get().providers()
    return provider


def offered() -> set[str]:
    """The addresses of all devices that the host offers."""
    return {
        str(handle.address)
        for provider in service.get().providers()
        for handle in provider.device.handles
    }


def refusals() -> dict[str, str]:
    """Why devices that were named are not offered, as the operator sees it."""
    refused = service.get().discover().refused
    return {str(each.address): str(each) for each in refused}


def flavor(provider: Provider, amount: int = 1) -> dict[str, str]:
    """Extra specs that ask for what a provider offers."""
    return {f"resources1:{provider.device.resource_class}": str(amount)}


def plug(guest: dict[str, str], amount: int = 1) -> list[dict[str, Any]]:
    """Plug devices of the only provider."""
    provider = only_provider()
    return os_acc.plug(guest, {"uuid": provider.uuid}, flavor(provider, amount))


def unplug(guest: dict[str, str]) -> int:
    """Unplug devices that are held; a hang is a failure of this call alone."""
    return in_time(lambda: os_acc.unplug(guest))


def devices(entries: list[dict[str, Any]]) -> list[str]:
    """The addresses of entries."""
    return [entry["pci_id"] for entry in entries]


def vfs(host: HostUnderTest) -> dict[str, Any]:
    """The specification that makes four VFs and offers them."""
    return {"address": host.places.pf, "num_vfs": FOUR_VFS}


def single(host: HostUnderTest) -> dict[str, Any]:
    """The specification that offers the single function."""
    return {"address": host.places.single}


def card(host: HostUnderTest) -> dict[str, Any]:
    """The specification that offers the card of two functions."""
    return {"address": host.places.card[1]}


def recorded() -> str:
    """All that is recorded of leases, as text to compare."""
    return json.dumps(os_acc.attached(), sort_keys=True)
