# SPDX-License-Identifier: Apache-2.0

"""What a request asks a region to be programmed with, read from text."""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import Final

from os_acc import exception
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.instance import canonical_uuid

#: The ways to ask, as keys of a flavor and as properties of an image.
NAMES: Final = tuple(field.name for field in dataclasses.fields(BitstreamRequest))

# What Glance stores in a property.
_LONGEST = 255
_FUNCTION_TRAIT = re.compile(r"CUSTOM_FPGA_[A-Z0-9]+_FUNCTION_([0-9A-F_]{32,36})")
_CYBORGS_TRAIT = re.compile(r"CUSTOM_FPGA_FUNCTION_ID_[A-Z0-9]+_([0-9A-F_]{32,36})")
_REGION_TRAIT = re.compile(
    r"CUSTOM_FPGA_(REGION_[A-Z0-9]+|[A-Z0-9]+_REGION)_[0-9A-F_]{32,36}"
)


def read(name: str, text: str) -> BitstreamRequest:
    """One way to ask for a bitstream.

    :param name: one of :data:`NAMES`.
    :param text: an image's uuid; an image's name; a function's uuid, its
        trait, or another id that images carry; a function's name.
    :raises InvalidInput: the text is none of that.
    """
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise exception.InvalidInput(
            f"{exception.show(text)} is no {name}",
            hint=f"it has 1 to {_LONGEST} printable characters",
        )
    if name == "bitstream_id":
        text = _image_id(text)
    elif name == "function_id":
        text = function_id(text)
    return BitstreamRequest(**{name: text})


def function_id(text: str) -> str:
    """The canonical form of a function's id: a uuid where it is one."""
    match = _FUNCTION_TRAIT.fullmatch(text) or _CYBORGS_TRAIT.fullmatch(text)
    plain = match.group(1).replace("_", "") if match else text
    return canonical_uuid(plain) or text


def names_function(trait: str) -> bool:
    """Whether a trait is that of a region which holds a certain function."""
    return bool(_FUNCTION_TRAIT.fullmatch(trait) or _CYBORGS_TRAIT.fullmatch(trait))


def names_region(trait: str) -> bool:
    """Whether a trait is that of a region which takes certain bitstreams."""
    return _REGION_TRAIT.fullmatch(trait) is not None


def _image_id(text: str) -> str:
    found = canonical_uuid(text)
    if found is None:
        raise exception.InvalidInput(
            f"{exception.show(text)} is not the id of an image",
            hint=f"it looks like {uuid.UUID(int=0)}; an image's name goes into "
            "bitstream_name",
        )
    return found
