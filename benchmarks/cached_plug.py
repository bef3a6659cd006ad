# SPDX-License-Identifier: Apache-2.0

"""Measure a plug with a cached bitstream, against one hash of that file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import tempfile
import uuid
from collections.abc import Iterator

from benchmarks import card_helper, measure
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.rows import Aim, Row
from os_acc.attach.manager import Manager
from os_acc.bitstreams.options import DIRECTORY
from os_acc.objects.api import AcceleratorEntry, InstanceDict
from os_acc.testing import HostSpec, TestHost, hosts, image_directory
from os_acc.testing.helper import privileged_by
from os_acc.testing.writes import WriteOutcome
from tests.stress.simulated_host import request, simulated_host

NAME = "cached-plug"
CASE = "plug with a cached image"
_FLOOR = "sha512 of the file"
_CARD = "0000:3b:00.0"
# They alternate: a region with the requested function is not programmed.
_FUNCTIONS = (
    "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01",
    "7c9e6679-7425-40de-944b-e07fc1f90ae7",
)
_MIB = 2**20
#: Mebibytes. The aim is for the largest size: the hash of a small image takes less
#: time than the rest of a plug.
_LARGEST = 256
_SIZES = (16, 64, _LARGEST)


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing images, each programmed over another one."""
    for size in plan.sizes(*_SIZES):
        with _host(plan) as bench:
            _fill(bench, size)
            yield _row(plan, _Guests(bench), size)


@contextlib.contextmanager
def _host(plan: Plan) -> Iterator[TestHost]:
    """Build a host with a card, helpers as processes, and store and cache on a disk."""
    os.makedirs(plan.output, exist_ok=True)
    with (
        scratch() as directory,
        tempfile.TemporaryDirectory(dir=os.path.abspath(plan.output)) as disk,
    ):
        place = os.path.join(directory, "bench")
        os.mkdir(place)
        for name in ("state", "images"):
            os.mkdir(os.path.join(disk, name))
            os.symlink(os.path.join(disk, name), os.path.join(place, name))
        bench = simulated_host(place, HostSpec((hosts.dfl(_CARD[:7], 0),)))
        config_file = os.path.join(directory, "os-acc.conf")
        with open(config_file, "w", encoding="utf-8") as file:
            file.write(f"[os_acc]\nstate_path = {disk}/state\n")
        command = card_helper.command(bench.root, config_file)
        with privileged_by(command):
            yield bench


def _fill(bench: TestHost, size: int) -> None:
    """Put an image for each function into the image directory."""
    for number, function in enumerate(_FUNCTIONS):
        made = random.Random(number)
        rest = b"".join(made.randbytes(_MIB) for _ in range(size))
        payload = uuid.UUID(function).bytes + rest[16:]
        content = image_directory.gbs(hosts.DFL_INTERFACE, function, payload)
        properties = {"id": function, "accel:function_id": function}
        bench.images.put(function, content, **properties)


class _Guests:
    """Plug the card for one guest after the other."""

    def __init__(self, bench: TestHost) -> None:
        self._kernel = bench.kernel
        self._manager: Manager = bench.start()
        self._request = request(self._manager, [_CARD])
        self._cache = os.path.join(bench.state_path, DIRECTORY)
        self._functions = itertools.cycle(_FUNCTIONS)
        self._function = ""
        self._guest: InstanceDict = {"uuid": ""}
        for _ in _FUNCTIONS:
            # Fetch the images now; no timed plug fetches one.
            self.next()
            self.check(self.plug())
            self.unplug()
        self._before = self._programmed()

    def next(self) -> None:
        """Prepare a guest that requests the function that the card does not hold."""
        self._function = next(self._functions)
        self._guest = {"uuid": str(uuid.uuid4())}
        self._before = self._programmed()

    def plug(self) -> list[AcceleratorEntry]:
        selected, specs = self._request
        requested = {"accel1:function_id": self._function}
        return self._manager.plug(self._guest, selected, specs | requested)

    def check(self, entries: list[AcceleratorEntry]) -> None:
        """Check that the guest has the card, programmed once with its function."""
        (entry,) = entries
        assert entry["pci_id"] == _CARD, "another card"
        assert self._kernel.held_by_hardware(_CARD) == (self._function,), "another one"
        assert self._programmed() == self._before + 1, "not programmed"

    def unplug(self) -> None:
        assert self._manager.unplug(self._guest) == 1, "nothing was given back"

    def files(self) -> list[str]:
        """Return the files in the cache."""
        return [os.path.join(self._cache, name) for name in os.listdir(self._cache)]

    def _programmed(self) -> int:
        return sum(
            each.text.startswith("DFL_FPGA_FME_PORT_PR ")
            and each.outcome == WriteOutcome.DONE
            for each in self._kernel.writes()
        )


def _row(plan: Plan, guests: _Guests, size: int) -> Row:
    files = guests.files()
    assert len(files) == len(_FUNCTIONS), "not what was fetched"
    # Read both files as often as the subject does: both stay in the page cache.
    paths = itertools.cycle(files)
    subject = measure.Work(
        guests.plug, guests.check, before=guests.next, after=guests.unplug
    )
    floor = measure.Work(lambda: _hashed(next(paths)), _check)
    pairs = measure.paired(subject, floor, plan.times(15))
    return measure.row(
        pairs,
        benchmark=NAME,
        case=CASE,
        size=size,
        things="MiB",
        floor_is=_FLOOR,
        aim=Aim(1.2) if size == _LARGEST else None,
    )


def _hashed(path: str) -> tuple[str, str]:
    with open(path, "rb", buffering=0) as file:
        return path, hashlib.file_digest(file, "sha512").hexdigest()


def _check(hashed: tuple[str, str]) -> None:
    path, digest = hashed
    assert path.endswith(digest), "another file"


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(CASE, size) for size in plan.sizes(*_SIZES)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
