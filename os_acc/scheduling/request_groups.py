# SPDX-License-Identifier: Apache-2.0

"""Parse ``resources[S]:``, ``trait[S]:`` and ``group_policy`` as Nova does.

See ``nova.scheduler.utils.ResourceRequest``: keys that it drops with a warning
are dropped here with the same warning.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

import os_resource_classes
from oslo_log import log as logging

from os_acc import exception
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    GroupPolicy,
    RequestGroup,
    title,
)


def text_of(key: str, value: object) -> str:
    """Return the value of an extra spec, which must be text.

    :raises InvalidExtraSpec: it is not text.
    """
    if not isinstance(value, str):
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} is {exception.show(value)}, "
            f"a {type(value).__name__}, not text"
        )
    return value


LOG = logging.getLogger("os_acc.scheduling.extra_specs")

GROUP_POLICY: Final = "group_policy"

# Nova's XS_KEYPAT, so that both accept the same keys.
_GRANULAR = re.compile(rf"^(resources|trait)({NUMBERED_SUFFIX})?:(.*)$")
# Keys easily mistaken for one of these, or for Placement's parameters.
_LOOKS_LIKE_IT = re.compile(
    r"(resource|trait|required|forbidden|group.?polic|limit$"
    r"|in_tree|member_of|same_subtree|root_required)",
    re.IGNORECASE,
)


def is_read(key: str) -> bool:
    """Return whether a key affects request groups."""
    return key == GROUP_POLICY or _GRANULAR.match(key) is not None


def suffix_of(key: str) -> str | None:
    """Return the suffix of a key's group; None: the key is about no group."""
    match = _GRANULAR.match(key)
    return None if match is None else match[2] or ""


def looks_like_it(key: str) -> bool:
    """Return whether a key resembles a key that affects request groups."""
    return _LOOKS_LIKE_IT.match(key) is not None


def read(key: str, value: object, groups: dict[str, RequestGroup]) -> None:
    """Add a key to its group; ignore keys that are not about groups.

    :param groups: by suffix; with the resources of amount 0.
    :raises InvalidExtraSpec: Placement would reject the key.
    """
    match = _GRANULAR.match(key)
    if match is None:
        return
    kind, suffix, name = match.groups(default="")
    group = groups.get(suffix, RequestGroup(suffix))
    add = _with_resource if kind == "resources" else _with_trait
    groups[suffix] = add(group, name, key, value)


def policy(value: object) -> GroupPolicy | None:
    """Return the value of ``group_policy``; None if Nova drops it.

    :raises InvalidExtraSpec: it is not text.
    """
    text = text_of(GROUP_POLICY, value)
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
    given = value if type(value) is int else text_of(key, value)
    if not (
        os_resource_classes.is_custom(name) or name in os_resource_classes.STANDARDS
    ):
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
    kind = text_of(key, value)
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
