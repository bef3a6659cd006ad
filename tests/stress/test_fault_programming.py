# SPDX-License-Identifier: Apache-2.0

"""A fault of a programming never hands over a region with unknown contents.

Each fault strikes the one ioctl of a plug that programs a region: the kernel
refuses it before it begins, or the hardware fails afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.testing import FakeKernel, HostSpec, Snapshot, TestHost, hosts
from os_acc.testing.demo.host import GZIP, fill_images
from tests.expected_errors import Expected, raises
from tests.stress import flows
from tests.stress.fault_flows import NEXT
from tests.stress.flows import DFL, FPGA, INSTANCE
from tests.stress.result_tables import Count
from tests.stress.simulated_host import plug, request, simulated_host

STATUSES = {
    "reconfig operation error": exception.ProgrammingReason.OPERATION,
    "reconfig CRC error": exception.ProgrammingReason.CRC,
    "reconfig incompatible image": exception.ProgrammingReason.INCOMPATIBLE,
    "reconfig IP protocol error": exception.ProgrammingReason.PROTOCOL,
    "reconfig fifo overflow error": exception.ProgrammingReason.FIFO_OVERFLOW,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A fault, and its expected result.

    :ivar error: the error of the plug.
    :ivar told: words that the message contains.
    :ivar known: whether the region is still verified.
    :ivar holds: the function in the hardware afterwards.
    """

    strike: Callable[[FakeKernel], object]
    error: Expected
    told: str
    known: bool = False
    holds: str | None = hosts.DFL_FUNCTION


def _refused(number: int, error: Expected, known: bool) -> Case:
    return Case(
        lambda kernel: kernel.fail(DFL, "program", number),
        error,
        errno.errorcode[number] if not known else DFL,
        known,
    )


def _failed(status: str) -> Case:
    return Case(
        lambda kernel: kernel.fail_programming(DFL, status),
        STATUSES[status],
        status,
        holds=None,
    )


CASES = {
    "EBUSY": _refused(errno.EBUSY, exception.DeviceInUse, True),
    "EINVAL": _refused(errno.EINVAL, exception.ProgrammingReason.FAILED, False),
    "ENODEV": _refused(errno.ENODEV, exception.ProgrammingReason.FAILED, False),
    "EAGAIN": _refused(errno.EAGAIN, exception.ProgrammingReason.FAILED, False),
    "ENOMEM": _refused(errno.ENOMEM, exception.ProgrammingReason.FAILED, False),
    **{status: _failed(status) for status in STATUSES},
    "several": Case(
        lambda kernel: kernel.fail_programming(DFL, *STATUSES),
        exception.ProgrammingReason.OPERATION,
        "reconfig CRC error",
        holds=None,
    ),
    "nothing is reported": Case(
        lambda kernel: kernel.fail_programming(DFL, error=errno.ETIMEDOUT),
        exception.ProgrammingReason.TIMEOUT,
        "ETIMEDOUT",
        holds=None,
    ),
    "hang": Case(
        lambda kernel: kernel.hang(DFL, "program"),
        exception.DeviceStuck,
        DFL,
    ),
    "no effect": Case(
        lambda kernel: kernel.ignore(DFL, "program"),
        exception.ProgrammingReason.WRONG_FUNCTION,
        GZIP,
    ),
}


@pytest.fixture
def bench(place: str) -> TestHost:
    card = [each for each in flows.host().functions if each.address == FPGA]
    spec = HostSpec((*card, *flows.Program.more))
    bench = simulated_host(os.path.join(place, "bench"), spec, write_timeout=5.0)
    fill_images(bench.images)
    return bench


def program(manager: Manager, consumer: str) -> list[dict[str, Any]]:
    selected, specs = request(manager, [DFL])
    specs["accel1:function_name"] = "gzip"
    return manager.plug({"uuid": consumer}, selected, specs)


@pytest.mark.parametrize("name", CASES)
def test_every_fault_of_a_programming_is_survived(bench, counting, name):
    case = CASES[name]
    with bench.installed(), contextlib.ExitStack() as stack:
        stack.callback(bench.end_faults)
        kernel, pristine = bench.kernel, bench.kernel.snapshot()
        manager = bench.start()
        case.strike(kernel)
        with raises(case.error) as caught:
            program(manager, INSTANCE)
        assert case.told in str(caught.value)
        assert DFL in str(caught.value) or caught.value.hint
        _check_left(case, kernel, manager, pristine, is_stuck=name == "hang")
        bench.end_faults()
        _put_in_order(bench, pristine)
    counting(Count("faults of a programming", "a region", 1, len(CASES), 1, 1))


def _check_left(
    case: Case,
    kernel: FakeKernel,
    manager: Manager,
    pristine: Snapshot,
    *,
    is_stuck: bool,
) -> None:
    recorded_state = manager.store.recorded_state()
    assert bool(recorded_state.unverified_regions) is not case.known
    assert len(recorded_state.leases) == is_stuck
    assert kernel.snapshot() == pristine
    if case.holds is not None:
        assert kernel.held_by_hardware(DFL) == (case.holds,)
    # Another card is served meanwhile; this region is not handed over as it is,
    # unless its contents have not changed.
    assert plug(manager, NEXT, FPGA)
    assert manager.unplug({"uuid": NEXT}) == 1
    if case.known:
        assert plug(manager, NEXT, DFL)
        assert manager.unplug({"uuid": NEXT}) == 1
        return
    with pytest.raises(
        (exception.RegionUnusable, exception.NoDeviceAvailable)
    ) as caught:
        plug(manager, NEXT, DFL)
    if isinstance(caught.value, exception.RegionUnusable):
        assert caught.value.reason is exception.RegionReason.UNKNOWN


def _put_in_order(bench: TestHost, pristine: Snapshot) -> None:
    """Check, after the fault, that the region is programmed and the host restored."""
    kernel, manager = bench.kernel, bench.start()
    manager.unplug({"uuid": INSTANCE})
    (entry,) = program(manager, NEXT)
    assert entry["pci_id"] == DFL
    assert kernel.held_by_hardware(DFL) == (GZIP,)
    assert not manager.store.recorded_state().unverified_regions
    assert manager.unplug({"uuid": NEXT}) == 1
    assert kernel.snapshot() == pristine
