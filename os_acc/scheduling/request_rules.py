# SPDX-License-Identifier: Apache-2.0

"""What a whole request has to keep to, so that Placement does not refuse it.

Held against Placement 16, microversion 1.36 (``placement.lib.RequestGroup``
and ``placement.handlers.allocation_candidate``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from os_acc import exception
from os_acc.objects.request import AttachTarget, FlavorRequest, RequestGroup, title

# Names in an error's message.
_SHOWN: Final = 8


def check(request: FlavorRequest) -> None:
    """Judge groups together, wherever they come from.

    :raises InvalidExtraSpec: a trait that a group requires and forbids; a
        numbered group without resources; a bitstream for a group without an
        accelerator; two groups of one suffix; several numbered groups
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
    elif group.wish:
        lacking = f"asks for {group.wish}, but for no accelerator"
    elif group.attach_target is not AttachTarget.VM:
        lacking = f"has an attach_target, {group.attach_target.value}, but nothing else"
    elif group.numa_policy:
        lacking = f"has a numa_policy, {group.numa_policy.value}, but nothing else"
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
                hint="rename the flavor's: device_profile_0 and so on are taken by "
                "the groups of a device profile",
            )


def _check_policy(request: FlavorRequest) -> None:
    numbered = [group.suffix for group in request.groups if group.suffix]
    if len(numbered) > 1 and request.policy is None:
        raise exception.InvalidExtraSpec(
            f"there are several numbered groups ({exception.some(numbered, _SHOWN)}) "
            "but no valid group_policy",
            hint="set group_policy to 'none' or 'isolate'",
        )
