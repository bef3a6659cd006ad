# SPDX-License-Identifier: Apache-2.0

"""Record on disk the devices that have to be erased.

A reboot keeps these files, unlike those below ``/run``. Each device has one, named
after its serial number if that is known, else after its address: a reboot may move it.
The text is the helper's record (:mod:`os_acc.privsep.record`). It is durable before a
consumer gets the device, and removed once the device is erased.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Final

from os_acc.privsep import kernel
from os_acc.privsep.kernel import StateFile

#: Only root can write to it, or replace it: its parent is root's as well.
DIRECTORY: Final = "var/lib/os-acc-privileged"
_NAME: Final = re.compile(r"((?:[0-9a-f]{4}-){4}[0-9a-f]{4})@[0-9a-f]{32}", re.ASCII)


def name_of(identity: tuple[int, ...], key: str) -> str:
    """Return the name of a device's file.

    :param key: its serial number (:func:`.functions.serial`), or its address.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"{'-'.join(f'{number:04x}' for number in identity)}@{digest}"


def texts(
    model: tuple[int, ...] | None = None,
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield the name, the PCI identity and the text of all files, or of one model's.

    :raises OSError: one of them cannot be read.
    """
    try:
        names = sorted(os.listdir(kernel.current.path(DIRECTORY)))
    except FileNotFoundError:
        return
    for name in names:
        # A killed worker may leave a new file that has no name of its own yet.
        if (match := _NAME.fullmatch(name)) is None:
            continue
        identity = tuple(int(number, 16) for number in match[1].split("-"))
        if model not in (None, identity):
            continue
        if (text := file_of(name).read()) is not None:
            yield name, identity, text


def file_of(name: str) -> StateFile:
    """Return the file of a name; it is written durably."""
    return StateFile(f"{DIRECTORY}/{name}")
