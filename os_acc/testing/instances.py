# SPDX-License-Identifier: Apache-2.0

"""Instances, and Placement allocations for them, as Nova passes them."""

from __future__ import annotations

from typing import Any

from os_acc.objects.device import Provider


def uuid_of(number: int) -> str:
    """Return the UUID of the instance with this number."""
    return f"{number:08x}-1111-4111-8111-111111111111"


def instance(number: int) -> dict[str, Any]:
    """Return an instance as Nova passes it."""
    return {"uuid": uuid_of(number), "name": f"instance-{number}"}


def request(
    *providers: Provider, amount: int = 1
) -> tuple[dict[str, Any], dict[str, str]]:
    """Build ``selected_rp`` and extra specs, with one request group per provider.

    :param providers: a provider that occurs twice has one allocation for two groups.
    :param amount: units of each group.
    """
    allocations: dict[str, Any] = {}
    mappings: dict[str, list[str]] = {}
    specs = {"group_policy": "none"}
    for number, provider in enumerate(providers, start=1):
        resource_class = provider.device.resource_class
        resources = allocations.setdefault(provider.uuid, {"resources": {}})
        taken = resources["resources"].get(resource_class, 0)
        resources["resources"][resource_class] = taken + amount
        mappings[str(number)] = [provider.uuid]
        specs[f"resources{number}:{resource_class}"] = str(amount)
    return {"allocations": allocations, "mappings": mappings}, specs
