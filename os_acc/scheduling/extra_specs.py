# SPDX-License-Identifier: Apache-2.0

"""Parse flavor extra specs into granular request groups.

Three readers share a flavor, and each keeps its own rules. Keys that Nova drops
with a warning in ``resources[S]:``, ``trait[S]:`` and ``group_policy`` are
dropped here with the same warning (:mod:`.request_groups`). Requests that
Placement answers with 400 are errors here: the rules are those of Placement 16,
microversion 1.36 (``placement.lib.RequestGroup`` and
``placement.handlers.allocation_candidate``). The keys of os_acc are strict
(:mod:`.accel_keys`). Keys of other namespaces are ignored.

Specification: nova-specs, rocky, "Granular Resource Request Syntax". One of its
rules is obsolete: ``trait:`` without ``resources:`` in the unnumbered group is no
error, since Nova fills that group from the flavor's VCPUs and memory.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from os_acc import exception
from os_acc.objects.request_group import (
    AttachTarget,
    FlavorRequest,
    RequestGroup,
    title,
)
from os_acc.scheduling import accel_keys, request_groups

# Maximum number of names in an error message.
_SHOWN: Final = 8


def check(request: FlavorRequest) -> None:
    """Check groups together, regardless of their source.

    :raises InvalidExtraSpec: a group requires and forbids the same trait; a
        numbered group without resources; a bitstream for a group without an
        accelerator; two groups with the same suffix; several numbered groups
        without a policy.
    """
    for group in request.groups:
        _check_group(group)
    _check_suffixes([group.suffix for group in request.groups])
    _check_policy(request)


def _check_group(group: RequestGroup) -> None:
    if both := sorted(group.required & group.forbidden):
        raise exception.InvalidExtraSpec(
            f"{title(group.suffix)} both requires and forbids {both[0]}"
        )
    if group.resources:
        return
    traits = sorted(group.required | group.forbidden)
    if group.suffix and traits:
        lacking = f"has traits ({exception.some(traits, _SHOWN)}) but no resources"
    elif group.bitstream_request:
        lacking = f"requests {group.bitstream_request}, but no accelerator"
    elif group.attach_target is not AttachTarget.VM:
        lacking = f"has an attach_target, {group.attach_target.value}, but no resources"
    elif group.numa_policy:
        lacking = f"has a numa_policy, {group.numa_policy.value}, but no resources"
    else:
        return
    raise exception.InvalidExtraSpec(
        f"{title(group.suffix)} {lacking}",
        hint=f"add resources{group.suffix}:<resource class>=<amount>",
    )


def _check_suffixes(suffixes: Sequence[str]) -> None:
    for suffix, times in sorted(Counter(suffixes).items()):
        if times > 1:
            raise exception.InvalidExtraSpec(
                f"there are {times} groups with the suffix {suffix!r}",
                hint="rename the flavor's group: the groups of a device profile "
                "use device_profile_0 and so on",
            )


def _check_policy(request: FlavorRequest) -> None:
    numbered = [group.suffix for group in request.groups if group.suffix]
    if len(numbered) > 1 and request.policy is None:
        raise exception.InvalidExtraSpec(
            f"there are several numbered groups ({exception.some(numbered, _SHOWN)}) "
            "but no valid group_policy",
            hint="set group_policy to 'none' or 'isolate'",
        )


#: Nova's key for all PCI devices of a guest; validated by its consumer.
PCI_NUMA_POLICY: Final = "hw:pci_numa_affinity_policy"


def parse(flavor_extra_specs: object) -> FlavorRequest:
    """Parse the request groups of a flavor.

    :param flavor_extra_specs: the flavor's mapping of text to text, or None.
    :raises InvalidExtraSpec: not a mapping of text; a malformed name; a group
        that Placement would reject; several numbered groups without
        ``group_policy``; an unknown key of os_acc; a group that requests two
        bitstreams, or a bitstream without an accelerator.
    """
    specs = _sorted_items(flavor_extra_specs)
    groups: dict[str, RequestGroup] = {}
    policy = None
    for key, value in specs:
        if key == request_groups.GROUP_POLICY:
            policy = request_groups.policy(value)
        else:
            request_groups.read(key, value, groups)
    _add_own(specs, groups)
    resources = [each for group in groups.values() for each in group.resources]
    for suffix, group in groups.items():
        # Nova strips amounts of zero.
        some = tuple((name, amount) for name, amount in group.resources if amount)
        groups[suffix] = dataclasses.replace(group, resources=some)
    request = FlavorRequest(
        groups=tuple(
            group
            for suffix, group in sorted(groups.items())
            if group != RequestGroup(suffix)
        ),
        policy=policy,
        zeroed=frozenset(name for name, amount in resources if not amount),
        pci_numa_policy=dict(specs).get(PCI_NUMA_POLICY),
    )
    check(request)
    return request


def overlooked(flavor_extra_specs: Mapping[str, object]) -> tuple[str, ...]:
    """Return keys that resemble request group keys but have no effect.

    Nova ignores them silently: ``resource1:FPGA``, a suffix of 65 characters,
    Placement's ``in_tree`` and ``same_subtree``.
    """
    return tuple(
        key
        for key in sorted(flavor_extra_specs)
        if request_groups.looks_like_it(key) and not request_groups.is_read(key)
    )


def requests_accelerators(request: FlavorRequest, offered: Collection[str]) -> bool:
    """Return whether a flavor requests a resource class that this host publishes.

    :param offered: the resource classes of this host's accelerators.
    """
    return any(
        resource_class in offered
        for group in request.groups
        for resource_class, _amount in group.resources
    )


def _sorted_items(specs: object) -> list[tuple[str, object]]:
    if specs is None:
        return []
    if not isinstance(specs, Mapping):
        raise exception.InvalidExtraSpec(
            f"flavor_extra_specs is a {type(specs).__name__}, not a mapping",
            hint="pass the flavor's extra_specs dictionary, or None",
        )
    for key in specs:
        if not isinstance(key, str):
            raise exception.InvalidExtraSpec(
                f"extra spec key {exception.show(key)} (value "
                f"{exception.show(specs[key])}) is not text"
            )
    return sorted(specs.items(), key=lambda item: item[0])


def _add_own(
    specs: Sequence[tuple[str, object]], groups: dict[str, RequestGroup]
) -> None:
    """Set the fields of groups that os_acc's own keys define."""
    given: dict[tuple[str, str], object] = {}
    for key, value in specs:
        own = accel_keys.find(key, groups)
        if own is None:
            continue
        requested = accel_keys.read(own, value)
        field = accel_keys.KEYS[own.name].value
        if given.setdefault((own.suffix, field), requested) != requested:
            raise exception.InvalidExtraSpec(
                f"extra spec {exception.show(key)} contradicts another key of "
                f"{title(own.suffix)}",
                hint="use only one of these keys in a group: a region holds one "
                "bitstream, and a device has one target and one policy",
            )
        group = groups.get(own.suffix, RequestGroup(own.suffix))
        fields: dict[str, Any] = {field: requested}
        groups[own.suffix] = dataclasses.replace(group, **fields)
