# SPDX-License-Identifier: Apache-2.0

"""Atomic changes of a directory tree.

A process may be killed at any moment while it changes the tree. A real
kernel carries a write out to its end; here a record of the changes is
stored first, and the next user of the tree carries out the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple

_CHUNK = 65536

#: Directory of the state that a real kernel keeps in memory.
PRIVATE = ".kernel"


def refuse(number: int, about: str) -> OSError:
    """Return an error of the kernel."""
    return OSError(number, os.strerror(number), about)


class Change(NamedTuple):
    """One idempotent step: ``kind`` is file, link, directory or drop."""

    kind: str
    path: str
    value: str = ""
    mode: int = 0o444


class Transaction:
    """The tree after the changes; paths are relative and free of symlinks.

    Reads see the changes made so far on top of the files.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        # In order; a path may be dropped first and made again later.
        self._changes: dict[tuple[str, bool], Change] = {}
        self._below: dict[str, set[str]] = {}
        self._dropped: set[str] = set()
        self.notes: list[str] = []

    def put(self, path: str, text: str, mode: int = 0o444) -> None:
        """Write a file."""
        self._record(Change("file", path, text, mode))

    def link(self, path: str, to: str) -> None:
        """Make ``path`` a relative symlink to ``to``, as sysfs does."""
        self.link_text(path, _relative(to, _above(path)))

    def link_text(self, path: str, text: str) -> None:
        """Make ``path`` a symlink with this text, wherever it leads."""
        self._record(Change("link", path, text))

    def mkdir(self, path: str) -> None:
        """Make a directory and those above it."""
        self._record(Change("directory", path))

    def drop(self, path: str) -> None:
        """Remove a file, a link, or a directory with all it contains."""
        self._forget(path)
        self._below.get(_above(path), set()).discard(path)
        self._dropped.add(path)
        self._changes.pop((path, True), None)
        self._changes[path, True] = Change("drop", path)

    def read(self, path: str) -> str:
        """Return the text of a file.

        :raises OSError: no such file.
        """
        change = self._made(path)
        if change is not None and change.kind == "file":
            return change.value
        if change is not None or self._is_dropped(path):
            raise refuse(errno.ENOENT, path)
        fd = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_all(fd).decode()
        finally:
            os.close(fd)

    def follow(self, path: str) -> str | None:
        """Return the target of a link; None if there is no link."""
        change = self._made(path)
        if change is not None or self._is_dropped(path):
            if change is None or change.kind != "link":
                return None
            target = change.value
        else:
            try:
                target = os.readlink(f"{self._root}/{path}")
            except OSError:
                return None
        return os.path.normpath(os.path.join(_above(path), target))

    def exists(self, path: str) -> bool:
        """Return whether there is a file, link or directory."""
        if self._made(path) is not None:
            return True
        on_disk = not self._is_dropped(path)
        return on_disk and os.path.lexists(f"{self._root}/{path}")

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; none if it does not exist."""
        names = {child.rpartition("/")[2] for child in self._below.get(path, ())}
        if not self._is_dropped(path):
            with contextlib.suppress(FileNotFoundError):
                names |= {
                    name
                    for name in os.listdir(f"{self._root}/{path}")
                    if f"{path}/{name}" not in self._dropped
                }
        return sorted(names)

    def _made(self, path: str) -> Change | None:
        return self._changes.get((path, False))

    def _record(self, change: Change) -> None:
        # The later of two changes to one path must also come later.
        self._changes.pop((change.path, False), None)
        self._list(change.path)
        self._changes[change.path, False] = change

    def _list(self, path: str) -> None:
        """List a path in the directory above, and that one in turn up to the root."""
        parent = _above(path)
        known = self._below.setdefault(parent, set())
        if path in known:
            return
        known.add(path)
        if parent:
            if not self.exists(parent):
                self._changes[parent, False] = Change("directory", parent)
            self._list(parent)

    def _forget(self, path: str) -> None:
        self._changes.pop((path, False), None)
        for child in self._below.pop(path, ()):
            self._forget(child)

    def _is_dropped(self, path: str) -> bool:
        while self._dropped and path:
            if path in self._dropped:
                return True
            path = _above(path)
        return False

    def abandon(self) -> None:
        """Drop all changes."""
        self._changes.clear()
        self._below.clear()
        self._dropped.clear()

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes in order."""
        return tuple(self._changes.values())


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _relative(to: str, start: str) -> str:
    """Return a path relative to a directory, both below the root."""
    there, here = to.split("/"), start.split("/") if start else []
    shared = 0
    for one, other in zip(there, here, strict=False):
        if one != other:
            break
        shared += 1
    return "/".join([".."] * (len(here) - shared) + there[shared:]) or "."


def _read_all(fd: int) -> bytes:
    data = os.read(fd, _CHUNK)
    if len(data) < _CHUNK:
        return data
    found = bytearray(data)
    while data := os.read(fd, _CHUNK):
        found += data
    return bytes(found)


def serial(tree: Transaction) -> int:
    """Return a number that is new in this tree."""
    path = f"{PRIVATE}/serial"
    number = int(tree.read(path)) + 1 if tree.exists(path) else 1
    tree.put(path, str(number))
    return number


class Tree:
    """A directory tree that several processes change."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._private = os.path.join(root, PRIVATE)
        self._twins: dict[tuple[str, int], str] = {}
        os.makedirs(os.path.join(self._private, "locks"), exist_ok=True)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Carry out the changes at the end, unless an error is raised."""
        with self.lock("tree"):
            self._finish()
            transaction = Transaction(self.root)
            yield transaction
            self._commit(transaction.changes, transaction.notes)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock that excludes all threads and processes; a kill releases it."""
        path = os.path.join(self._private, "locks", name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # A child forked meanwhile shares the lock: closing is not enough.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def notes(self) -> list[str]:
        """Return the notes of all transactions so far."""
        try:
            with open(self._own("notes"), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def _own(self, name: str) -> str:
        return os.path.join(self._private, name)

    def _commit(self, changes: tuple[Change, ...], notes: list[str]) -> None:
        if not changes:
            self._append(notes)
            return
        with open(self._own("redo.new"), "w", encoding="utf-8") as file:
            file.write(json.dumps([notes, changes]))
        os.replace(self._own("redo.new"), self._own("redo"))
        self._finish_with(changes, notes)

    def _finish(self) -> None:
        try:
            with open(self._own("redo"), encoding="utf-8") as file:
                notes, changes = json.load(file)
        except FileNotFoundError:
            return
        if notes and self.notes()[-len(notes) :] == notes:
            notes = []
        self._finish_with(tuple(Change(*change) for change in changes), notes)

    def _finish_with(self, changes: tuple[Change, ...], notes: list[str]) -> None:
        self._append(notes)
        # Files are replaced, never written to, so equal ones can be linked.
        self._twins.clear()
        for change in changes:
            self._apply(change)
        os.unlink(self._own("redo"))

    def _append(self, notes: list[str]) -> None:
        if notes:
            with open(self._own("notes"), "a", encoding="utf-8") as file:
                file.write("".join(f"{note}\n" for note in notes))

    def _apply(self, change: Change) -> None:
        path = f"{self.root}/{change.path}"
        if change.kind == "drop":
            _remove(path)
            return
        try:
            self._create(path, change)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._create(path, change)
        except FileExistsError:
            if change.kind == "directory":
                return
            # A reader without the lock must find either the old or the new text.
            fresh = self._own("fresh")
            _remove(fresh)
            self._create(fresh, change)
            os.replace(fresh, path)

    def _create(self, path: str, change: Change) -> None:
        if change.kind == "directory":
            os.mkdir(path)
            return
        if change.kind == "link":
            os.symlink(change.value, path)
            return
        twin = self._twins.get((change.value, change.mode))
        if twin is not None and _is_linked(twin, path):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path, flags, change.mode)
        try:
            os.write(fd, change.value.encode())
        finally:
            os.close(fd)
        self._twins[change.value, change.mode] = path


def _is_linked(twin: str, path: str) -> bool:
    try:
        os.link(twin, path)
    except FileExistsError:
        raise
    except OSError:
        # Too many links, none on this file system, or the twin is gone.
        return False
    return True


#: The FIFOs of the privileged helper have no contents, and no reader in a copy.
_FIFOS = shutil.ignore_patterns("claims")


def copy(source: str, target: str) -> None:
    """Copy a tree that no process uses; files that are only replaced are linked."""
    _link(source, target)
    for name in ("run", f"{PRIVATE}/notes"):
        copy_in_place(os.path.join(source, name), os.path.join(target, name))


def copy_in_place(source: str, target: str) -> None:
    """Replace a file or directory by a copy of another, if there is one."""
    if os.path.isdir(source):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=_FIFOS)
    elif os.path.exists(source):
        _remove(target)
        shutil.copyfile(source, target)


def _link(source: str, target: str) -> None:
    os.mkdir(target)
    with os.scandir(source) as found:
        for entry in found:
            path = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_file():
                # A card's node is locked by a process that opens it exclusively.
                copy = shutil.copyfile if entry.name.startswith("dfl-") else os.link
                copy(entry.path, path)
            elif entry.name not in ("locks", "claims"):
                _link(entry.path, path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        if not os.path.isdir(path):
            raise
        shutil.rmtree(path)
