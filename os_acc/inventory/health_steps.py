# SPDX-License-Identifier: Apache-2.0

"""Readings of health that only root can make: the health steps of the plugins.

They are made about once a minute, in a thread for which no operation waits: never in a
scan of the host, and never in a plug or unplug. A function that a lease has taken is
not read, which the helper enforces. A PF is read while guests have its VFs: it is on
its host driver.

A step has the lock of its function and a deadline. A plug that needs the function in
these milliseconds waits for the lock. A step that does not return keeps the lock, so
that the function could not be attached: that is a fault, which counts at once.
"""

from __future__ import annotations

import errno
import logging
import re
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any, Final, TypeAlias

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.helper import errors
from os_acc.helper.client import Helper
from os_acc.host import attributes, pci
from os_acc.inventory.monitor import FaultTracker
from os_acc.inventory.snapshots import Snapshots
from os_acc.objects.device import pci_functions_of
from os_acc.objects.pci import PciAddress
from os_acc.objects.typed import expect_text
from os_acc.plugins.loader import Plugins
from os_acc.privsep import Context, HealthReading, Step, vendor_steps
from os_acc.privsep.outcome import Outcome
from os_acc.store import state_files
from os_acc.store.state_files import HealthRecord

LOG = log.getLogger(__name__)

#: Seconds between two rounds, at least. The monitor offers a round each minute.
PERIOD: Final = 55.0
#: Seconds for one step.
ANSWER_SECONDS: Final = 5.0
#: Seconds for one round; the next one continues where it ends.
ROUND_SECONDS: Final = 40.0
STUCK: Final = "does not answer when its health is read, and stays locked"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_MOST_READINGS: Final = 64
_LONGEST_FAULT: Final = 400

#: The name of a plugin, and the function that it reads.
_Place: TypeAlias = tuple[str, PciAddress]


class _HealthUnknown(Exception):
    """The health of a function cannot be read; the message is the reason.

    :ivar is_passing: whether the last reading still counts.
    :ivar is_defect: whether the code of the step is wrong.
    """

    def __init__(
        self, reason: str, *, is_passing: bool = False, is_defect: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_passing = is_passing
        self.is_defect = is_defect


class HealthStepReader:
    """Run the health steps of plugins, and note the faults that they return.

    :param root: the directory with ``sys`` and ``proc``.
    :param state_path: the directory for the record that commands read.
    """

    def __init__(
        self,
        root: str,
        helper: Helper,
        loaded: Plugins,
        snapshots: Snapshots,
        tracker: FaultTracker,
        state_path: str,
    ) -> None:
        self._root = root
        self._helper = helper
        self._steps = loaded.health_steps
        self._snapshots = snapshots
        self._tracker = tracker
        self._state_path = state_path
        self._due = 0.0
        self._last: _Place | None = None
        self._known: dict[_Place, HealthReading] = {}
        self._stuck: set[_Place] = set()
        self._logged: dict[_Place, str] = {}
        self._refused: dict[Context, str] = {}
        #: The defect of a health step that the last reading of a function has found.
        self.defects: dict[_Place, str] = {}
        self.forget_parent()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """In a forked child, forget the round of the parent."""
        self._guard = threading.Lock()
        self._round: futures.Future[None] | None = None

    def begin(self) -> futures.Future[None] | None:
        """Begin a round, and do not wait for it; None: none is due."""
        with self._guard:
            is_running = self._round is not None and not self._round.done()
            if not self._steps or is_running or time.monotonic() < self._due:
                return None
            self._due = time.monotonic() + PERIOD
            try:
                self._round = deadlines.begin(self._read_and_publish)
            except exception.DeviceStuck as error:
                LOG.warning("cannot read the health of devices as root: %s", error)
                return None
            return self._round

    def _read_and_publish(self) -> None:
        try:
            if self.read():
                self._snapshots.refresh()
        except Exception:
            # The future is never read.
            LOG.exception("cannot read the health of devices as root")

    def read(self) -> bool:
        """Make one round; return whether the faults have changed.

        Only one thread at a time may call this.
        """
        found, certain = self.examine()
        changed = self._tracker.steps.note(found, certain)
        self._record()
        return changed

    def examine(self) -> tuple[dict[PciAddress, str], set[PciAddress]]:
        """Read, and note nothing; return the fault of each function that has one.

        The second value has those whose fault is sure.
        """
        reads = self._reads()
        for known in (self._known, self._logged, self.defects):
            for gone in known.keys() - reads.keys():
                del known[gone]
        self._stuck &= reads.keys()
        self._read_each(reads)
        found: dict[PciAddress, str] = {}
        certain: set[PciAddress] = set()
        for place, (fault, _readings) in self._known.items():
            source = place[1]
            for function in reads[place] if fault else ():
                found[function] = (
                    fault
                    if function == source
                    else f"depends on {source}, which {fault}"
                )
                if place in self._stuck:
                    certain.add(function)
        return found, certain

    def _reads(self) -> dict[_Place, set[PciAddress]]:
        """Return the functions to read, with those whose health each one reports."""
        providers, taken = self._snapshots.offered()
        found: dict[_Place, set[PciAddress]] = {}
        for provider in providers:
            name = provider.device.plugin
            if name not in self._steps:
                continue
            for function in pci_functions_of([provider]):
                source = attributes.pf_of(self._root, function)
                if source not in taken:
                    found.setdefault((name, source), set()).add(function)
        return found

    def _read_each(self, reads: Mapping[_Place, object]) -> None:
        deadline = time.monotonic() + ROUND_SECONDS
        refused: dict[Context, str] = {}
        last = self._last
        # At first those behind the last one of the round before.
        for place in sorted(
            reads, key=lambda each: (last is not None and each <= last, each)
        ):
            if time.monotonic() >= deadline:
                LOG.warning("the health of further devices is read in the next round")
                break
            self._last = place
            step = self._steps[place[0]]
            if step.context in refused:
                continue
            try:
                # The first start of a helper takes longer than a step.
                self._helper.start(deadline, [step.context])
            except exception.OsAccError as error:
                refused[step.context] = str(error)
                if self._refused.get(step.context) != str(error):
                    LOG.warning("cannot read the health of devices as root: %s", error)
                continue
            self._read_one(place, step)
        self._refused = refused

    def _read_one(self, place: _Place, step: Step[HealthReading]) -> None:
        self.defects.pop(place, None)
        try:
            self._known[place] = self._ask(place, step)
        except _HealthUnknown as error:
            if error.is_defect:
                self.defects[place] = str(error)
            if not error.is_passing:
                self._known.pop(place, None)
            if self._logged.get(place) != str(error):
                self._logged[place] = str(error)
                level = logging.WARNING if error.is_defect else logging.INFO
                LOG.log(level, "the health of %s is unknown: %s", place[1], error)
        else:
            self._logged.pop(place, None)

    def _ask(self, place: _Place, step: Step[HealthReading]) -> HealthReading:
        """Run the step on a function.

        :raises _HealthUnknown: it does not return the health of the function.
        """
        try:
            function = pci.read_function(self._root, place[1])
            if function is None:
                raise _HealthUnknown("it has vanished")
            deadline = time.monotonic() + ANSWER_SECONDS
            result = self._helper.read_health(step, function, deadline)
        except exception.OsAccError as error:
            raise _HealthUnknown(str(error), is_passing=True) from error
        if result.outcome == Outcome.STUCK:
            self._stuck.add(place)
        elif result.outcome != Outcome.BUSY:
            self._stuck.discard(place)
        if place in self._stuck:
            return STUCK, ()
        match result.outcome:
            case Outcome.OK:
                return _checked(step, vendor_steps.decode(result.observed))
            case Outcome.BUSY:
                raise _HealthUnknown("another step has its lock", is_passing=True)
            case Outcome.FAILED | Outcome.NO_EFFECT:
                raise _defect(step, result.observed)
            case Outcome.CLAIMED:
                raise _HealthUnknown("a lease has taken it")
            case Outcome.DENIED:
                raise _HealthUnknown(
                    f"root's configuration denies it: {errors.DENIED_HINT}"
                )
        raise _HealthUnknown(
            f"{errors.reason(result)} at {result.step or 'a call'}"
            + (f": {result.observed}" if result.observed else ""),
            is_passing=result.errno == errno.EAGAIN,
        )

    def _record(self) -> None:
        readings = {
            place[1]: dict(found) for place, (_fault, found) in self._known.items()
        }
        record = HealthRecord(self._tracker.steps.faults, readings)
        try:
            state_files.record_health(self._state_path, self._root, record)
        except exception.OsAccError as error:
            LOG.warning("cannot record the health of devices for os-acc: %s", error)


def _checked(step: Step[HealthReading], value: Any) -> HealthReading:
    """Return the result of a vendor's step, or raise _HealthUnknown for a defect."""
    try:
        if type(value) is not tuple or len(value) != 2 or type(value[1]) is not tuple:
            raise ValueError("which is not a pair of a fault and readings")
        expect_text("the fault", value[0])
        if len(value[0]) > _LONGEST_FAULT or not value[0].isprintable():
            raise ValueError("whose fault is no phrase for the operator")
        if len(value[1]) > _MOST_READINGS:
            raise ValueError(f"which has more than {_MOST_READINGS} readings")
        for each in value[1]:
            _check_reading(each)
    except ValueError as error:
        raise _defect(step, f"returned {exception.show(value)}, {error}") from error
    return value


def _defect(step: Step[HealthReading], text: str) -> _HealthUnknown:
    return _HealthUnknown(
        f"the health step {step.name} {text}; report this defect to the vendor of the "
        "plugin",
        is_defect=True,
    )


def _check_reading(pair: Any) -> None:
    if type(pair) is not tuple or len(pair) != 2:
        raise ValueError(f"{exception.show(pair)} is no pair of a name and a number")
    if type(pair[1]) is not int:
        raise ValueError(f"{exception.show(pair[1])} is no number")
    if type(pair[0]) is not str or not _NAME.fullmatch(pair[0]):
        raise ValueError(f"{exception.show(pair[0])} is no name of a reading")
