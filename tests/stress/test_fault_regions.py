# SPDX-License-Identifier: Apache-2.0

"""After any fault no consumer has a region that was not read back.

Each write and each read of a flow that programs a region, or moves its port,
is struck, as those of other flows are.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
from collections.abc import Mapping

import pytest

from os_acc import exception
from tests.expected_errors import is_a
from tests.stress import fault_reads, fault_regions, fault_trials, unreadable_attributes
from tests.stress.fault_reads import Check, Reader
from tests.stress.fault_trials import Effect, Stage, Told, Trial
from tests.stress.flows import DFL

#: The helper's reads for a region or a port that is moved; the service's reads of the
#: card.
READINGS = [
    *(
        (flow.name, "the helper's", error)
        for flow in (
            fault_regions.Program(),
            fault_regions.ProgramAnew(),
            fault_regions.ProgramVf(),
            fault_regions.NumVfs(),
            fault_regions.PortsBack(),
        )
        for error in (errno.EIO, errno.ENODEV)
    ),
    (fault_regions.Program.name, "the service's", errno.EIO),
]
#: The reader that strikes the reads of each process.
READERS: Mapping[str, Reader] = {
    "the helper's": unreadable_attributes.to_the_helper,
    "the service's": unreadable_attributes.to_the_service,
}
_IOCTLS = ("program", "release", "assign")


def check_of_helper(result: Told, error: int) -> None:
    """Check as for every device, unless the region has lost its port."""
    if is_a(result.error, exception.RegionReason.NOT_PROGRAMMABLE):
        assert DFL in result.text, result
        assert "cannot program" in result.text, result
        return
    fault_reads.check_named(result, error)


def check_of_service(result: Told, error: int) -> None:
    """Check that an unreadable attribute is reported, or the card not offered."""
    if isinstance(result.error, exception.DeviceGone):
        assert "provider" in result.text, result
        return
    assert isinstance(result.error, exception.HostError), repr(result.error)
    assert result.error.errno == error, repr(result.error)
    assert os.strerror(error) in result.text, result


CHECKS: Mapping[str, Check] = {
    "the helper's": check_of_helper,
    "the service's": check_of_service,
}


def stage_of(name: str, place: str) -> Stage:
    return fault_trials.stage_of(
        fault_regions.FLOWS[name], os.path.join(place, "stage")
    )


class RegionTrial(Trial):
    """A fault at a write, or at an ioctl."""

    def _check_named(self, result: Told) -> None:
        if self.place.attribute not in _IOCTLS:
            super()._check_named(result)
            return
        assert DFL in result.text, result
        if self.place.attribute == "assign" and self.effect is Effect.ENODEV:
            # A card that counts more ports than it has answers so.
            return
        if self.flow.fails:
            assert "cannot return the ports to the host" in result.text, result
        if self.effect is Effect.EBUSY:
            assert "in use" in result.text, result
        elif isinstance(self.effect.value, int):
            assert self.effect.name in result.text, result
        if result.error is not None:
            expected: type[exception.OsAccError] = {
                Effect.EBUSY: exception.DeviceInUse,
                Effect.HANG: exception.DeviceStuck,
            }.get(self.effect, exception.ProgrammingFailed)
            assert isinstance(result.error, expected), repr(result.error)

    def _is_of_struck(self, names: list[str]) -> bool:
        # A VF's port is programmed through its card.
        return self.place.attribute in _IOCTLS or super()._is_of_struck(names)


@pytest.mark.parametrize("flow", fault_regions.FLOWS)
def test_every_write_is_struck_by_every_fault(flow, place, counting):
    stage = stage_of(flow, place)
    places = fault_trials.record(
        stage, stage.bench.copy(os.path.join(place, "recorded"))
    )
    assert places, "the flow writes nothing"

    attempts = {
        f"{effect} at {struck}": functools.partial(
            fault_trials.attempt, stage, place=struck, effect=effect, kind=RegionTrial
        )
        for struck, effect in itertools.product(places, Effect)
    }
    fault_trials.survive(
        stage, place, counting, "faults at writes for a region", attempts, len(Effect)
    )


@pytest.mark.parametrize(("flow", "whose", "error"), READINGS)
def test_every_read_may_fail(place, counting, flow, whose, error):
    """Strike reads of the helper, which runs as root, and of the service itself."""
    stage = stage_of(flow, place)
    reader = READERS[whose]
    recorded = stage.bench.copy(os.path.join(place, "recorded"))
    attempts = {
        f"{errno.errorcode[error]} at read {at}": functools.partial(
            fault_reads.strike,
            stage,
            reader=reader,
            at=at,
            error=error,
            check=CHECKS[whose],
        )
        for at in range(1, fault_reads.record(stage, recorded, reader) + 1)
    }
    fault_trials.survive(
        stage, place, counting, f"{whose} reads for a region", attempts, 1
    )
