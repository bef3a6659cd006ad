# SPDX-License-Identifier: Apache-2.0

"""Measure a cache of many images: startup, first listing and next download."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import leased, measure
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.rows import Row
from os_acc.attach.manager import Manager
from os_acc.bitstreams.cache import Cache, CacheContents
from os_acc.bitstreams.directory import Directory
from os_acc.bitstreams.options import DIRECTORY
from os_acc.objects.bitstream import Digest
from os_acc.testing import HostSpec, hosts
from tests.stress.simulated_host import simulated_host

NAME = "cache"
START = "initialize()"
LOOK = "list all images"
NEXT = "fetch one more, for which one has to go"
_EMPTY = "the same with an empty cache"
_STATS = "scandir, stat of each"
_BARE = "scandir, stat of each, unlink, write, fsync, rename"
_IMAGES = (100, 1000, 4000)
# Only the fetched image is read.
_BYTES = 4096


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing numbers of images, in memory."""
    for images in plan.sizes(*_IMAGES):
        with scratch() as directory:
            yield _started(plan, Path(directory), images)
        with scratch() as directory:
            shelf = _Shelf(Path(directory), images)
            yield _row(plan, LOOK, images, *shelf.look(), _STATS)
            yield _row(plan, NEXT, images, *shelf.fetch(), _BARE)


def _row(
    plan: Plan,
    case: str,
    images: int,
    subject: measure.Work[Any],
    floor: measure.Work[Any],
    floor_is: str,
) -> Row:
    return measure.row(
        measure.paired(subject, floor, plan.times(21)),
        benchmark=NAME,
        case=case,
        size=images,
        things="images",
        floor_is=floor_is,
    )


def _started(plan: Plan, place: Path, images: int) -> Row:
    """Measure the startup of a service on a host with one FPGA."""
    bench = simulated_host(str(place / "bench"), HostSpec((hosts.dfl("0000:3b", 0),)))
    cache, aside = Path(bench.state_path, DIRECTORY), place / "full"
    aside.mkdir()
    _fill(aside, images)

    def check(_: Manager) -> None:
        assert len(os.listdir(cache)) == images, "images are missing"

    def check_empty(_: Manager) -> None:
        assert not cache.exists(), "images are there"

    full = measure.Work(
        bench.start,
        check,
        before=lambda: os.rename(aside, cache),
        after=lambda: os.rename(cache, aside),
    )
    empty = measure.Work(bench.start, check_empty)
    with leased.privileged_here(bench):
        return _row(plan, START, images, full, empty, _EMPTY)


class _Shelf:
    """A full cache, and a directory with one image that is not cached."""

    def __init__(self, place: Path, images: int) -> None:
        self._place = place / "bitstreams"
        self._place.mkdir()
        self._names = _fill(self._place, images)
        self._oldest = self._place / self._names[0]
        self._cache = Cache(str(place), images * _BYTES)
        self._file = place / "images" / "next"
        self._file.parent.mkdir()
        self._content = _content(images)
        self._next = self._place / _digest(self._content).file_name
        metadata = {
            "id": str(uuid.UUID(int=images)),
            "os_hash_algo": "sha512",
            "os_hash_value": _digest(self._content).value,
        }
        self._file.write_bytes(self._content)
        self._file.with_suffix(".json").write_text(json.dumps(metadata))
        self._source = Directory(str(self._file.parent))
        self._image = self._source.image(metadata["id"], _deadline())

    def look(self) -> tuple[measure.Work[Any], measure.Work[Any]]:
        """Return the works that list all images: with the cache, and by bare calls."""

        def check(found: CacheContents) -> None:
            names = [each.digest.file_name for each in found.entries]
            assert names == self._names, "others, or in another order"

        def check_stats(found: list[tuple[float, str]]) -> None:
            assert len(found) == len(self._names), "not all of them"

        return (
            measure.Work(self._cache.survey, check),
            measure.Work(self._stats, check_stats),
        )

    def fetch(self) -> tuple[measure.Work[Any], measure.Work[Any]]:
        """Return the works that replace the least recently used image by a new one."""

        def check(_: None) -> None:
            assert self._next.read_bytes() == self._content, "not fetched"
            assert not self._oldest.exists(), "not evicted"

        def undo() -> None:
            self._next.unlink()
            _put(self._place, 0)

        return (
            measure.Work(self._fetch, check, after=undo),
            measure.Work(self._bare, check, after=undo),
        )

    def _fetch(self) -> None:
        with self._cache.fetched(self._source, self._image, _deadline()):
            pass

    def _bare(self) -> None:
        _, oldest = min(self._stats())
        os.unlink(oldest)
        temporary = self._place / ".next"
        with self._file.open("rb") as file, temporary.open("wb", 0) as target:
            target.write(file.read())
            os.fsync(target.fileno())
        temporary.rename(self._next)

    def _stats(self) -> list[tuple[float, str]]:
        with os.scandir(self._place) as found:
            return [(each.stat().st_mtime, each.path) for each in found]


def _fill(place: Path, images: int) -> list[str]:
    """Write images; return their names, the least recently used first."""
    return [_put(place, number) for number in range(images)]


def _put(place: Path, number: int) -> str:
    content = _content(number)
    path = place / _digest(content).file_name
    path.write_bytes(content)
    os.utime(path, (number, number))
    return path.name


def _content(number: int) -> bytes:
    return b"%0*d" % (_BYTES, number)


def _digest(content: bytes) -> Digest:
    return Digest("sha512", hashlib.sha512(content).hexdigest())


def _deadline() -> float:
    return time.monotonic() + 60.0


def _cases(plan: Plan) -> set[tuple[str, int]]:
    sizes = plan.sizes(*_IMAGES)
    return {(case, size) for case in (START, LOOK, NEXT) for size in sizes}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
