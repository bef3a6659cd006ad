# SPDX-License-Identifier: Apache-2.0

"""os_acc's own keys in a flavor: what a group's accelerators are to be.

They are read strictly, whoever asks: a plug, or Nova when the flavor is made.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection, Mapping
from typing import Final

from os_acc import exception
from os_acc.objects import bitstream_requests
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import NUMBERED_SUFFIX, AttachTarget
from os_acc.scheduling.request_groups import text_of

#: The namespaces that take a group's suffix; both mean the same.
NAMESPACES: Final = ("accel", "os_acc")

_OURS = re.compile(rf"(?:{'|'.join(NAMESPACES)})({NUMBERED_SUFFIX})?:(.*)", re.DOTALL)
#: This one is between Nova and Cyborg.
DEVICE_PROFILE: Final = "accel:device_profile"


class KeyTreatment(enum.Enum):
    """What becomes of a key that is about accelerators."""

    #: It says what a region is to be programmed with: a field of Wish.
    WISH = enum.auto()
    #: It says who is to have the accelerators.
    TARGET = enum.auto()
    #: It says how near to the guest they have to be.
    POLICY = enum.auto()


#: Every name below :data:`NAMESPACES`, and what becomes of such a key.
KEYS: Final[Mapping[str, KeyTreatment]] = {
    "bitstream_id": KeyTreatment.WISH,
    "bitstream_name": KeyTreatment.WISH,
    "function_id": KeyTreatment.WISH,
    "function_name": KeyTreatment.WISH,
    "numa_policy": KeyTreatment.POLICY,
    "attach_target": KeyTreatment.TARGET,
}
#: The os_acc specification's own namespaces, and what they say in our words.
OF_THE_SPECIFICATION: Final[Mapping[str, str]] = {
    "bitstream": "bitstream_id",
    "function": "function_id",
    "function_name": "function_name",
}
#: The values of those that have no others.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "attach_target": tuple(each.value for each in AttachTarget),
    "numa_policy": tuple(sorted(each.value for each in NUMAPolicy)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class AccelKey:
    """A key in a namespace of ours.

    :ivar key: all of it.
    :ivar suffix: of the group that it is about.
    :ivar name: one of :data:`KEYS`, or unknown.
    :ivar told: what is asked for, where that is a part of the key.
    """

    key: str
    suffix: str
    name: str
    told: str | None = None

    @property
    def treatment(self) -> KeyTreatment | None:
        """What becomes of it; None where there is no such key."""
        return KEYS.get(self.name)


def find(key: str, suffixes: Collection[str] = ()) -> AccelKey | None:
    """A key as one of ours; None where it is another's.

    :param suffixes: the groups that there are.
    """
    if key == DEVICE_PROFILE:
        return None
    match = _OURS.fullmatch(key)
    if match is None:
        namespace, colon, told = key.partition(":")
        name = OF_THE_SPECIFICATION.get(namespace)
        return AccelKey(key, "", name, told) if colon and name else None
    suffix, name = match.groups(default="")
    # 'accelerator:size' could be read as our key 'size' in a group 'erator'.
    # It is another's namespace unless there is such a group, or such a key.
    may_be_a_word = bool(suffix) and not suffix.isdecimal() and suffix not in suffixes
    if may_be_a_word and exception.nearest(name, KEYS) is None:
        return None
    return AccelKey(key, suffix, name)


def check(key: str, value: object) -> None:
    """Judge one key alone, without the flavor that it is part of.

    Keys of others' are right.

    :raises InvalidExtraSpec: there is no such key of ours, or its value is
        none that it can have.
    """
    own = find(key)
    if own is None:
        return
    if own.treatment is KeyTreatment.WISH:
        _wish(own, value)
        return
    _check_known(own)
    _check_choice(own, value)


def read(own: AccelKey, value: object) -> BitstreamRequest | AttachTarget | NUMAPolicy:
    """What a key says.

    :raises InvalidExtraSpec: there is no such key, or it cannot say that.
    """
    if own.treatment is KeyTreatment.WISH:
        return _wish(own, value)
    _check_known(own)
    _check_choice(own, value)
    if own.treatment is KeyTreatment.TARGET:
        return AttachTarget(value)
    return NUMAPolicy(value)


def _wish(own: AccelKey, value: object) -> BitstreamRequest:
    text = text_of(own.key, value)
    if own.told is not None:
        # The specification has it as a trait: 'bitstream:<uuid>=required'.
        if text != "required":
            raise exception.InvalidExtraSpec(
                f"extra spec {exception.show(own.key)} is {exception.show(text)}",
                hint="the only value of such a key is 'required'",
            )
        text = own.told
    try:
        return bitstream_requests.read(own.name, text)
    except exception.InvalidInput as error:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: {error.message}", hint=error.hint
        ) from error


def _check_known(own: AccelKey) -> None:
    if own.treatment is None:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)}: {exception.show(own.name)} is no "
            "key of os_acc",
            hint=exception.did_you_mean(own.name, KEYS),
        )


def _check_choice(own: AccelKey, value: object) -> None:
    choices = CHOICES[own.name]
    text = text_of(own.key, value)
    if text not in choices:
        raise exception.InvalidExtraSpec(
            f"extra spec {exception.show(own.key)} is {exception.show(text)}",
            hint=exception.did_you_mean(text, choices),
        )
