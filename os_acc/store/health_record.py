# SPDX-License-Identifier: Apache-2.0

"""The health that a service has read as root, for commands on the same host.

The commands start no helper for it. A record is valid for a few minutes, until a reboot
at most. The service of an older one has ended, or hangs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from os_acc.exception import InvalidInput
from os_acc.host import attributes
from os_acc.objects.pci import PciAddress
from os_acc.store import errors, small_files

#: Seconds for which a record counts; a service makes one about once a minute.
MAX_AGE: Final = 300.0
_FILE: Final = "health"
_LONGEST: Final = 1 << 22
#: The errors of a file that is no record; OverflowError: JSON may have Infinity.
_UNUSABLE: Final = (
    *(OSError, ValueError, TypeError, AttributeError, KeyError),
    *(OverflowError, RecursionError),
)


@dataclasses.dataclass(frozen=True, slots=True)
class HealthRecord:
    """The results of health steps.

    :ivar faults: the fault of each function that has one.
    :ivar readings: the readings of each function, by name.
    """

    faults: Mapping[PciAddress, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    readings: Mapping[PciAddress, Mapping[str, int]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


def record(state_path: str, root: str, found: HealthRecord) -> None:
    """Record the health; it replaces an earlier record.

    :param root: the directory with ``proc``.
    :raises StateUnavailable: the state directory cannot be written to.
    :raises HostStepFailed: the boot has no number.
    """
    path = os.path.join(state_path, _FILE)
    text = json.dumps(
        {
            "boot": attributes.boot_id(root),
            "time": time.time(),
            "faults": {str(each): text for each, text in found.faults.items()},
            "readings": {str(at): dict(each) for at, each in found.readings.items()},
        }
    )
    try:
        # Lost in a power cut, it is not missed: another boot ignores it.
        small_files.replace(path, text.encode())
    except OSError as error:
        raise errors.from_os_error(error, path) from error


def recorded(state_path: str, root: str) -> HealthRecord:
    """Return the record; an empty one if there is none that counts."""
    path = os.path.join(state_path, _FILE)
    try:
        found = json.loads(small_files.read(path, _LONGEST))
        return _parse(found, attributes.boot_id(root))
    # A record is no part of the state: without it the health is unknown.
    except (*_UNUSABLE, InvalidInput):
        return HealthRecord()


def _parse(found: Any, boot: str) -> HealthRecord:
    age = time.time() - found.get("time", -math.inf)
    if found.get("boot") != boot or not 0 <= age <= MAX_AGE:
        return HealthRecord()
    return HealthRecord(
        MappingProxyType(
            {
                PciAddress.parse(each): str(text)
                for each, text in found["faults"].items()
            }
        ),
        MappingProxyType(
            {
                PciAddress.parse(at): MappingProxyType(
                    {str(name): int(value) for name, value in each.items()}
                )
                for at, each in found["readings"].items()
            }
        ),
    )
