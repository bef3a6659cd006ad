# SPDX-License-Identifier: Apache-2.0

"""Parse requests for bitstreams from text."""

from __future__ import annotations

import dataclasses
import re
import uuid
from typing import Final

from os_acc import exception
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.instance import canonical_uuid

#: The fields of a request, as keys of a flavor and as properties of an image.
NAMES: Final = tuple(field.name for field in dataclasses.fields(BitstreamRequest))

_OF_FUNCTIONS: Final = ("function_id", "function_name")
# The limit of Glance for the value of a property.
_LONGEST = 255
_FUNCTION_TRAIT = re.compile(r"CUSTOM_FPGA_[A-Z0-9]+_FUNCTION_([0-9A-F_]{32,36})")
_CYBORGS_TRAIT = re.compile(r"CUSTOM_FPGA_FUNCTION_ID_[A-Z0-9]+_([0-9A-F_]{32,36})")
_REGION_TRAIT = re.compile(
    r"CUSTOM_FPGA_(REGION_[A-Z0-9]+|[A-Z0-9]+_REGION)_[0-9A-F_]{32,36}"
)


def read(name: str, text: str) -> BitstreamRequest:
    """Parse one field of a bitstream request.

    :param name: one of :data:`NAMES`.
    :param text: an image's uuid; an image's name; a function's uuid, its
        trait, or another id that images carry; a function's name.
    :raises InvalidInput: the text is not valid for the field, or names several
        functions.
    """
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise exception.InvalidInput(
            f"{exception.show(text)} is not a valid {name}",
            hint=f"use 1 to {_LONGEST} printable characters",
        )
    if name in _OF_FUNCTIONS and "," in text:
        # Bitstream images list their functions so; no single one has a comma.
        raise exception.InvalidInput(
            f"{exception.show(text)} is not one {name}, but several",
            hint="request one function; several functions need a request group of the "
            "flavor for each",
        )
    if name == "bitstream_id":
        text = _image_id(text)
    elif name == "function_id":
        text = function_id(text)
    return BitstreamRequest(**{name: text})


def function_id(text: str) -> str:
    """Return the canonical form of a function's id: a uuid if it is one."""
    match = _FUNCTION_TRAIT.fullmatch(text) or _CYBORGS_TRAIT.fullmatch(text)
    plain = match.group(1).replace("_", "") if match else text
    return canonical_uuid(plain) or text


def names_function(trait: str) -> bool:
    """Return whether a trait names the function that a region holds."""
    return bool(_FUNCTION_TRAIT.fullmatch(trait) or _CYBORGS_TRAIT.fullmatch(trait))


def names_region(trait: str) -> bool:
    """Return whether a trait names a region by its accepted bitstreams."""
    return _REGION_TRAIT.fullmatch(trait) is not None


def _image_id(text: str) -> str:
    found = canonical_uuid(text)
    if found is None:
        raise exception.InvalidInput(
            f"{exception.show(text)} is not an image id",
            hint=f"use the form {uuid.UUID(int=0)}, or request an image by its "
            "name with bitstream_name",
        )
    return found
