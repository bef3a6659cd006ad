# SPDX-License-Identifier: Apache-2.0

"""The hosts of the stress lane, and requests for their cards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from os_acc import testing
from os_acc.attach.manager import Manager
from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, LeaseState
from os_acc.profiles import options as profiles
from os_acc.testing import HostSpec, TestHost

_OPTIONS: Mapping[str, object] = {
    "node_name": "host",
    # A busy machine may stop for a while, and its processes start slowly; no
    # test is about that.
    "write_timeout": 600.0,
    "initialize_timeout": 600.0,
    "helper_start_timeout": 600.0,
}


def simulated_host(
    directory: str,
    spec: HostSpec | None = None,
    *,
    groups: Mapping[str, Mapping[str, object]] | None = None,
    **options: object,
) -> TestHost:
    """Return a host; its service has long timeouts and reads device profiles.

    :param spec: the hardware; None: the directory has a host already.
    :param groups: the options of further groups.
    :param options: of ``[os_acc]``.
    """
    catalogue = {"catalogue": os.path.join(directory, "profiles")}
    every = {profiles.GROUP.name: catalogue, **(groups or {})}
    return TestHost(directory, spec, groups=every, **{**_OPTIONS, **options})


def request(
    manager: Manager, places: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Build a Placement allocation and extra specs for cards.

    :param places: the address of each provider, one request group for each.
    """
    return request_of(manager.providers(), places)


def request_of(
    offered: Iterable[Provider], places: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Do as :func:`request`, with providers that have been read before."""
    providers = {str(each.device.address): each for each in offered}
    return testing.request(*(providers[place] for place in places))


def plug(manager: Manager, consumer: str, *places: str) -> list[dict[str, Any]]:
    """Plug cards for a consumer."""
    return manager.plug({"uuid": consumer}, *request(manager, places))


def by_consumer(leases: Iterable[Lease]) -> Mapping[str, list[Lease]]:
    """Return the leases of each consumer; a device that is erased has none."""
    found: dict[str, list[Lease]] = {}
    for lease in leases:
        if lease.erasure:
            continue
        found.setdefault(lease.consumer, []).append(lease)
    return found


def unfinished(leases: Iterable[Lease]) -> list[Lease]:
    """Return the leases whose operation has begun and not ended."""
    begun = (LeaseState.PREPARING, LeaseState.RELEASING)
    return [lease for lease in leases if lease.state in begun]
