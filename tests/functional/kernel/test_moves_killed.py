# SPDX-License-Identifier: Apache-2.0

"""A guest moves 1,000 times while the services at both ends are killed.

Two nodes of this host have a state directory each. This process holds the device of
the guest as a hypervisor does, and moves its state by ioctl. In each move one service
is killed with its privileged worker, at one of the points at which a recorded move
touches the disk or the host (:mod:`tests.stress.recorder`). The node starts again, and
finishes its step; every other time, the target returns its device instead, and the
guest stays. A guest that has left cannot return: the source always finishes.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import os_acc
from os_acc import service
from os_acc.host import mdev
from os_acc.objects.lease import Owner
from os_acc.privsep import kernel
from tests import run_figures
from tests.behaviour import library
from tests.behaviour.scenarios.common import flavor, instance
from tests.shares import Share
from tests.stress import processes
from tests.stress.recorder import Point, Recorder

from . import samples
from .kernel_modules import MTTY
from .vfio_device import VfioDevice

pytestmark = [pytest.mark.kernel("backports"), pytest.mark.share(1)]

MOVES = 1_000
#: No multiple of three: every third share boots this kernel.
DIVISOR = 61
PORTS = {"mdev_parent": MTTY, "mdev_types": "mtty-1"}
#: The ports of mtty.
UNITS = 24
#: The register that the guest writes before each move (UART_SCR).
SCRATCH = 7
GUEST = instance()
_LOCK, _SLOT = re.compile("/locks/|^run/os_acc/"), re.compile(r"@\d+$")

Step = Callable[[], object]


class End:
    """A node at one end of the moves."""

    def __init__(self, name: str, directory: Path) -> None:
        spec = (json.dumps(PORTS),)
        options = library.Options("/", str(directory / name), device_spec=spec)
        self._config = library.configuration(options)
        self._config.set_override("node_name", name, group="os_acc")
        self._file = directory / f"{name}.points"
        self.start()
        (self._provider,) = self._service.providers()

    def start(self) -> None:
        """Start the service, without its threads, which touch the host as well."""
        self._service = service.build(self._config, "/", Owner.NOVA)

    def plug(self) -> str:
        """Plug a mediated device for the guest, and return its UUID."""
        one = self._provider
        (entry,) = self._service.plug(GUEST, {"uuid": one.uuid}, flavor(one))
        return entry["attach_handle_uuid"]

    def unplug(self) -> None:
        self._service.unplug(GUEST)

    def leased(self) -> list[str]:
        """Return the mediated devices of its store."""
        found = os_acc.recorded(self._config)
        return [each["attach_handle_uuid"] for some in found.values() for each in some]

    def free(self) -> int:
        """Return how many devices it can plug, as scanned at its start."""
        taken = self._service.store.recorded_state().taken
        handles = self._service.catalog.snapshots.newest()[0].provider.device.handles
        return sum(not each.fault and each.address not in taken for each in handles)

    def points(self, step: Step) -> list[str]:
        """Return the points of a step, which a fork of the service does."""

        def note(point: str) -> None:
            with self._file.open("a") as lines:
                lines.write(f"{point}\n")

        self._file.unlink(missing_ok=True)
        ended = _fork(step, note)
        assert not ended.trouble, ended.trouble
        return self._file.read_text().splitlines()


def _fork(step: Step, touched: Callable[[str], None]) -> processes.Ended:
    """Let a fork of a service do a step; report each point by its name.

    The name has the operation and the last part of the path, without the number of the
    slot, which differs from move to move. A lock is no point: it ends with its holder.
    """
    seen: collections.Counter[str] = collections.Counter()

    def touch(point: Point, what: str) -> None:
        operation, _, path = what.partition(" ")
        if operation == "open" and _LOCK.search(path):
            return
        process = "worker" if point.in_worker else "service"
        call = point.call.partition(", ")[2]
        file = _SLOT.sub("", os.path.basename(path))
        name = " ".join(filter(None, (process, call, operation, file)))
        seen[name] += 1
        touched(f"{name}, {seen[name]}")

    def run() -> object:
        Recorder("/", touch, lambda *_call: None).install(kernel.current)
        return step()

    return processes.call(run)


def die(step: Step, at: str) -> None:
    """Let a fork of a service begin a step, and kill it with its worker at a point."""

    def strike(point: str) -> None:
        if point == at:
            os.killpg(0, signal.SIGKILL)

    ended = _fork(step, strike)
    assert ended.killed, f"{at} was not reached: {ended}"


class Trial(NamedTuple):
    """The point at which a service dies.

    :ivar at_target: whether it plugs at the target, or unplugs at the source.
    """

    at_target: bool
    point: str


class Moves:
    """A guest that moves between two ends, and the checks after each step."""

    def __init__(self, directory: Path) -> None:
        self._source, self._target = (End(each, directory) for each in ("a", "b"))
        for end in (self._source, self._target, self._source, self._target):
            # The first plug of a node records the answer of VFIO, the second the trait.
            end.plug()
            end.unplug()
        self._uuid = self._source.plug()
        self._device = VfioDevice(self._uuid)
        self._check(self._uuid)

    def trials(self) -> list[Trial]:
        """Move the guest, and return a trial for each point of the move."""
        found = [Trial(True, each) for each in self._target.points(self._target.plug)]
        (arrived,) = self._target.leased()
        self._hand_over(arrived)
        unplug = self._source.points(self._source.unplug)
        self._swap(arrived)
        return found + [Trial(False, each) for each in unplug]

    def move(self, number: int, trial: Trial, *, finishes: bool) -> None:
        """Move the guest, with one service killed."""
        source, target = self._source, self._target
        self._device.write(SCRATCH, value := number % 255 + 1)
        if trial.at_target:
            die(target.plug, trial.point)
            self._recover(target)
            if not finishes:
                target.unplug()
                assert self._device.read(SCRATCH) == value
                self._check(self._uuid)
                return
        arrived = target.plug()
        self._check(self._uuid, arrived)
        self._hand_over(arrived)
        assert self._device.read(SCRATCH) == value
        if not trial.at_target:
            die(source.unplug, trial.point)
            self._recover(source)
        source.unplug()
        self._check(arrived)
        self._swap(arrived)

    def end(self) -> None:
        self._device.close()
        self._source.unplug()
        self._check()

    def _recover(self, end: End) -> None:
        end.start()
        leased = self._leased()
        self._check(*leased)
        assert end.free() + len(leased) == UNITS

    def _hand_over(self, name: str) -> None:
        """Move the state of the guest to another device, and hold only that one."""
        arrived = VfioDevice(name)
        predicted, state = self._device.predicted_size(), self._device.save()
        assert len(state) == predicted
        arrived.load(state)
        self._device.close()
        self._device = arrived

    def _swap(self, arrived: str) -> None:
        self._uuid = arrived
        self._source, self._target = self._target, self._source

    def _check(self, *expected: str) -> None:
        """Check that these devices exist, and no others, each with one lease."""
        leased = sorted(self._leased())
        assert leased == sorted(expected)
        assert leased == sorted(each.uuid for each in mdev.read_mdevs("/"))

    def _leased(self) -> list[str]:
        return self._source.leased() + self._target.leased()


def run(directory: Path, numbers: range) -> int:
    """Move the guest with these numbers; return the number of points."""
    for context in library.CONTEXTS:
        # Privileged code runs in the services, which are root's, and in their workers.
        context.set_client_mode(False)
    moves = Moves(directory)
    trials = moves.trials()
    for number in numbers:
        round_, index = divmod(number, len(trials))
        moves.move(number, trials[index], finishes=round_ % 2 == 0)
    moves.end()
    return len(trials)


def test_no_kill_loses_the_guest_or_a_device(
    share: Share, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    numbers = share.select(range(MOVES), DIVISOR)
    # A full run takes half an hour: pytest need not show where it is.
    faulthandler.cancel_dump_traceback_later()
    with samples.loaded():
        ended = processes.call(lambda: run(tmp_path, numbers))
    assert not ended.trouble, ended.trouble
    run_figures.note(request.node, "moves with a kill", len(numbers))
    run_figures.note(request.node, "points at which a move is killed", ended.value)
