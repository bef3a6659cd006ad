# SPDX-License-Identifier: Apache-2.0

"""os_acc's own extra specs of a flavor: requirements on a group's accelerators.

They are parsed strictly, both for a plug and when Nova validates a flavor.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Final

from os_acc import exception
from os_acc.objects.bitstream import BitstreamRequest, parse_bitstream_request
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request_group import NUMBERED_SUFFIX, AttachTarget

#: The namespaces that take a group's suffix; they are synonyms.
NAMESPACES: Final = ("accel", "os_acc")

_OURS = re.compile(rf"(?:{'|'.join(NAMESPACES)})({NUMBERED_SUFFIX})?:(.*)", re.DOTALL)
#: This key is reserved for Nova and Cyborg.
DEVICE_PROFILE: Final = "accel:device_profile"


#: Every name below :data:`NAMESPACES`, and the field of the request group that it sets.
KEYS: Final[Mapping[str, str]] = {
    "bitstream_id": "bitstream_request",
    "bitstream_name": "bitstream_request",
    "function_id": "bitstream_request",
    "function_name": "bitstream_request",
    "numa_policy": "numa_policy",
    "attach_target": "attach_target",
}
#: The namespaces of the os_acc specification, and the equivalent keys.
OF_THE_SPECIFICATION: Final[Mapping[str, str]] = {
    "bitstream": "bitstream_id",
    "function": "function_id",
    "function_name": "function_name",
}
#: The allowed values of keys with a fixed set of values.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "attach_target": tuple(each.value for each in AttachTarget),
    "numa_policy": tuple(sorted(each.value for each in NUMAPolicy)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class AccelKey:
    """A key in a namespace of os_acc.

    :ivar key: the key as given.
    :ivar suffix: the suffix of its group.
    :ivar name: one of :data:`KEYS`, or unknown.
    :ivar value: the requested value, if it is a part of the key.
    """

    key: str
    suffix: str
    name: str
    value: str | None = None


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


def find(key: str, suffixes: Collection[str] = ()) -> AccelKey | None:
    """Parse a key of os_acc; return None for a key of another namespace.

    :param suffixes: the suffixes of the existing groups.
    """
    if key == DEVICE_PROFILE:
        return None
    match = _OURS.fullmatch(key)
    if match is None:
        namespace, colon, value = key.partition(":")
        name = OF_THE_SPECIFICATION.get(namespace)
        return AccelKey(key, "", name, value) if colon and name else None
    suffix, name = match.groups(default="")
    # 'accelerator:size' could be read as our key 'size' in a group 'erator'.
    # It belongs to another namespace unless that group or key exists.
    may_be_a_word = bool(suffix) and not suffix.isdecimal() and suffix not in suffixes
    if may_be_a_word and exception.nearest(name, KEYS) is None:
        return None
    return AccelKey(key, suffix, name)


def check(key: str, value: object) -> None:
    """Check one key and its value, without the rest of the flavor.

    Keys of other namespaces are accepted.

    :raises InvalidExtraSpec: the key is unknown, or its value is not allowed.
    """
    if own := find(key):
        read(own, value)


def read(own: AccelKey, value: object) -> BitstreamRequest | AttachTarget | NUMAPolicy:
    """Return the parsed value of a key.

    :raises InvalidExtraSpec: the key is unknown, or its value is not allowed.
    """
    if own.name not in KEYS:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: "
            f"{exception.show(own.name)} is not a key of os_acc",
            hint=exception.did_you_mean(own.name, KEYS),
        )
    choices = CHOICES.get(own.name)
    if choices is None:
        return _bitstream_request(own, value)
    text = text_of(own.key, value)
    if text not in choices:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)} is {exception.show(text)}",
            hint=exception.did_you_mean(text, choices),
        )
    return AttachTarget(text) if own.name == "attach_target" else NUMAPolicy(text)


def _bitstream_request(own: AccelKey, value: object) -> BitstreamRequest:
    text = text_of(own.key, value)
    if own.value is not None:
        # The specification uses the form of a trait: 'bitstream:<uuid>=required'.
        if text != "required":
            raise exception.InvalidExtraSpec(
                f"extra spec {exception.show(own.key)} is {exception.show(text)}",
                hint="set it to 'required', its only allowed value",
            )
        text = own.value
    try:
        return parse_bitstream_request(own.name, text)
    except exception.InvalidInput as error:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: {error.message}", hint=error.hint
        ) from error
