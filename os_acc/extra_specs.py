# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Flavor extra specs into granular request groups.

Three readers share a flavor, and each keeps its own rules. What Nova drops
with a warning in ``resources[S]:``, ``trait[S]:`` and ``group_policy`` is
dropped here with the same warning (``nova.scheduler.utils.ResourceRequest``);
what Placement answers with 400 is an error here, as the specification of
granular resource requests has it. os_acc's own keys are strict. Keys of
other namespaces are not ours to judge.

Specification: nova-specs, rocky, "Granular Resource Request Syntax". One rule
of it has passed: ``trait:`` without ``resources:`` in the unnumbered group
is no error, since Nova fills that group from the flavor's VCPUs and memory.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import os_resource_classes  # type: ignore[import-untyped]
from oslo_log import log as logging

from os_acc import exception, hints
from os_acc.objects import wishes
from os_acc.objects.image import Wish
from os_acc.objects.request import (
    MAX_AMOUNT,
    NUMBERED_SUFFIX,
    PLACEMENT_NAME,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
)

LOG = logging.getLogger(__name__)

# Nova's XS_KEYPAT, so that both read the same keys.
_GRANULAR = re.compile(rf"^(resources|trait)({NUMBERED_SUFFIX})?:(.*)$")
_OURS = re.compile(rf"(?:accel|os_acc)({NUMBERED_SUFFIX})?:(.*)", re.DOTALL)


class _Treatment(enum.Enum):
    """What becomes of a key that is about accelerators."""

    #: It says what a region is to be programmed with: a field of Wish.
    WISH = enum.auto()
    NOT_YET = enum.auto()
    NOVAS = enum.auto()


#: Every key about accelerators that a flavor may have, and what becomes of
#: it. A name alone stands below ``accel[S]:`` and ``os_acc[S]:``; a name that
#: ends in a colon is one of the os_acc specification's own key prefixes.
_KEYS: Final[Mapping[str, _Treatment]] = {
    "bitstream_id": _Treatment.WISH,
    "bitstream_name": _Treatment.WISH,
    "function_id": _Treatment.WISH,
    "function_name": _Treatment.WISH,
    "numa_policy": _Treatment.NOT_YET,
    "attach_target": _Treatment.NOT_YET,
    "bitstream:": _Treatment.WISH,
    "function:": _Treatment.WISH,
    "function_name:": _Treatment.WISH,
    # Nova hands this one to Cyborg.
    "accel:device_profile": _Treatment.NOVAS,
}
_NAMES: Final = frozenset(key for key in _KEYS if ":" not in key)
#: What a key prefix of the specification says, in our words.
_OF_THE_SPECIFICATION: Final[Mapping[str, str]] = {
    "bitstream:": "bitstream_id",
    "function:": "function_id",
    "function_name:": "function_name",
}


@dataclasses.dataclass(slots=True)
class _Draft:
    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    required: set[str] = dataclasses.field(default_factory=set)
    forbidden: set[str] = dataclasses.field(default_factory=set)
    wish: Wish | None = None


def parse(flavor_extra_specs: object) -> FlavorRequest:
    """Read the request groups of a flavor.

    :param flavor_extra_specs: the flavor's mapping of text to text, or None.
    :raises InvalidExtraSpec: not a mapping of text; a malformed name; a
        group that Placement would refuse; several numbered groups without
        ``group_policy``; an unknown key of ours; a group that asks for two
        bitstreams, or for one without an accelerator to be programmed.
    :raises UnsupportedExtraSpec: a key of ours that this version does not
        serve.
    """
    specs = _sorted_items(flavor_extra_specs)
    drafts: dict[str, _Draft] = {}
    policy: GroupPolicy | None = None
    for key, value in specs:
        if key == "group_policy":
            policy = _policy(value)
        elif match := _GRANULAR.match(key):
            kind, suffix, name = match.groups(default="")
            draft = drafts.setdefault(suffix, _Draft())
            if kind == "resources":
                _add_resource(draft, suffix, name, key, value)
            else:
                _add_trait(draft, suffix, name, key, value)
    for key, value in specs:
        _read_own_key(key, value, drafts)
    groups = tuple(_groups(drafts))
    numbered = [group.suffix for group in groups if group.suffix]
    if len(numbered) > 1 and policy is None:
        raise exception.InvalidExtraSpec(
            f"there are several numbered groups ({', '.join(numbered)}) "
            "but no valid group_policy",
            hint="set group_policy to 'none' or 'isolate'",
        )
    return FlavorRequest(groups=groups, policy=policy)


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
                f"extra spec key {hints.shown(key)} (value "
                f"{hints.shown(specs[key])}) is not text"
            )
    return sorted(specs.items(), key=lambda item: item[0])


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise exception.InvalidExtraSpec(
            f"extra spec {hints.shown(key)} is {hints.shown(value)}, "
            f"a {type(value).__name__}, not text"
        )
    return value


def _check_name(key: str, name: str) -> None:
    if not PLACEMENT_NAME.fullmatch(name):
        raise exception.InvalidExtraSpec(
            f"extra spec {hints.shown(key)}: {hints.shown(name)} is not a name "
            "that Placement can have",
            hint="it has at most 255 characters of A-Z, 0-9 and _",
        )


def _policy(value: object) -> GroupPolicy | None:
    text = _text("group_policy", value)
    try:
        return GroupPolicy(text)
    except ValueError:
        LOG.warning(
            "Invalid group_policy %s. Valid values are 'none' and 'isolate'.",
            hints.shown(text),
        )
        return None


def _add_resource(
    draft: _Draft, suffix: str, name: str, key: str, value: object
) -> None:
    # A bool is an int to Python, but never an amount that somebody meant.
    given = value if type(value) is int else _text(key, value)
    if not (
        os_resource_classes.is_custom(name) or name in os_resource_classes.STANDARDS
    ):
        LOG.warning(
            "Received an invalid ResourceClass %s in extra_specs.", hints.shown(name)
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
            hints.shown(given),
            suffix,
        )
        return
    if amount > MAX_AMOUNT:
        raise exception.InvalidExtraSpec(
            f"extra spec {hints.shown(key)} asks for {hints.shown(amount)}",
            hint=f"Placement counts up to {MAX_AMOUNT}",
        )
    draft.resources[name] = amount


def _add_trait(draft: _Draft, suffix: str, name: str, key: str, value: object) -> None:
    kind = _text(key, value)
    if kind not in ("required", "forbidden"):
        LOG.warning(
            "Only (required, forbidden) traits are supported. Received %s for key "
            "trait%s.",
            hints.shown(kind),
            suffix,
        )
        return
    _check_name(key, name)
    (draft.required if kind == "required" else draft.forbidden).add(name)


def _read_own_key(key: str, value: object, drafts: dict[str, _Draft]) -> None:
    if _KEYS.get(key) is _Treatment.NOVAS:
        return
    match = _OURS.fullmatch(key)
    suffix, name = match.groups(default="") if match else ("", _prefix(key))
    treatment = _KEYS.get(name)
    if treatment is _Treatment.WISH:
        _add_wish(drafts, suffix, key, _wish(key, name, value))
        return
    if treatment is _Treatment.NOT_YET:
        raise exception.UnsupportedExtraSpec(
            f"extra spec {hints.shown(key)} cannot be served by this version of os_acc"
        )
    if match is None:
        return
    # 'accelerator:size' could be read as our key 'size' in a group 'erator'.
    # It is another's namespace unless there is such a group, or such a key.
    if suffix and suffix not in drafts and hints.nearest(name, _NAMES) is None:
        return
    raise exception.InvalidExtraSpec(
        f"extra spec {hints.shown(key)}: {hints.shown(name)} is no key of os_acc",
        hint=hints.did_you_mean(name, _NAMES),
    )


def _wish(key: str, name: str, value: object) -> Wish:
    text = _text(key, value)
    if name in _OF_THE_SPECIFICATION:
        # The specification has it as a trait: 'bitstream:<uuid>=required'.
        if text != "required":
            raise exception.InvalidExtraSpec(
                f"extra spec {hints.shown(key)} is {hints.shown(text)}",
                hint="the only value of such a key is 'required'",
            )
        name, text = _OF_THE_SPECIFICATION[name], key.removeprefix(name)
    try:
        return wishes.read(name, text)
    except exception.InvalidInput as error:
        raise exception.InvalidExtraSpec(
            f"extra spec {hints.shown(key)}: {error.message}", hint=error.hint
        ) from error


def _add_wish(drafts: dict[str, _Draft], suffix: str, key: str, wish: Wish) -> None:
    draft = drafts.setdefault(suffix, _Draft())
    if draft.wish not in (None, wish):
        raise exception.InvalidExtraSpec(
            f"extra spec {hints.shown(key)}: group {suffix!r} asks for {draft.wish} "
            "as well",
            hint="a region holds one bitstream: use one of these keys in a group",
        )
    draft.wish = wish


def _prefix(key: str) -> str:
    namespace, colon, _rest = key.partition(":")
    return namespace + colon if colon else ""


def _groups(drafts: Mapping[str, _Draft]) -> Iterable[RequestGroup]:
    for suffix, draft in sorted(drafts.items()):
        # Nova strips amounts of zero before it asks Placement.
        resources = tuple(
            (name, amount) for name, amount in sorted(draft.resources.items()) if amount
        )
        traits = draft.required | draft.forbidden
        if both := sorted(draft.required & draft.forbidden):
            raise exception.InvalidExtraSpec(
                f"group {suffix!r} both requires and forbids {both[0]}"
            )
        if suffix and traits and not resources:
            raise exception.InvalidExtraSpec(
                f"group {suffix!r} has traits ({', '.join(sorted(traits))}) "
                "but no resources",
                hint=f"add resources{suffix}:<resource class>=<amount>",
            )
        if draft.wish and not resources:
            raise exception.InvalidExtraSpec(
                f"group {suffix!r} asks for {draft.wish}, but for no accelerator",
                hint=f"add resources{suffix}:<resource class>=<amount>",
            )
        if resources or traits:
            yield RequestGroup(
                suffix=suffix,
                resources=resources,
                required=frozenset(draft.required),
                forbidden=frozenset(draft.forbidden),
                wish=draft.wish,
            )
