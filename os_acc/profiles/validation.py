# SPDX-License-Identifier: Apache-2.0

"""The validation of device profiles, as read from JSON or YAML.

It accepts what Cyborg's API accepts (``device_profiles`` of its API reference), with
stricter rules: Cyborg does not validate ``accel:`` keys, and ignores unknown ones.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import os_resource_classes as orc

from os_acc import exception
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.request_group import (
    DeviceProfile,
    ProfileGroup,
    RequestGroup,
    profile_suffix,
)
from os_acc.scheduling import accel_keys, extra_specs

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_KINDS: Final = ("resources", "trait", "accel")
_FIELDS: Final = frozenset(
    # The last three are part of Cyborg's responses, and are ignored.
    {"name", "uuid", "description", "groups", "created_at", "updated_at", "links"}
)
#: The standard classes that accelerator requests exist for, as in Cyborg.
_CLASSES: Final = frozenset({orc.FPGA, orc.PGPU, orc.VGPU})
#: Accelerators of a profile: each becomes an accelerator request.
_MOST: Final = 256
# Namespace of the UUIDs of profiles without one.
_PROFILES: Final = uuid.UUID("9a4c6b0e-55d0-5a39-8f0d-0b7f8f2e6c11")


def read(found: object) -> DeviceProfile:
    """Parse a profile.

    :param found: a mapping with ``name``, ``groups`` and optionally ``uuid`` and
        ``description``; the groups are mappings of ``resources:<class>``,
        ``trait:<trait>`` and ``accel:<key>``.
    :raises InvalidProfile: the profile is invalid.
    """
    if not isinstance(found, Mapping):
        raise exception.InvalidProfile(
            f"{exception.show(found)} is not a device profile", hint="write a mapping"
        )
    name = found.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise exception.InvalidProfile(
            f"{exception.show(name)} is not a valid name of a device profile",
            hint="use at most 255 letters, digits, '-' and '_'",
        )
    for field in found:
        if field not in _FIELDS:
            raise exception.InvalidProfile(
                f"device profile {name}: {exception.show(field)} is not a "
                "field of a device profile",
                hint=exception.did_you_mean(field, _FIELDS),
            )
    return DeviceProfile(
        name=name,
        uuid=_uuid(name, found.get("uuid")),
        description=_description(name, found.get("description")),
        groups=_groups(name, found.get("groups")),
    )


def called(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the name and UUID of a profile; an invalid one may have neither."""
    name, given = found.get("name"), found.get("uuid")
    if given is None and isinstance(name, str) and _NAME.fullmatch(name):
        given = _made_up(name)
    uuid = canonical_uuid(given)
    return frozenset(each for each in (name, uuid) if isinstance(each, str))


def is_called(found: Mapping[str, Any], name: str) -> bool:
    """Return whether a profile, valid or not, has this name or UUID."""
    return not called(found).isdisjoint({name, canonical_uuid(name)})


def _made_up(name: str) -> str:
    return str(uuid.uuid5(_PROFILES, name))


def _uuid(name: str, given: object) -> str:
    if given is None:
        return _made_up(name)
    found = canonical_uuid(given)
    if found is None:
        raise exception.InvalidProfile(
            f"device profile {name}: {exception.show(given)} is not a UUID"
        )
    return found


def _description(name: str, given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or not exception.is_encodable(given):
        raise exception.InvalidProfile(
            f"device profile {name}: its description "
            f"{exception.show(given)} is not text"
        )
    return given


def _groups(name: str, given: object) -> tuple[ProfileGroup, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise exception.InvalidProfile(
            f"device profile {name}: its groups are {exception.show(given)}",
            hint="write a list with at least one group",
        )
    if len(given) > _MOST:
        # Each group requests at least one accelerator.
        raise _too_many(name, f"{len(given)} accelerators or more")
    found = tuple(group(name, index, each) for index, each in enumerate(given))
    asked = sum(each.accelerators for each in found)
    if asked > _MOST:
        raise _too_many(name, f"{asked} accelerators")
    return found


def _too_many(name: str, asked: str) -> exception.InvalidProfile:
    return exception.InvalidProfile(
        f"device profile {name} requests {asked}",
        hint=f"request at most {_MOST}",
    )


def group(name: str, index: int, given: object) -> ProfileGroup:
    """Parse one group of a profile.

    :param name: the name of the profile, for messages.
    :param given: a mapping; see :func:`read`.
    :raises InvalidProfile: the group is invalid.
    """
    where = f"device profile {name}, group {index}"
    if not isinstance(given, Mapping):
        raise exception.InvalidProfile(
            f"{where} is {exception.show(given)}, not a mapping"
        )
    properties = tuple(_property(where, *item) for item in given.items())
    bare = ProfileGroup(index, properties, RequestGroup(profile_suffix(index)))
    return dataclasses.replace(bare, request=_request(where, bare))


def _property(where: str, key: object, value: object) -> tuple[str, str]:
    kind, colon, name = key.partition(":") if isinstance(key, str) else ("", "", "")
    if kind not in _KINDS or not colon or not name.isprintable() or not name:
        raise exception.InvalidProfile(
            f"{where}: {exception.show(key)} is not a key of a group",
            hint="use keys that begin with resources:, trait: or accel:",
        )
    if kind == "resources" and type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise exception.InvalidProfile(
            f"{where}: {key} is {exception.show(value)}, not text",
            hint="put it in quotes",
        )
    return f"{kind}:{name}", value


def _request(where: str, group: ProfileGroup) -> RequestGroup:
    """Return the request of a group; the warnings of a flavor are errors here."""
    for key, value in group.properties:
        _check(where, key, value)
    asked = {key for key, _value in group.properties if key.startswith("resources:")}
    if len(asked) > 1:
        # A provider has one class, and one provider serves the whole group.
        raise exception.InvalidProfile(
            f"{where} requests {' and '.join(sorted(asked))}: no provider has both",
            hint=f"split it into {len(asked)} groups",
        )
    keys: Mapping[str, Any] = dict(group.extra_specs(group.suffix, "accel"))
    try:
        request = extra_specs.parse(keys)
    except exception.InvalidExtraSpec as error:
        raise exception.InvalidProfile(
            f"{where}: {error.message}", hint=error.hint
        ) from error
    for each in request.groups:
        if len(each.resources) == len(asked):
            return each
    raise exception.InvalidProfile(
        f"{where} requests no valid "
        f"accelerator{': ' if asked else ''}{', '.join(sorted(asked))}",
        hint="request resources: of one class, with an amount of at least 1",
    )


def _check(where: str, key: str, value: str) -> None:
    """Reject values that Nova only warns of."""
    kind, _, name = key.partition(":")
    if kind == "trait" and value not in ("required", "forbidden"):
        raise exception.InvalidProfile(
            f"{where}: {key} is {exception.show(value)}",
            hint="set the trait to 'required' or 'forbidden'",
        )
    if kind == "resources" and not (orc.is_custom(name) or name in _CLASSES):
        raise exception.InvalidProfile(
            f"{where}: {key} is not a resource class of accelerators",
            hint=f"use {', '.join(sorted(_CLASSES))} or a custom class",
        )
    if kind == "accel" and name not in accel_keys.KEYS:
        raise exception.InvalidProfile(
            f"{where}: {key} is not a key of a device profile",
            hint=exception.did_you_mean(name, accel_keys.KEYS),
        )
