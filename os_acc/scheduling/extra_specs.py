# SPDX-License-Identifier: Apache-2.0

"""Flavor extra specs into granular request groups.

Three readers share a flavor, and each keeps its own rules. What Nova drops
with a warning in ``resources[S]:``, ``trait[S]:`` and ``group_policy`` is
dropped here with the same warning (``granular``); what Placement answers with
400 is an error here (``rules``), as the specification of granular resource
requests has it. os_acc's own keys are strict (``own_keys``). Keys of other
namespaces are not ours to judge.

Specification: nova-specs, rocky, "Granular Resource Request Syntax". One rule
of it has passed: ``trait:`` without ``resources:`` in the unnumbered group
is no error, since Nova fills that group from the flavor's VCPUs and memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from os_acc import exception
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import AttachTarget, FlavorRequest, title
from os_acc.scheduling import accel_keys, request_groups, request_rules
from os_acc.scheduling.group_drafts import GroupBuilder

#: Nova's, for all PCI devices of a guest; judged where it is needed.
PCI_NUMA_POLICY: Final = "hw:pci_numa_affinity_policy"


def parse(flavor_extra_specs: object) -> FlavorRequest:
    """Read the request groups of a flavor.

    :param flavor_extra_specs: the flavor's mapping of text to text, or None.
    :raises InvalidExtraSpec: not a mapping of text; a malformed name; a
        group that Placement would refuse; several numbered groups without
        ``group_policy``; an unknown key of ours; a group that asks for two
        bitstreams, or for one without an accelerator to be programmed.
    """
    specs = _sorted_items(flavor_extra_specs)
    drafts: dict[str, GroupBuilder] = {}
    policy = None
    for key, value in specs:
        if key == request_groups.GROUP_POLICY:
            policy = request_groups.policy(value)
        else:
            request_groups.read(key, value, drafts)
    for key, value in specs:
        own = accel_keys.find(key, drafts)
        if own is not None:
            _add_own(drafts, own, value)
    request = FlavorRequest(
        groups=tuple(
            draft.group(suffix)
            for suffix, draft in sorted(drafts.items())
            if not draft.is_empty
        ),
        policy=policy,
        zeroed=frozenset(
            name
            for draft in drafts.values()
            for name, amount in draft.resources.items()
            if not amount
        ),
        pci_numa_policy=dict(specs).get(PCI_NUMA_POLICY),
    )
    request_rules.check(request)
    return request


def overlooked(flavor_extra_specs: Mapping[str, object]) -> tuple[str, ...]:
    """Keys that look as if they were about request groups, and are not.

    Nova passes them over without a word: ``resource1:FPGA``, a suffix of 65
    characters, Placement's ``in_tree`` and ``same_subtree``.
    """
    return tuple(
        key
        for key in sorted(flavor_extra_specs)
        if request_groups.looks_like_it(key) and not request_groups.is_read(key)
    )


def requests_accelerators(request: FlavorRequest, offered: Collection[str]) -> bool:
    """Whether a flavor asks for a resource class that this host publishes.

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
    drafts: dict[str, GroupBuilder], own: accel_keys.AccelKey, value: object
) -> None:
    said = accel_keys.read(own, value)
    draft = drafts.setdefault(own.suffix, GroupBuilder())
    if isinstance(said, BitstreamRequest):
        _add_wish(draft, own, said)
        return
    before: AttachTarget | NUMAPolicy | None
    if isinstance(said, AttachTarget):
        before, draft.attach_target = draft.attach_target, said
    else:
        before, draft.numa_policy = draft.numa_policy, said
    if before not in (None, said):
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: {title(own.suffix)} has another "
            f"{own.name} as well"
        )


def _add_wish(
    draft: GroupBuilder, own: accel_keys.AccelKey, wish: BitstreamRequest
) -> None:
    if draft.wish not in (None, wish):
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: {title(own.suffix)} asks for "
            f"{draft.wish} as well",
            hint="a region holds one bitstream: use one of these keys in a group",
        )
    draft.wish = wish
