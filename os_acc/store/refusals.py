# SPDX-License-Identifier: Apache-2.0

"""Devices that their plugins refuse to prepare for a guest, until they change.

A refusal counts while the kernel shows the same device with the same disks, and the
plugin has the same options. Each has a file: a service and commands write them, and
need no lock.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from typing import Final

from os_acc.exception import OsAccError
from os_acc.objects.mdev import DeviceAddress, function_of
from os_acc.store import small_files

_DIRECTORY: Final = "refusals"
_LONGEST: Final = 1 << 16


def record(
    state_path: str, root: str, address: DeviceAddress, options: str, why: OsAccError
) -> None:
    """Record that a device is refused; a failure is a note of the error.

    :param options: those of its plugin, with the name of the plugin.
    :param why: the error with which the plugin has refused it.
    """
    path, function = _path(state_path, address), str(function_of(address) or "")
    try:
        found = (str(address), options, why.message, function, _state(root, function))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        small_files.replace(path, json.dumps(found).encode())
    except OSError as error:
        why.add_note(f"cannot record that {address} is refused: {error}")


def recorded(state_path: str, root: str) -> dict[tuple[str, str], str]:
    """Return the reason of each refusal, by the address and the options."""
    reasons = {}
    for path in glob.glob(_path(glob.escape(state_path), "*")):
        # Without the record, the next plug asks the plugin again.
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            found = json.loads(small_files.read(path, _LONGEST))
            address, options, why, function, state = found
            if state == _state(root, function):
                reasons[str(address), str(options)] = str(why)
    return reasons


def forget(state_path: str, address: DeviceAddress) -> bool:
    """Remove a refusal, so that the plugin is asked again; False: there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(state_path, address))
        return True
    return False


def _path(state_path: str, address: object) -> str:
    return os.path.join(state_path, _DIRECTORY, str(address).replace("/", " "))


def _state(root: str, function: str) -> list[str]:
    """Return what differs once a function is found anew, or has other disks."""
    if not function:
        return []
    place = os.path.join(root, "sys/bus/pci/devices", function)
    seen = [str(os.stat(place).st_ino)]
    for size in sorted(glob.glob(f"{glob.escape(place)}/nvme/*/*/size")):
        with open(size, encoding="ascii") as file:
            seen += [os.path.basename(os.path.dirname(size)), file.read()]
    return seen
