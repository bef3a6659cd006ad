# SPDX-License-Identifier: Apache-2.0

"""Devices that their plugins refuse to prepare for a guest, until they change.

A refusal counts while the kernel shows the same device with the same disks, and the
plugin has the same options. Each has a file: a service and commands write them, and
need no lock.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from typing import Final

from os_acc.exception import OsAccError
from os_acc.objects.mdev import DeviceAddress, function_of

_DIRECTORY: Final = "refusals"
_LONGEST: Final = 1 << 16


def record(
    state_path: str, root: str, address: DeviceAddress, options: str, why: OsAccError
) -> None:
    """Record that a device is refused; a failure is a note of the error.

    :param options: those of its plugin, with the name of the plugin.
    :param why: the error with which the plugin has refused it.
    """
    path = _path(state_path, address)
    try:
        found = {"state": _state(root, address, options), "reason": why.message}
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        why.add_note(f"cannot record that {address} is refused: {error}")


def recorded(state_path: str) -> frozenset[str]:
    """Return the names of the devices that have been refused."""
    with contextlib.suppress(OSError):
        return frozenset(os.listdir(os.path.join(state_path, _DIRECTORY)))
    return frozenset()


def reason_of(state_path: str, root: str, address: DeviceAddress, options: str) -> str:
    """Return why a device is refused; '' if it is not, or has changed since."""
    try:
        # The owner of the directory may have replaced the file; root reads it, too.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(_path(state_path, address), flags), "rb") as file:
            found = json.loads(file.read(_LONGEST))
        is_same = found["state"] == _state(root, address, options)
        return str(found["reason"]) if is_same else ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        # Without the record, the next plug asks the plugin again.
        return ""


def forget(state_path: str, address: DeviceAddress) -> bool:
    """Remove a refusal, so that the plugin is asked again; False: there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(state_path, address))
        return True
    return False


def name_of(address: DeviceAddress) -> str:
    """Return the name of a device in :func:`recorded`."""
    return str(address).replace("/", " ")


def _path(state_path: str, address: DeviceAddress) -> str:
    return os.path.join(state_path, _DIRECTORY, name_of(address))


def _state(root: str, address: DeviceAddress, options: str) -> str:
    """Return a digest that differs once the device, its disks or the options do."""
    function, seen = function_of(address), [options]
    if function is not None:
        place = os.path.join(root, "sys/bus/pci/devices", str(function))
        # A device that is found anew has another directory.
        seen.append(str(os.stat(place).st_ino))
        for size in sorted(glob.glob(f"{glob.escape(place)}/nvme/*/*/size")):
            with open(size, encoding="ascii") as file:
                seen += [os.path.basename(os.path.dirname(size)), file.read()]
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()
