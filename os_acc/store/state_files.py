# SPDX-License-Identifier: Apache-2.0

"""Files of the state directory: node name, refusals, migrations, health, error count.

A service writes them, and commands on the same host read them. None needs a lock: each
is replaced atomically.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Final

from os_acc.exception import InvalidInput, OsAccError
from os_acc.host import attributes
from os_acc.objects.mdev import DeviceAddress, function_of
from os_acc.objects.migration import MigrationSupport
from os_acc.objects.pci import PciAddress
from os_acc.store import errors

_NODE_NAME: Final = "node_name"
#: The longest name of a provider in Placement, in bytes of UTF-8.
_LONGEST_NAME: Final = 4 * 200
_REFUSALS: Final = "refusals"
_LONGEST_REFUSAL: Final = 1 << 16
_MIGRATIONS: Final = "migrations"
_LONGEST_ANSWER: Final = 4096
_HEALTH: Final = "health"
_LONGEST_HEALTH: Final = 1 << 22
_ERRORS: Final = "errors"
_LONGEST_COUNT: Final = 20
#: Seconds for which a health record counts; a service makes one about once a minute.
MAX_AGE: Final = 300.0
#: The errors of a file that is no record; OverflowError: JSON may have Infinity.
_UNUSABLE: Final = (
    *(OSError, ValueError, TypeError, AttributeError, KeyError),
    *(OverflowError, RecursionError),
)


def replace(
    path: str, content: bytes, *, durable: bool = False, mode: int | None = None
) -> None:
    """Create or replace a file; after a crash it is the old one, or the new one.

    :param durable: also after a loss of power: the content reaches the disk before
        the name, and both before this returns.
    :param mode: the permissions of a first file, less those of the umask; it keeps its
        permissions and its owner. None: they are those of the last writer.
    :raises OSError: it cannot be written; only the last sync may have left it replaced.
    """
    fresh = f"{path}.new"
    # The rest of a write that was interrupted. A link is not followed.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(fresh, flags, 0o666 if mode is None else mode)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                _keep_owner(file.fileno(), path)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        # A file that does not fit is in the way of others.
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    if durable:
        sync_directory(os.path.dirname(path))


def _keep_owner(descriptor: int, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(path)
        os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable (fsync(2))."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str, longest: int) -> bytes:
    # The owner of the directory may have replaced the file; root reads it, too.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(descriptor, longest)
    finally:
        os.close(descriptor)


# -- the name that a service gave its node -----------------------------------------


def record_node_name(state_path: str, name: str | None) -> None:
    """Record the name of the node; None removes the record.

    ``[os_acc] node_name`` takes precedence. Without the record, a command would use the
    host name, and derive other providers from it than a service with Nova's name.

    :raises StateUnavailable: the state directory cannot be written to.
    """
    if recorded_node_name(state_path) == name:
        return
    path = os.path.join(state_path, _NODE_NAME)
    try:
        if name is None:
            os.unlink(path)
            sync_directory(state_path)
        else:
            replace(path, name.encode(), durable=True)
    except OSError as error:
        raise errors.from_os_error(error, path) from error


def recorded_node_name(state_path: str) -> str | None:
    """Return the recorded name; None: none is recorded, or it cannot be read."""
    path = os.path.join(state_path, _NODE_NAME)
    try:
        encoded = _read(path, _LONGEST_NAME + 1)
        name = encoded.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return name if name.isprintable() and 0 < len(encoded) <= _LONGEST_NAME else None


# -- devices that their plugins refuse to prepare, until they change ----------------


def record_refusal(
    state_path: str, root: str, address: DeviceAddress, options: str, why: OsAccError
) -> None:
    """Record that a device is refused; a failure is a note of the error.

    It counts while the kernel shows the same device with the same disks, and the plugin
    has the same options.

    :param options: those of its plugin, with the name of the plugin.
    :param why: the error with which the plugin has refused it.
    """
    path, function = _refusal(state_path, address), str(function_of(address) or "")
    try:
        found = (str(address), options, why.message, function, _state(root, function))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace(path, json.dumps(found).encode())
    except OSError as error:
        why.add_note(f"cannot record that {address} is refused: {error}")


def recorded_refusals(state_path: str, root: str) -> dict[tuple[str, str], str]:
    """Return the reason of each refusal, by the address and the options."""
    reasons = {}
    for path in glob.glob(_refusal(glob.escape(state_path), "*")):
        # Without the record, the next plug asks the plugin again.
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            found = json.loads(_read(path, _LONGEST_REFUSAL))
            address, options, why, function, state = found
            if state == _state(root, function):
                reasons[str(address), str(options)] = str(why)
    return reasons


def forget_refusal(state_path: str, address: DeviceAddress) -> bool:
    """Remove a refusal, so that the plugin is asked again; False: there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_refusal(state_path, address))
        return True
    return False


def _refusal(state_path: str, address: object) -> str:
    return os.path.join(state_path, _REFUSALS, str(address).replace("/", " "))


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


# -- what VFIO has answered about migration ------------------------------------------


def record_migration(state_path: str, subject: str, support: MigrationSupport) -> None:
    """Record the answer of VFIO about a subject; if that fails, it is asked again.

    :param subject: see :func:`os_acc.inventory.migration.subject_of`.
    """
    path = _migration(state_path, subject)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        replace(path, json.dumps([subject, support.encoded()]).encode())


def forget_migration(state_path: str, subject: str) -> None:
    """Remove an answer, so that VFIO is asked again."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_migration(state_path, subject))


def _migration(state_path: str, subject: str) -> str:
    name = hashlib.sha256(subject.encode()).hexdigest()[:32]
    return os.path.join(state_path, _MIGRATIONS, name)


def recorded_migrations(state_path: str) -> dict[str, MigrationSupport]:
    """Return the recorded answers by their subjects."""
    answers = {}
    for path in glob.glob(os.path.join(glob.escape(state_path), _MIGRATIONS, "*")):
        with contextlib.suppress(*_UNUSABLE):
            subject, text = json.loads(_read(path, _LONGEST_ANSWER))
            answers[str(subject)] = MigrationSupport.parse(text)
    return answers


# -- the health that a service has read as root --------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class HealthRecord:
    """The results of health steps.

    :ivar faults: the fault of each function that has one.
    :ivar readings: the readings of each function, by name.
    """

    faults: Mapping[PciAddress, str] = dataclasses.field(default_factory=dict)
    readings: Mapping[PciAddress, Mapping[str, int]] = dataclasses.field(
        default_factory=dict
    )


def record_health(state_path: str, root: str, found: HealthRecord) -> None:
    """Record the health, for commands, which start no helper for it.

    :param root: the directory with ``proc``.
    :raises StateUnavailable: the state directory cannot be written to.
    :raises HostStepFailed: the boot has no number.
    """
    path = os.path.join(state_path, _HEALTH)
    record = {
        "boot": attributes.boot_id(root),
        "time": time.time(),
        "faults": {str(each): text for each, text in found.faults.items()},
        "readings": {str(at): dict(each) for at, each in found.readings.items()},
    }
    try:
        # Lost in a power cut, it is not missed: another boot ignores it.
        replace(path, json.dumps(record).encode())
    except OSError as error:
        raise errors.from_os_error(error, path) from error


def recorded_health(state_path: str, root: str) -> HealthRecord:
    """Return the record of this boot; an empty one if there is none, or it is old.

    The service of an old one has ended, or hangs.
    """
    # A record is no part of the state: without it the health is unknown.
    with contextlib.suppress(*_UNUSABLE, InvalidInput):
        found = json.loads(_read(os.path.join(state_path, _HEALTH), _LONGEST_HEALTH))
        is_young = 0 <= time.time() - found["time"] <= MAX_AGE
        if is_young and found["boot"] == attributes.boot_id(root):
            faults = {
                PciAddress.parse(at): str(why) for at, why in found["faults"].items()
            }
            readings = {
                PciAddress.parse(at): {str(name): int(n) for name, n in each.items()}
                for at, each in found["readings"].items()
            }
            return HealthRecord(faults, readings)
    return HealthRecord()


# -- unforeseen errors of a service's threads ----------------------------------------


def count_error(state_path: str) -> None:
    """Count an unforeseen error, for ``os-acc metrics``; no decision depends on it."""
    count = f"{counted_errors(state_path) + 1}"
    with contextlib.suppress(OSError):
        replace(os.path.join(state_path, _ERRORS), count.encode())


def counted_errors(state_path: str) -> int:
    """Return the number of unforeseen errors since the state directory was created."""
    try:
        return int(_read(os.path.join(state_path, _ERRORS), _LONGEST_COUNT))
    except _UNUSABLE:
        return 0
