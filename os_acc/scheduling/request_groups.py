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
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    AttachTarget,
    GroupPolicy,
    RequestGroup,
    title,
)


@dataclasses.dataclass(slots=True)
class GroupBuilder:
    """A group under construction."""

    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    required: set[str] = dataclasses.field(default_factory=set)
    forbidden: set[str] = dataclasses.field(default_factory=set)
    bitstream_request: BitstreamRequest | None = None
    attach_target: AttachTarget | None = None
    numa_policy: NUMAPolicy | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the group requests nothing; Nova strips amounts of zero."""
        return not (
            any(self.resources.values())
            or self.required
            or self.forbidden
            or self.bitstream_request is not None
            or self.attach_target not in (None, AttachTarget.VM)
            or self.numa_policy is not None
        )

    def group(self, suffix: str) -> RequestGroup:
        """Return the finished group."""
        return RequestGroup(
            suffix=suffix,
            resources=tuple(
                (name, amount)
                for name, amount in sorted(self.resources.items())
                if amount
            ),
            required=frozenset(self.required),
            forbidden=frozenset(self.forbidden),
            bitstream_request=self.bitstream_request,
            attach_target=self.attach_target or AttachTarget.VM,
            numa_policy=self.numa_policy,
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


def read(key: str, value: object, drafts: dict[str, GroupBuilder]) -> None:
    """Add a key to its group; ignore keys that are not about groups.

    :raises InvalidExtraSpec: Placement would reject the key.
    """
    match = _GRANULAR.match(key)
    if match is None:
        return
    kind, suffix, name = match.groups(default="")
    draft = drafts.setdefault(suffix, GroupBuilder())
    if kind == "resources":
        _add_resource(draft, suffix, name, key, value)
    else:
        _add_trait(draft, suffix, name, key, value)


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


def _add_resource(
    draft: GroupBuilder, suffix: str, name: str, key: str, value: object
) -> None:
    # In Python a bool is an int, but it is not a valid amount.
    given = value if type(value) is int else text_of(key, value)
    if not (
        os_resource_classes.is_custom(name) or name in os_resource_classes.STANDARDS
    ):
        LOG.warning(
            "Received an invalid ResourceClass %s in extra_specs.",
            exception.show(name),
        )
        return
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
            suffix,
        )
        return
    if amount > MAX_AMOUNT:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} requests {exception.show(amount)}",
            hint=f"use an amount of at most {MAX_AMOUNT}",
        )
    # Keys that differ only by a trailing newline have the same name.
    if draft.resources.setdefault(name, amount) != amount:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(key)} requests {amount} {name}, "
            f"but another one of {title(suffix)} requests "
            f"{draft.resources[name]}",
            hint="name a resource class once in a group; use another group for more",
        )


def _add_trait(
    draft: GroupBuilder, suffix: str, name: str, key: str, value: object
) -> None:
    kind = text_of(key, value)
    if kind not in ("required", "forbidden"):
        LOG.warning(
            "Only (required, forbidden) traits are supported. Received %s for key "
            "trait%s.",
            exception.show(kind),
            suffix,
        )
        return
    _check_name(key, name)
    (draft.required if kind == "required" else draft.forbidden).add(name)
