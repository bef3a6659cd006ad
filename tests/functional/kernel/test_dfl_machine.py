# SPDX-License-Identifier: Apache-2.0

"""The kernel's DFL driver handles a card as os_acc expects. Raw ioctls, no os_acc."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import uuid
from collections.abc import Callable

import pytest

from . import dfl, dfl_card, dfl_trace, sysfs
from .dfl_card import Card
from .machine import Machine

FUNCTION = uuid.UUID("331db30c-9885-41ea-9081-f88b8f655caa")
PAYLOAD = bytes(range(1, 255)) * 64
LAST_WORD = int.from_bytes(PAYLOAD[-4:], "little")


@pytest.fixture
def two_nodes(fpga: Card) -> tuple[os.PathLike[str], os.PathLike[str]]:
    """Return the nodes of the card's engine and of its port."""
    return dfl.node(dfl.fme(fpga.bdf)), dfl.node(dfl.port(fpga.bdf))


def refusal(number: int, step: Callable[[], object]) -> None:
    """Check that the kernel rejects a step."""
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the number counts
        step()
    assert refused.value.errno == number


def test_a_card_of_one_port_is_as_the_kernel_documents(
    fpga: Card, the_machine: Machine
) -> None:
    assert sysfs.driver(the_machine.fpga) == "dfl-pci"
    assert sysfs.numa_node(the_machine.fpga) == 1
    assert dfl.compat_ids(fpga.bdf) == {dfl.INTERFACE.hex}
    assert dfl.afu_id(fpga.bdf) == dfl.FIRST_FUNCTION.hex
    assert dfl.read(dfl.fme(fpga.bdf) / "ports_num") == "1"
    assert dfl.read(dfl.manager(fpga.bdf) / "name") == "DFL FME FPGA Manager"
    assert dfl.state(fpga.bdf) == ("unknown", "")
    for device in (dfl.fme(fpga.bdf), dfl.port(fpga.bdf)):
        node = dfl.node(device).stat()
        numbers = f"{os.major(node.st_rdev)}:{os.minor(node.st_rdev)}"
        assert dfl.read(device / "dev") == numbers
        assert device.name.endswith(f".{os.minor(node.st_rdev)}")
        assert node.st_mode & 0o777 == 0o600
    refusal(errno.ENOENT, (dfl.fme(fpga.bdf).parent / "compat_id").read_text)


def test_a_port_is_known_by_its_id_alone(fpga: Card, fpga_of_two: Card) -> None:
    assert dfl.read(dfl.fme(fpga_of_two.bdf) / "ports_num") == "2"
    assert dfl.compat_ids(fpga_of_two.bdf) == {dfl.OTHER_INTERFACE.hex}
    fpga_of_two.next_function(FUNCTION)
    dfl.program(fpga_of_two.bdf, PAYLOAD, 1)
    assert fpga_of_two.programmed_ports() == (1,)
    assert dfl.afu_id(fpga_of_two.bdf, 0) == dfl.FIRST_FUNCTION.hex
    assert dfl.afu_id(fpga_of_two.bdf, 1) == FUNCTION.hex
    assert dfl.afu_id(fpga.bdf) == dfl.FIRST_FUNCTION.hex


@pytest.mark.share(1)
def test_programming_pushes_the_payload_word_by_word(fpga: Card) -> None:
    fpga.next_function(FUNCTION)
    with dfl_trace.recorded() as pushed:
        dfl.program(fpga.bdf, PAYLOAD)
        assert pushed.payload() == PAYLOAD
    assert fpga.last_word() == LAST_WORD
    assert fpga.programmed_count() == 1
    assert fpga.function() == FUNCTION
    assert dfl.afu_id(fpga.bdf) == FUNCTION.hex
    assert dfl.state(fpga.bdf) == ("operating", "")
    assert not fpga.in_reset()


def test_what_is_no_multiple_of_a_word_is_padded(fpga: Card) -> None:
    with dfl_trace.recorded() as pushed:
        dfl.program(fpga.bdf, PAYLOAD[:7])
        assert len(pushed.payload()) == 8
        assert pushed.payload()[:7] == PAYLOAD[:7]


def test_what_cannot_be_asked_for_does_not_reach_the_card(fpga: Card) -> None:
    fd = os.open(dfl.node(dfl.fme(fpga.bdf)), os.O_RDWR)
    try:
        refusal(errno.EINVAL, lambda: dfl.port_pr(fd, PAYLOAD, number=1))
        refusal(errno.EINVAL, lambda: dfl.port_pr(fd, PAYLOAD, flags=1))
        refusal(errno.ENOMEM, lambda: dfl.port_pr(fd, b""))
    finally:
        os.close(fd)
    assert dfl.state(fpga.bdf) == ("unknown", "")
    assert dfl.afu_id(fpga.bdf) == dfl.FIRST_FUNCTION.hex


def test_several_errors_are_told_line_by_line(fpga: Card) -> None:
    fpga.fail_with(*(error.bit for error in dfl_card.ERRORS))
    refusal(errno.EIO, lambda: dfl.program(fpga.bdf, PAYLOAD))
    lines = [error.status for error in dfl_card.ERRORS]
    assert dfl.state(fpga.bdf) == ("write complete error", "\n".join(lines))


def test_a_port_stays_in_reset_after_a_failure_until_the_driver_begins_anew(
    fpga: Card,
) -> None:
    fpga.fail_with(0)
    refusal(errno.EIO, lambda: dfl.program(fpga.bdf, PAYLOAD))
    assert fpga.in_reset()
    refusal(errno.EBUSY, lambda: dfl.afu_id(fpga.bdf))
    fpga.next_function(FUNCTION)
    dfl.program(fpga.bdf, PAYLOAD)
    assert dfl.state(fpga.bdf) == ("operating", "")
    assert fpga.function() == FUNCTION
    fd = os.open(dfl.node(dfl.port(fpga.bdf)), os.O_RDWR)
    fcntl.ioctl(fd, dfl.PORT_RESET)
    os.close(fd)
    assert fpga.in_reset()
    refusal(errno.EBUSY, lambda: dfl.afu_id(fpga.bdf))
    sysfs.unbind(fpga.bdf)
    dfl.bind(fpga.bdf)
    assert not fpga.in_reset()
    assert dfl.afu_id(fpga.bdf) == FUNCTION.hex
    assert dfl.state(fpga.bdf) == ("unknown", "")


def test_while_a_card_is_programmed_its_function_cannot_be_read(
    fpga: Card, two_nodes: tuple[os.PathLike[str], os.PathLike[str]]
) -> None:
    _engine, port = two_nodes
    fpga.next_function(FUNCTION)
    fpga.never_complete()
    programming = threading.Thread(target=dfl.program, args=(fpga.bdf, PAYLOAD))
    programming.start()
    try:
        fpga.wait_until_pushed()
        assert dfl.state(fpga.bdf) == ("write complete", "")
        refusal(errno.EBUSY, lambda: dfl.afu_id(fpga.bdf))
        assert dfl.compat_ids(fpga.bdf) == {dfl.INTERFACE.hex}
        os.close(os.open(port, os.O_RDWR | os.O_EXCL))
    finally:
        fpga.complete()
        programming.join()
    assert dfl.state(fpga.bdf) == ("operating", "")
    assert dfl.afu_id(fpga.bdf) == FUNCTION.hex


@pytest.mark.parametrize("which", [0, 1], ids=["engine", "port"])
def test_a_node_opened_exclusively_has_no_other_user(
    two_nodes: tuple[os.PathLike[str], os.PathLike[str]], which: int
) -> None:
    node = two_nodes[which]
    shared = os.open(node, os.O_RDWR)
    os.close(os.open(node, os.O_RDWR))
    refusal(errno.EBUSY, lambda: os.open(node, os.O_RDWR | os.O_EXCL))
    os.close(shared)
    alone = os.open(node, os.O_RDWR | os.O_EXCL)
    refusal(errno.EBUSY, lambda: os.open(node, os.O_RDWR))
    refusal(errno.EBUSY, lambda: os.open(node, os.O_RDWR | os.O_EXCL))
    os.close(alone)
    os.close(os.open(node, os.O_RDWR))


def test_unbinding_does_not_ask_who_has_the_engine_open(
    fpga: Card, two_nodes: tuple[os.PathLike[str], os.PathLike[str]]
) -> None:
    # Not the port: an oops kills the process that closes it afterwards.
    engine, _port = two_nodes
    fd = os.open(engine, os.O_RDWR)
    try:
        sysfs.unbind(fpga.bdf)
        assert not os.path.exists(engine)
        assert fcntl.ioctl(fd, dfl.GET_API_VERSION) == 0
        refusal(errno.EINVAL, lambda: dfl.port_pr(fd, PAYLOAD))
    finally:
        os.close(fd)
    dfl.bind(fpga.bdf)
    assert dfl.afu_id(fpga.bdf) == dfl.FIRST_FUNCTION.hex
    assert fpga.programmed_count() == 0


def test_a_reset_of_the_function_does_not_change_what_it_holds(fpga: Card) -> None:
    fpga.next_function(FUNCTION)
    dfl.program(fpga.bdf, PAYLOAD)
    sysfs.write(fpga.bdf, "reset", "1")
    assert dfl.afu_id(fpga.bdf) == FUNCTION.hex
    dfl.program(fpga.bdf, PAYLOAD)
    assert fpga.programmed_count() == 2
