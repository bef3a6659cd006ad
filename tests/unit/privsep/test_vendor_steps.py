# SPDX-License-Identifier: Apache-2.0

"""Vendors' privileged steps get the protection of the library's own ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import Step, binding, pci_functions, record, vendor_steps
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.record import DeviceRecord, FunctionUse
from os_acc.testing import FakeKernel, HostSpec
from os_acc.testing.helper import privileged_here
from tests.unit import vendor_steps as vendor
from tests.unit.privsep.root_config import (
    AUDIO,
    GPU,
    LEASE,
    NIC,
    OTHERS,
    named,
    take,
    targets,
)
from tests.unit.privsep.root_config import write as write


def call(
    step: Step[Any, *tuple[Any, ...]],
    *arguments: object,
    device: object = GPU.parts,
    members: object = None,
    cards: object = (),
    epoch: object = 1,
    milliseconds: object = 30_000,
    lease: object = LEASE,
    more: tuple[object, ...] = (),
) -> CallResult:
    members = targets(GPU) if members is None else members
    answer = step(device, members, cards, epoch, milliseconds, lease, arguments, *more)
    return CallResult(*answer)


def node(address: PciAddress) -> str:
    return pci_functions.read(address, "numa_node")


pytestmark = pytest.mark.usefixtures("kernel")
#: One host serves all calls that are rejected before they reach a device.
REJECTED = pytest.mark.usefixtures("empty_host")
SOME = ((GPU.parts, (1, 2, 3, 4, 5)),)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> FakeKernel:
    return FakeKernel.build(tmp_path_factory.mktemp("host"), HostSpec(()))


@pytest.fixture
def empty_host(made_once: FakeKernel) -> Iterator[None]:
    with privileged_here(), made_once.installed():
        yield


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> None:
    """Run each other test on the two-socket host."""
    if "empty_host" not in request.fixturenames:
        request.getfixturevalue("fake")


def test_a_step_runs_on_all_functions_and_returns_its_value():
    assert call(vendor.set_node, 1, members=targets(AUDIO, GPU)) == CallResult(
        Outcome.OK, 0, "step", '"1"'
    )
    assert (node(GPU), node(AUDIO)) == ("1", "1")


def test_a_step_gets_the_sorted_functions_of_its_lease():
    answer = call(vendor.describe, members=targets(AUDIO, GPU))
    assert vendor_steps.decode(answer.observed) == (
        LEASE,
        str(GPU),
        (str(GPU), str(AUDIO)),
        "",
    )


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_step_of_a_programming_gets_the_card_too(is_leased):
    members = targets(GPU, NIC) if is_leased else targets(GPU)
    answer = call(vendor.describe, members=members, cards=targets(NIC))
    assert vendor_steps.decode(answer.observed)[3] == str(NIC)


def test_a_step_runs_in_a_child_process():
    child, parent = vendor_steps.decode(call(vendor.process).observed)
    assert parent == os.getpid() != child


PLAIN = (-(2**63), "ä\n", b"\xff\0", (1, 2**64 - 1), ("", True), None)


def test_plain_values_arrive_unchanged():
    found = vendor_steps.decode(call(vendor.echo, *PLAIN).observed)
    assert found == PLAIN
    assert list(map(type, found)) == list(map(type, PLAIN))


class Text(str):
    """Text that formats itself differently."""


@REJECTED
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, True),
        (0, 2**64),
        (0, 1.5),
        (0, None),
        (1, 1),
        (1, Text("a")),
        (1, "\ud800"),
        (2, "text"),
        (3, [1]),
        (3, (1, "a")),
        (4, ("", True, 1)),
        (4, ("", 1)),
        (5, "1"),
    ],
)
def test_arguments_of_other_types_are_rejected(position, value):
    arguments = [*PLAIN[:position], value, *PLAIN[position + 1 :]]
    assert call(vendor.echo, *arguments, members=SOME).outcome == Outcome.INVALID


@REJECTED
def test_a_wrong_number_of_arguments_is_rejected():
    assert call(vendor.set_node, members=SOME).outcome == Outcome.INVALID
    assert call(vendor.set_node, 1, 2, members=SOME).outcome == Outcome.INVALID
    assert call(vendor.set_node, 1, members=SOME).outcome == Outcome.GONE


@REJECTED
@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": "../1"},
        {"lease": "A" * 8 + LEASE[8:]},
        {"epoch": -1},
        {"epoch": True},
        {"milliseconds": 0},
        {"milliseconds": 10**9},
        {"device": "0000:17:00.0"},
        {"device": (0, 0x17, 0)},
        {"device": ("mtty", "../x", 0)},
        {"device": NIC.parts},
        {"members": ()},
        {"members": SOME * 2},
        {"members": ((GPU.parts,),)},
        {"members": ((GPU.parts, (1, 2)),)},
        {"members": ((*SOME[0], "nvme"),)},
        {"members": ((*SOME[0], "nvme", ""),)},
        {"cards": ((GPU.parts,),)},
        {"cards": ((*SOME[0], "nvme"),)},
        {"cards": ((*SOME[0], "", "", "serial"),)},
        {"cards": "card"},
        {"cards": (*SOME, (NIC.parts, (1, 2, 3, 4, 5)))},
        {"device": ("mtty", "mtty-1", 0)},
    ],
)
def test_malformed_calls_are_rejected(wrong):
    answer = call(vendor.set_node, 1, **{"members": SOME, **wrong})
    assert answer.outcome == Outcome.INVALID


@REJECTED
@pytest.mark.parametrize("more", [("nvme",), ("", ""), ("", "", "serial")])
def test_a_health_step_takes_no_names(more):
    answer = CallResult(*vendor.users((*SOME[0], *more), 30_000, ()))
    assert answer.outcome == Outcome.INVALID


def test_a_missing_function_gets_no_lock(fake):
    members = (*targets(GPU), ((9, 9, 9, 1), (1, 1, 1, 1, 1)))
    assert call(vendor.set_node, 1, members=members).outcome == Outcome.GONE
    assert not os.path.exists(f"{fake.root}/{LOCKS}/0009:09:09.1")


def test_another_device_at_the_address_is_left_alone():
    members = ((GPU.parts, (1, 2, 3, 4, 5)),)
    answer = call(vendor.set_node, 1, members=members)
    assert (answer.outcome, answer.step) == (Outcome.CHANGED, "identity")
    assert node(GPU) != "1"


def test_another_card_at_the_address_is_left_alone():
    cards = ((NIC.parts, (1, 2, 3, 4, 5)),)
    assert call(vendor.set_node, 1, cards=cards).outcome == Outcome.CHANGED


def test_a_device_of_another_lease_is_left_alone():
    identity = pci_functions.identity(GPU)
    assert identity is not None
    assert call(vendor.set_node, 0).outcome == Outcome.OK
    record.write(DeviceRecord(OTHERS, GPU, identity, "", "", FunctionUse.GUEST))
    answer = call(vendor.set_node, 1)
    assert (answer.outcome, answer.observed) == (Outcome.CLAIMED, OTHERS)
    assert call(vendor.set_node, 1, lease=OTHERS).outcome == Outcome.OK


def test_a_late_step_of_an_earlier_operation_is_refused():
    assert call(vendor.set_node, 1, epoch=5).outcome == Outcome.OK
    assert call(vendor.set_node, 0, epoch=4).outcome == Outcome.STALE
    assert node(GPU) == "1"


def test_a_later_step_of_the_card_stops_earlier_ones():
    assert call(vendor.set_node, 1, cards=targets(NIC), epoch=5).outcome == Outcome.OK
    other = call(vendor.set_node, 1, device=NIC.parts, members=targets(NIC), epoch=4)
    assert other.outcome == Outcome.STALE


def test_a_step_that_hangs_keeps_the_device_locked(fake):
    fake.hang(str(GPU), "numa_node")
    assert call(vendor.set_node, 1, milliseconds=200).outcome == Outcome.STUCK
    assert call(vendor.describe, milliseconds=200).outcome == Outcome.BUSY
    fake.lift()


def test_a_refused_system_call_is_reported_with_its_attribute():
    answer = call(vendor.refuse, errno.EBUSY)
    assert answer == CallResult(
        Outcome.REFUSED, errno.EBUSY, "mode", "Device or resource busy"
    )


def test_a_write_without_effect_fails(fake):
    fake.ignore(str(GPU), "numa_node")
    answer = call(vendor.set_node, 1)
    assert (answer.outcome, answer.errno, answer.step) == (
        Outcome.REFUSED,
        errno.EIO,
        "numa_node",
    )


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (vendor.crash, "raised RuntimeError: no firmware"),
        (vendor.return_object, "returned a set, no plain value"),
    ],
)
def test_a_defect_of_a_step_is_reported(step, text):
    assert call(step) == CallResult(Outcome.FAILED, 0, "step", text)


def test_a_step_that_ends_its_process_is_reported():
    assert call(vendor.leave).step == "child"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(GPU, Outcome.OK), (AUDIO, Outcome.DENIED), (NIC, Outcome.DENIED)],
)
def test_roots_configuration_limits_the_functions(write, spec, expected):
    write(named(spec))
    assert call(vendor.set_node, 1).outcome == expected
    assert (node(GPU) == "1") == (expected == Outcome.OK)


PREPARE, RETURN = ("prepare", "acme"), ("return", "acme")


def test_a_recorded_device_is_returned_whatever_root_says_now(write):
    write(named(GPU))
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    write(named(NIC))
    assert call(vendor.set_node, 0, more=RETURN).outcome == Outcome.OK
    assert node(GPU) == "0"


@pytest.mark.parametrize("purpose", ["prepare", "other"])
def test_only_the_return_of_a_recorded_device_is_exempt(write, purpose):
    write(named(GPU))
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    write(named(NIC))
    denied = call(vendor.set_node, 0, more=(purpose, "acme"))
    assert denied.outcome == Outcome.DENIED
    assert node(GPU) == "1"


@pytest.mark.parametrize("more", [PREPARE, RETURN])
def test_a_step_that_is_denied_without_a_record_leaves_none(write, more):
    write(named(NIC))
    assert call(vendor.set_node, 1, more=more).outcome == Outcome.DENIED
    assert not record.exists(GPU)


def test_a_part_of_the_device_without_a_record_denies_the_return(write):
    write(named(GPU))
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    write(named(NIC))
    answer = call(vendor.set_node, 0, members=targets(AUDIO, GPU), more=RETURN)
    assert answer.outcome == Outcome.DENIED


def test_a_record_names_the_plugin_that_has_to_release_the_device():
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    found = record.read(GPU)
    assert found is not None
    assert (found.lease, found.releaser, found.driver) == (LEASE, "acme", "nouveau")
    assert found.use == FunctionUse.HOST


def test_the_record_of_a_device_in_a_guest_stays_that_of_a_guest():
    assert take(GPU) == [Outcome.OK]
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    found = record.read(GPU)
    assert found is not None
    assert (found.use, found.releaser) == (FunctionUse.GUEST, "acme")


def test_a_call_without_a_debt_records_nothing():
    assert call(vendor.set_node, 1, more=("prepare", "")).outcome == Outcome.OK
    assert not record.exists(GPU)


def test_a_program_step_is_never_exempt(write):
    write(named(GPU))
    assert call(vendor.set_node, 1, more=PREPARE).outcome == Outcome.OK
    assert (
        call(vendor.set_node, 0, cards=targets(NIC), more=RETURN).outcome
        == Outcome.DENIED
    )


@REJECTED
@pytest.mark.parametrize(
    "more", [("erase", ""), (None, ""), ("return", None), ("return", "../x")]
)
def test_another_purpose_or_plugin_is_malformed(more):
    answer = call(vendor.set_node, 1, members=SOME, more=more)
    assert answer.outcome == Outcome.INVALID


def test_a_return_that_root_denies_records_no_debt(write):
    """Its record would permit the steps of the plugin."""
    write(named(NIC))
    given = targets(GPU, more=("nouveau", ""))
    (answer,) = binding.give_back(
        pci_functions.group(GPU), given, 1, 30_000, True, LEASE, "nvme", "acme"
    )
    assert CallResult(*answer).outcome == Outcome.OK
    assert not record.exists(GPU)


def test_roots_configuration_limits_the_cards(write):
    write(named(GPU))
    assert call(vendor.set_node, 1, cards=targets(NIC)).outcome == Outcome.DENIED
    write(named(GPU), named(NIC))
    assert call(vendor.set_node, 1, cards=targets(NIC)).outcome == Outcome.OK


@REJECTED
@pytest.mark.parametrize("declare", vendor.wrongly_typed())
def test_a_step_without_plain_parameters_cannot_be_declared(declare):
    with pytest.raises(TypeError):
        declare()


@REJECTED
def test_the_helper_of_another_context_does_not_run_it():
    from os_acc import privsep

    assert vendor.context.is_entrypoint(vendor.set_node)
    assert not privsep.base.is_entrypoint(vendor.set_node)
