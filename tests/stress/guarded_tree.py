# SPDX-License-Identifier: Apache-2.0

"""The code for the real kernel, in a tree that records every write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, pci_functions, record
from os_acc.privsep.kernel import COPIES
from tests.stress import hostile_tree
from tests.stress.file_changes import Deed, FileChanges, picture
from tests.stress.privileged_calls import answer_to, check_answer, let_stuck_ones_end
from tests.stress.privileged_host import Arguments, Card, EntryPoint

_LOCKS = "run/os_acc"
#: The directories below with the marks, notes and keepers of NVMe functions.
_OF_NVME = ("erasing", "nvme", "claims")


def _copies(card: Card, arguments: Arguments) -> list[str]:
    """Return the names of the files that name a card as one that has to be erased.

    The caller may know its serial number.
    """
    own = {card.name, pci_functions.serial(PciAddress(*card.place))}
    keys = (own | set(_serials(arguments, card))) - {""}
    return [record.copy_name(card.identity, key) for key in keys]


def _serials(arguments: Arguments, card: Card) -> Iterator[str]:
    for row in arguments:
        if not isinstance(row, tuple | list):
            continue
        yield from _serials(tuple(row), card)
        match row:
            case [[*place], _, _, _, str(serial)] if tuple(place) == card.place:
                yield serial


class GuardedTree:
    """A hostile tree, and the changes to it.

    :ivar permitted: names of the attributes that any call so far might write.
    :ivar written: names of the attributes that any call so far has written.
    """

    def __init__(self, place: str, elsewhere: str, changes: FileChanges) -> None:
        self.host = hostile_tree.build(place, elsewhere)
        self.kernel = kernel.Kernel()
        self.kernel.root = self.host.root
        self.permitted: set[str] = set()
        self.written: set[str] = set()
        self._places = (place, elsewhere)
        self._changes = changes
        self._before = self._picture()
        self._restored: set[str] = set()

    def call(self, entry_point: EntryPoint, arguments: Arguments) -> None:
        """Make one call, and check its changes."""
        entry_point.make_ready(self.host, arguments)
        with self._changes.watching():
            answer = answer_to(entry_point, arguments)
            let_stuck_ones_end()
        fits = entry_point.fits(arguments)
        cards = entry_point.locked(self.host, arguments) if fits else []
        deeds = self._changes.seen()
        self._check(entry_point, arguments, cards, deeds)
        assert self._changes.has_forked <= bool(cards)
        if deeds or entry_point.before:
            self._tidy(cards, arguments, deeds)
        check_answer(entry_point, arguments, answer)

    def check_all(self) -> None:
        """Check that all is as before, apart from the recorded changes."""
        assert self._undated(self._picture()) == self._undated(self._before)

    def _check(
        self,
        entry_point: EntryPoint,
        arguments: Arguments,
        cards: list[Card],
        deeds: list[Deed],
    ) -> None:
        writes = entry_point.permitted(self.host, arguments) if cards else frozenset()
        permitted = {(self._real(path), text) for path, text in writes}
        attributes = {path for path, _text in permitted}
        self.permitted |= {os.path.basename(path) for path in attributes}
        private = self._private(cards, arguments)
        for deed in deeds:
            if deed.path in private:
                continue
            if deed.what == "open":
                # Only an open file shows whether it belongs to sysfs.
                flags = int(deed.detail)
                assert deed.path in attributes, deed
                assert flags & os.O_NOFOLLOW, deed
                assert not flags & (os.O_CREAT | os.O_TRUNC | os.O_APPEND), deed
                continue
            assert deed.what == "write", deed
            assert (deed.path, deed.detail) in permitted, deed
            assert deed.path.startswith(f"{self.host.root}/sys/"), deed
            self.written.add(os.path.basename(deed.path))

    def _private(self, cards: list[Card], arguments: Arguments) -> set[str]:
        """Return the helper's own files that a call for these cards may make."""
        locks = [self._real(f"{_LOCKS}/{card.name}") for card in cards]
        shared = [self._real(f"{_LOCKS}/parent@{card.name}") for card in cards]
        notes = [
            f"{lock}{suffix}"
            for lock in locks
            for suffix in (
                *(".autoprobe", ".qat", ".lease", ".lease.new"),
                *(".vgpu", ".vgpu.new"),
            )
        ]
        of_nvme = [
            f"{self._real(_LOCKS)}/{name}/{card.name}{suffix}"
            for card in cards
            if card.is_nvme
            for name in _OF_NVME
            for suffix in ("", ".new")
        ]
        directories = self._directories(cards)
        copies = [
            f"{self._real(COPIES)}/{name}{suffix}"
            for card in cards
            for name in _copies(card, arguments)
            for suffix in ("", ".new")
        ]
        found = {*directories, *locks, *shared, *notes, *of_nvme, *copies}
        return found if cards else set()

    def _directories(self, cards: list[Card]) -> list[str]:
        """Return the helper's own directories, those within others first."""
        has_nvme = any(card.is_nvme for card in cards)
        inner = [f"{_LOCKS}/{name}" for name in _OF_NVME if has_nvme]
        root = os.path.realpath(self.host.root)
        # A host has the directories above.
        copies = (COPIES, "var/lib", "var")
        return [os.path.join(root, name) for name in (*inner, _LOCKS, *copies)]

    def _real(self, path: str) -> str:
        directory, name = os.path.split(os.path.join(self.host.root, path))
        return os.path.join(os.path.realpath(directory), name)

    def _tidy(self, cards: list[Card], arguments: Arguments, deeds: list[Deed]) -> None:
        for path in {deed.path for deed in deeds if deed.what == "write"}:
            if path in self._before:
                self._restore(path)
        directories = self._directories(cards)
        for path in sorted(self._private(cards, arguments) - {*directories}):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for path in directories:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(path)

    def _restore(self, path: str) -> None:
        content = self._before[path][-1]
        assert isinstance(content, bytes)
        with open(path, "r+b") as file:
            file.write(content)
            file.truncate()
        self._restored.add(path)

    def _picture(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for place in self._places:
            found |= picture(place)
        return found

    def _undated(
        self, looks: dict[str, tuple[object, ...]]
    ) -> dict[str, tuple[object, ...]]:
        """Remove the times of restored files, and of ``/run``."""
        return {
            path: (*look[:3], *look[4:]) if path in self._restored else look
            for path, look in looks.items()
        }
