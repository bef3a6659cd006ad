# SPDX-License-Identifier: Apache-2.0

"""Checks of the state directory and the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from os_acc.bitstreams import cache, options
from os_acc.cmd import environment
from os_acc.cmd.checks import CheckContext, Finding, failed, ok, warning
from os_acc.cmd.device_states import quarantine
from os_acc.exception import PluginReason
from os_acc.host.attributes import read_lines
from os_acc.objects.lease import LeaseState

# POSIX record locks do not work there, or not across hosts and crashes.
_REMOTE = frozenset(
    {"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3"}
)
#: A service continues an erasure every few seconds.
_IDLE_SECONDS = 60.0
_VOLATILE = frozenset({"tmpfs", "ramfs"})


def directory(context: CheckContext) -> Iterator[Finding]:
    """Check that the directory exists, its owner, permissions and free space."""
    path, uid = context.settings.state_path, context.check_owner()
    owner, me = environment.name_of(uid), environment.name_of(os.geteuid())
    if uid != os.geteuid():
        yield failed(
            f"{path} belongs to {owner}, but this user is {me}",
            f"run the command as root or as {owner}, or make the user of "
            "nova-compute the owner of the directory",
        )
    elif uid == 0:
        yield warning(
            f"{path} belongs to root: a nova-compute of another user "
            "cannot write to it",
            f"chown -R nova:nova {path}",
        )
    found = os.statvfs(path)
    if found.f_flag & os.ST_RDONLY:
        yield failed(
            f"the file system of {path} is read-only",
            "see the kernel's log for an error of the disk; then mount it writable",
        )
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        yield failed(f"{me} cannot write to {path}", f"chmod u+rwx {path}")
    elif found.f_bavail == 0:
        yield failed(f"no space is left for {path}", "free space on its file system")
    elif found.f_files and not found.f_favail:
        yield failed(
            f"no inode is left for {path}", "remove files from its file system"
        )
    else:
        yield ok(f"{path} belongs to {owner} and can be written")


def file_system(context: CheckContext) -> Iterator[Finding]:
    """Check that the file system is local and survives a reboot."""
    context.check_owner()
    path = os.path.realpath(context.settings.state_path)
    kind = _kind(context.root, path)
    hint = "move [os_acc] state_path to a local disk, while no instance has devices"
    if kind is None:
        yield warning(f"cannot determine the file system of {path}", hint)
    elif kind in _REMOTE or kind.startswith("fuse."):
        yield failed(f"{path} is on {kind}, where locks are not reliable", hint)
    elif kind in _VOLATILE:
        yield failed(f"{path} is on {kind}, which a reboot empties", hint)
    else:
        yield ok(f"{path} is on {kind}")


def files(context: CheckContext) -> Iterator[Finding]:
    """Check that all files belong to the owner of the directory."""
    path, uid = context.settings.state_path, context.check_owner()
    strange = [each for each in _below(path) if os.lstat(each).st_uid != uid]
    if strange:
        yield failed(
            f"{len(strange)} files in it do not belong to its owner, such "
            f"as {strange[0]}",
            f"chown -R --reference={path} {path}",
        )
    else:
        yield ok("all files in it belong to its owner")


def records(context: CheckContext) -> Iterator[Finding]:
    """Check that the store is intact, and list records that need an operator."""
    context.check_owner()
    found = context.recorded
    for path in found.damaged_files:
        yield warning(
            f"a damaged store was set aside: {path}",
            "look for unknown devices; then remove that file",
        )
    for address in found.damaged_claims:
        yield warning(
            f"the record of the lease of {address} is damaged",
            "if a newer os_acc has run on this host, install it again and restart"
            f" the service; otherwise: os-acc device release {address}",
        )
    for lease in found.leases:
        # The epoch of a lease is the time of its last change, in µs.
        is_idle = time.time() - lease.epoch / 1e6 > _IDLE_SECONDS
        if lease.state is LeaseState.QUARANTINED:
            yield warning(quarantine(lease), f"os-acc device release {lease.address}")
        elif lease.state is LeaseState.ERASING and is_idle:
            yield warning(
                f"{lease.address} is {lease.erased:.0%} erased, and its erasure does "
                "not continue",
                "start the service, or see its log; without one: "
                f"os-acc device erase {lease.address} --wait",
            )
        elif (lease.needs_release or lease.needs_erase) and context.plugins.get(
            lease.plugin
        ) is None:
            part = "was prepared" if lease.needs_release else "has to be erased"
            yield warning(
                f"{lease.address} {part} by the plugin {lease.plugin}, which is "
                f"{context.plugins.why_missing(lease.plugin)}",
                PluginReason.NOT_LOADED.hint,
            )
    yield ok(f"readable leases: {len(found.leases)}")


def _kind(root: str, path: str) -> str | None:
    """Return the type of a path's file system.

    Documentation/filesystems/proc.rst: in "/proc/self/mounts", a later line
    covers an earlier one of the same mount point.
    """
    best, kind = "", None
    for line in read_lines(os.path.join(root, "proc/self/mounts")):
        match line.split(" "):
            case [_source, where, found, *_]:
                place = where.encode().decode("unicode_escape")
                is_within = f"{path}/".startswith(place.rstrip("/") + "/")
                if is_within and len(place) >= len(best):
                    best, kind = place, found
    return kind


def _below(path: str) -> Iterator[str]:
    may_be_mounted = {path, os.path.join(path, options.DIRECTORY)}
    for directory, names, others in os.walk(path):
        lost = os.path.join(directory, "lost+found")
        if directory in may_be_mounted and cache.is_lost_and_found(lost):
            names.remove("lost+found")
        for name in (*names, *others):
            yield os.path.join(directory, name)
