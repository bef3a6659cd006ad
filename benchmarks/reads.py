# SPDX-License-Identifier: Apache-2.0

"""The floor of all reading subjects: the same reads, and nothing else.

The reads are not listed by hand. The subject runs once in a child that records
each file, link, directory and state that it reads. The floor reads each of these
once, by the same system calls, relative to the same open directories, without
any unnecessary Python.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable, Iterable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC
_PAGE = 4096


class Kind(enum.Enum):
    """The kind of a read."""

    FILE = "file"
    LINK = "link"
    LISTING = "listing"
    STATE = "state"


@dataclasses.dataclass(frozen=True, slots=True)
class Looks:
    """Names of one kind in one directory, either all present or all absent."""

    kind: Kind
    there: bool
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Directory:
    """The reads relative to one open directory.

    :ivar parent: index of the directory relative to which it was opened
    itself; None: by its whole path.
    :ivar is_parent: others are opened relative to it.
    """

    name: str
    parent: int | None
    is_parent: bool
    looks: tuple[Looks, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reads:
    """All recorded reads.

    :ivar alone: the reads by whole path.
    """

    alone: tuple[Looks, ...]
    directories: tuple[Directory, ...]

    def number(self, kind: Kind) -> int:
        """Return the number of present names of a kind."""
        every = [
            *self.alone,
            *(look for each in self.directories for look in each.looks),
        ]
        return sum(
            len(look.names) for look in every if look.kind is kind and look.there
        )

    def again(self) -> int:
        """Repeat all reads; return the number of present names."""
        found = sum(
            _LOOPS[each.kind, each.there](each.names, None) for each in self.alone
        )
        opened: dict[int, int] = {}
        for index, each in enumerate(self.directories):
            above = None if each.parent is None else opened[each.parent]
            fd = os.open(each.name, _DIRECTORY, dir_fd=above)
            for look in each.looks:
                found += _LOOPS[look.kind, look.there](look.names, fd)
            if each.is_parent:
                opened[index] = fd
            else:
                os.close(fd)
        for fd in opened.values():
            os.close(fd)
        return found

    def expected(self) -> int:
        """Return the expected result of :meth:`again`."""
        return sum(self.number(kind) for kind in Kind)


def _files(names: Iterable[str], directory: int | None) -> int:
    # Local names are faster than attributes: they keep the floor minimal.
    open_, read, close, count = os.open, os.read, os.close, 0
    for name in names:
        fd = open_(name, _FILE, dir_fd=directory)
        read(fd, _PAGE)
        close(fd)
        count += 1
    return count


def _links(names: Iterable[str], directory: int | None) -> int:
    readlink, count = os.readlink, 0
    for name in names:
        readlink(name, dir_fd=directory)
        count += 1
    return count


def _listings(names: Iterable[str], directory: int | None) -> int:
    listdir, count = os.listdir, 0
    for name in names:
        # An empty name stands for the open directory itself.
        listdir(name or directory)
        count += 1
    return count


def _states(names: Iterable[str], directory: int | None) -> int:
    stat, count = os.stat, 0
    for name in names:
        stat(name, dir_fd=directory)
        count += 1
    return count


def _absent(
    look: Callable[[str, int | None], object],
) -> Callable[[Iterable[str], int | None], int]:
    def loop(names: Iterable[str], directory: int | None) -> int:
        found = 0
        for name in names:
            try:
                look(name, directory)
            except OSError:
                continue
            found += 1
        return found

    return loop


_LOOPS: dict[tuple[Kind, bool], Callable[[Iterable[str], int | None], int]] = {
    (Kind.FILE, True): _files,
    (Kind.LINK, True): _links,
    (Kind.LISTING, True): _listings,
    (Kind.STATE, True): _states,
    (Kind.FILE, False): _absent(lambda name, fd: os.open(name, _FILE, dir_fd=fd)),
    (Kind.LINK, False): _absent(lambda name, fd: os.readlink(name, dir_fd=fd)),
    (Kind.LISTING, False): _absent(lambda name, fd: os.listdir(name)),
    (Kind.STATE, False): _absent(lambda name, fd: os.stat(name, dir_fd=fd)),
}
