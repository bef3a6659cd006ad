# SPDX-License-Identifier: Apache-2.0

"""Which resource classes of a provider of ours are os_acc's.

Whose a provider is, its name tells, also after the loss of the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import os_resource_classes as orc  # type: ignore[import-untyped]

from os_acc.objects.published import NameKind, PublishedNames

#: What a resource class of os_acc's own choice begins with, and those that
#: operators choose who come from Cyborg.
_PREFIX: Final = "CUSTOM_ACCELERATOR_"
_OF_DEVICES: Final = frozenset({orc.FPGA, orc.PGPU, orc.VGPU})


def given_classes(named: Collection[str], told: PublishedNames) -> frozenset[str]:
    """The classes that are known to be, or to have been, what os_acc gives.

    :param named: those that the operator has given devices.
    """
    return frozenset(named) | {
        name.text
        for names in (*told.given.values(), told.made)
        for name in names
        if name.kind is NameKind.RESOURCE_CLASS
    }


def classes_of(
    recorded: frozenset[str], there: Iterable[str], given: Collection[str]
) -> frozenset[str]:
    """The classes of a provider of ours that are ours to withdraw.

    :param recorded: those that it was given; where the record is lost, they are
        the ones that it may have been given.
    :param there: those that it has.
    :param given: those that any provider is known to be given.
    """
    if recorded:
        return recorded
    return frozenset(
        name
        for name in there
        if name in given or name in _OF_DEVICES or name.startswith(_PREFIX)
    )
