# SPDX-License-Identifier: Apache-2.0

"""Measure the fetch of an image from the real Glance, against its least cost."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import requests

from benchmarks import measure
from benchmarks.plan import Benchmark, Plan
from benchmarks.rows import Aim, Count, Row
from os_acc.bitstreams import library
from os_acc.objects.bitstream import Image
from os_acc.testing import image_directory
from tests.functional.openstack.cloud import Cloud

NAME = "fetch"
CASE = "fetch, verify and store"
_FLOOR = "bare GET, sha512, write and fsync"
# Mebibytes; a short run only shows that the benchmark works.
_FULL, _SHORT = 256, 16
_MIB = 2**20
_REGION = "ce489693-98f0-5f33-946d-560708be108a"
_FUNCTION = "9aeffe5f-8457-0612-c000-c9660d824272"


def rows(plan: Plan) -> Iterator[Row]:
    """Yield the row of one image, with its own Keystone and Glance, on a disk."""
    with tempfile.TemporaryDirectory(prefix="os-acc-bench-") as directory:
        cloud = Cloud(Path(directory))
        try:
            cloud.start()
            yield _measured(plan, cloud)
        finally:
            cloud.stop()


def _measured(plan: Plan, cloud: Cloud) -> Row:
    size = _size(plan)
    uploaded = cloud.upload(_bitstream(size))
    state = cloud.home / "state"
    images = library.build(cloud.conf(), str(state))
    image = images.about(uploaded, _deadline())
    cache = state / "bitstreams"

    def fetch() -> None:
        with images.fetched(image, _deadline()):
            pass

    def check(_: None) -> None:
        (path,) = cache.iterdir()
        assert path.name.endswith(image.hash_value), "another file"
        assert path.stat().st_size == image.size, "not all of it"

    def forget() -> None:
        for path in cache.iterdir():
            path.unlink()

    file = cloud.home / "floor"
    subject = measure.Work(fetch, check, after=forget)
    floor = measure.Work(
        functools.partial(_bare, _session(cloud), _url(cloud, image), file),
        functools.partial(_check, image),
        after=file.unlink,
    )
    # The first fetch: none of its memory is allocated yet.
    grown = _growth(fetch)
    forget()
    pairs = measure.paired(subject, floor, plan.times(15))
    return measure.row(
        pairs,
        benchmark=NAME,
        case=CASE,
        size=size,
        things="MiB",
        floor_is=_FLOOR,
        aim=Aim(1.1),
        counts=(Count("MiB of memory more", round(grown / _MIB, 1), Aim(16.0)),),
    )


def _bitstream(size: int) -> bytes:
    made = random.Random(size)
    payload = b"".join(made.randbytes(_MIB) for _ in range(size))
    return image_directory.gbs(_REGION, _FUNCTION, payload)


def _bare(session: requests.Session, url: str, file: Path) -> str:
    hashing = hashlib.sha512()
    with (
        session.get(url, stream=True) as response,
        file.open("wb", buffering=0) as target,
    ):
        for piece in response.iter_content(_MIB):
            hashing.update(piece)
            target.write(piece)
        os.fsync(target.fileno())
    return hashing.hexdigest()


def _check(image: Image, digest: str) -> None:
    assert digest == image.hash_value, "another file"


def _session(cloud: Cloud) -> requests.Session:
    session = requests.Session()
    token = cloud.login("os_acc", "service").get_token()
    assert token
    session.headers["X-Auth-Token"] = token
    return session


def _url(cloud: Cloud, image: Image) -> str:
    return f"{cloud.glance.url}/v2/images/{image.id}/file"


def _growth(work: Callable[[], None]) -> int:
    """Return the growth of this process's peak memory in bytes; see proc(5)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    work()
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _deadline() -> float:
    return time.monotonic() + 600.0


def _size(plan: Plan) -> int:
    return _SHORT if plan.short else _FULL


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(CASE, _size(plan))}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
