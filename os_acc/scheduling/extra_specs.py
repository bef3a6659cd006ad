# SPDX-License-Identifier: Apache-2.0

"""Parse flavor extra specs into granular request groups.

Three readers share a flavor, and each keeps its own rules. Keys that Nova drops
with a warning in ``resources[S]:``, ``trait[S]:`` and ``group_policy`` are
dropped here with the same warning (``nova.scheduler.utils.ResourceRequest``). Requests
that Placement answers with 400 are errors here: the rules are those of Placement 16,
microversion 1.36 (``placement.lib.RequestGroup`` and
``placement.handlers.allocation_candidate``). The keys of os_acc are strict
(:mod:`.accel_keys`). Keys of other namespaces are ignored.

Specification: nova-specs, rocky, "Granular Resource Request Syntax". One of its
rules is obsolete: ``trait:`` without ``resources:`` in the unnumbered group is no
error, since Nova fills that group from the flavor's VCPUs and memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import os_resource_classes as orc
from oslo_log import log

from os_acc import exception
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    AttachTarget,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
    title,
)
from os_acc.scheduling import accel_keys

LOG = log.getLogger(__name__)

#: Nova's key for all PCI devices of a guest; validated by its consumer.
PCI_NUMA_POLICY: Final = "hw:pci_numa_affinity_policy"
GROUP_POLICY: Final = "group_policy"

# Nova's XS_KEYPAT, so that both accept the same keys.
_GRANULAR = re.compile(rf"^(resources|trait)({NUMBERED_SUFFIX})?:(.*)$")
# Keys easily mistaken for one of these, or for Placement's parameters.
_LOOKS_LIKE_IT = re.compile(
    r"(resource|trait|required|forbidden|group.?polic|limit$"
    r"|in_tree|member_of|same_subtree|root_required)",
    re.IGNORECASE,
)
# Maximum number of names in an error message.
_SHOWN: Final = 8


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
        if key == GROUP_POLICY:
            policy = group_policy(value)
        elif (match := _GRANULAR.match(key)) is not None:
            kind, suffix, name = match.groups(default="")
            group = groups.get(suffix, RequestGroup(suffix))
            add = _with_resource if kind == "resources" else _with_trait
            groups[suffix] = add(group, name, key, value)
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


def check(request: FlavorRequest) -> None:
    """Check groups together, regardless of their source.

    :raises InvalidExtraSpec: a group requires and forbids the same trait; a
        numbered group without resources; a bitstream for a group without an
        accelerator; two groups with the same suffix; several numbered groups
        without a policy.
    """
    for group in request.groups:
        _check_group(group)
    suffixes = [group.suffix for group in request.groups]
    for suffix, times in sorted(Counter(suffixes).items()):
        if times > 1:
            raise exception.InvalidExtraSpec(
                f"there are {times} groups with the suffix {suffix!r}",
                hint="rename the flavor's group: the groups of a device profile "
                "use device_profile_0 and so on",
            )
    numbered = [suffix for suffix in suffixes if suffix]
    if len(numbered) > 1 and request.policy is None:
        raise exception.InvalidExtraSpec(
            f"there are several numbered groups ({exception.some(numbered, _SHOWN)}) "
            "but no valid group_policy",
            hint="set group_policy to 'none' or 'isolate'",
        )


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


def overlooked(flavor_extra_specs: Mapping[str, object]) -> tuple[str, ...]:
    """Return keys that resemble request group keys but have no effect.

    Nova ignores them silently: ``resource1:FPGA``, a suffix of 65 characters,
    Placement's ``in_tree`` and ``same_subtree``.
    """
    return tuple(
        key
        for key in sorted(flavor_extra_specs)
        if _LOOKS_LIKE_IT.match(key)
        and not (key == GROUP_POLICY or _GRANULAR.match(key))
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


def suffix_of(key: str) -> str | None:
    """Return the suffix of a key's group; None: the key is about no group."""
    match = _GRANULAR.match(key)
    return None if match is None else match[2] or ""


def group_policy(value: object) -> GroupPolicy | None:
    """Return the value of ``group_policy``; None if Nova drops it.

    :raises InvalidExtraSpec: it is not text.
    """
    text = accel_keys.text_of(GROUP_POLICY, value)
    try:
        return GroupPolicy(text)
    except ValueError:
        LOG.warning(
            "Invalid group_policy %s. Valid values are 'none' and 'isolate'.",
            exception.show(text),
        )
        return None


def _check_name(key: str, name: str) -> None:
    if not PLACEMENT_NAME.fullmatch(name):
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)}: {exception.show(name)} is "
            "not a valid name in Placement",
            hint="use at most 255 characters of A-Z, 0-9 and _",
        )


def _with_resource(
    group: RequestGroup, name: str, key: str, value: object
) -> RequestGroup:
    # In Python a bool is an int, but it is not a valid amount.
    given = value if type(value) is int else accel_keys.text_of(key, value)
    if not (orc.is_custom(name) or name in orc.STANDARDS):
        LOG.warning(
            "Received an invalid ResourceClass %s in extra_specs.",
            exception.show(name),
        )
        return group
    _check_name(key, name)
    try:
        amount = int(given)
    except ValueError:
        amount = -1
    if amount < 0:
        LOG.warning(
            "Resource amounts must be nonnegative integers. Received %s for key "
            "resources%s.",
            exception.show(given),
            group.suffix,
        )
        return group
    if amount > MAX_AMOUNT:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} requests {exception.show(amount)}",
            hint=f"use an amount of at most {MAX_AMOUNT}",
        )
    # Keys that differ only by a trailing newline have the same name.
    amounts = dict(group.resources)
    if amounts.setdefault(name, amount) != amount:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} requests {amount} {name}, "
            f"but another one of {title(group.suffix)} requests {amounts[name]}",
            hint="name a resource class once in a group; use another group for more",
        )
    return dataclasses.replace(group, resources=tuple(sorted(amounts.items())))


def _with_trait(
    group: RequestGroup, name: str, key: str, value: object
) -> RequestGroup:
    kind = accel_keys.text_of(key, value)
    if kind not in ("required", "forbidden"):
        LOG.warning(
            "Only (required, forbidden) traits are supported. Received %s for key "
            "trait%s.",
            exception.show(kind),
            group.suffix,
        )
        return group
    _check_name(key, name)
    if kind == "required":
        return dataclasses.replace(group, required=group.required | {name})
    return dataclasses.replace(group, forbidden=group.forbidden | {name})


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
        field = accel_keys.KEYS[own.name]
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
