# SPDX-License-Identifier: Apache-2.0

"""What the properties of an image say of the bitstream in it.

Cyborg has ``accel:function_id``; its specification of bitstream images has
``function_uuid``, ``function_name``, ``region_uuid``, ``vendor`` and
``board``. Each is known with and without ``accel:``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from os_acc import exception
from os_acc.objects.image import Image
from os_acc.objects.instance import canonical_uuid

#: Images of bitstreams have it: an image of a VM may carry the same
#: properties, to say what it needs.
TAG: Final = "FPGA"


def _names(*names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in names for prefix in ("accel:", ""))


FUNCTION_ID_NAMES: Final = _names("function_id", "function_uuid")
FUNCTION_NAME_NAMES: Final = _names("function_name")
REGION_NAMES: Final = _names("region_uuid")
VENDOR_NAMES: Final = _names("vendor")
BOARD_NAMES: Final = _names("board")


def said(image: Image, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of those of these properties that the image has."""
    for name in names:
        if name in image.properties:
            yield name, image.properties[name]


def function_ids(image: Image) -> tuple[str, ...]:
    """What it implements, as ids: canonical where they are UUIDs."""
    found = said(image, FUNCTION_ID_NAMES)
    return tuple(dict.fromkeys(_canonical(value) for _, value in found))


def function_names(image: Image) -> tuple[str, ...]:
    """What it implements, as names, each exactly as it is written."""
    found = said(image, FUNCTION_NAME_NAMES)
    return tuple(dict.fromkeys(value for _, value in found))


def region_id(image: Image) -> str | None:
    """Which regions it is built for; None where no property says.

    Where two properties contradict each other, what comes back is the UUID of
    no region.
    """
    found = {_canonical(value) for _, value in said(image, REGION_NAMES)}
    return " and ".join(sorted(found)) if found else None


def title(image: Image) -> str:
    """Its id and name as a message shows them: an uploader has chosen the name."""
    return f"{image.id} ({exception.show(image.name)})" if image.name else image.id


def _canonical(value: str) -> str:
    return canonical_uuid(value) or value
