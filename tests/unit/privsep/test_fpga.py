# SPDX-License-Identifier: Apache-2.0

"""Programming is checked beforehand, and its outcome is reported."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from os_acc.privsep import fpga, images
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing.hosts import DFL_FUNCTION, DFL_INTERFACE
from tests.unit.fpga_host import (
    CARD,
    FIXED,
    HEAD,
    PAYLOAD,
    PORTED,
    SECOND,
    SILENT,
    TAIL,
    WANTED,
    FpgaHost,
)
from tests.unit.rival_driver import prefer

OK = CallResult(Outcome.OK)
DONE = CallResult(Outcome.OK, 0, "", WANTED)
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()
PROGRAMMED = f"DFL_FPGA_FME_PORT_PR 0 {len(PAYLOAD)} {SHA256} done"


def is_untouched(host: FpgaHost, address: str = CARD) -> bool:
    return not host.ioctls() and set(host.functions(address)) == {DFL_FUNCTION}


# -- success ------------------------------------------------------------------


def test_exactly_the_payload_arrives_and_what_is_there_is_read_back(host):
    assert host.program() == DONE
    assert host.ioctls() == [PROGRAMMED]
    assert host.functions() == [WANTED]


def test_one_port_is_programmed_and_the_other_left_alone(host):
    assert host.program(PORTED, number=1) == DONE
    assert host.functions(PORTED) == [DFL_FUNCTION, WANTED]


def test_the_image_says_how_it_is_hashed(host):
    digest = host.add(HEAD + PAYLOAD + TAIL, "sha3_512")
    assert host.program(digest=digest) == DONE


def test_the_last_byte_is_still_in_the_image(host):
    digest = host.add(PAYLOAD)
    size = len(PAYLOAD)
    answer = host.program(digest=digest, offset=0, size=size + 1)
    assert answer == CallResult(Outcome.REFUSED, errno.ERANGE, "image", str(size))
    assert is_untouched(host)
    assert host.program(digest=digest, offset=0) == DONE
    assert host.ioctls() == [PROGRAMMED]


def test_the_nodes_are_free_again(host):
    assert host.program() == DONE
    for node in ("dfl-fme.0", "dfl-port.0"):
        device = f"sys/bus/platform/devices/{node}/dev"
        number = host.kernel.read(host.kernel.path(device)).strip()
        os.close(host.kernel.open_exclusive(host.kernel.path("dev", node), number))


# -- refusals -----------------------------------------------------------------


def test_a_file_that_is_not_what_its_name_says_is_not_programmed(host):
    altered = HEAD + PAYLOAD[:-1] + b"\0" + TAIL
    host.file().write_bytes(altered)
    answer = host.program()
    assert (answer.outcome, answer.step) == (Outcome.REFUSED, "digest")
    assert answer.observed == hashlib.sha512(altered).hexdigest()
    assert is_untouched(host)


def test_another_interface_never_reaches_the_kernel(host):
    answer = host.program(interface_id=WANTED)
    assert answer == CallResult(Outcome.CHANGED, 0, "compat_id", DFL_INTERFACE)
    assert is_untouched(host)


@pytest.mark.parametrize("address", [FIXED, SILENT])
def test_a_card_without_an_interface_is_not_programmed(host, address):
    answer = host.program(address)
    assert answer == CallResult(Outcome.REFUSED, errno.ENOENT, "compat_id")
    assert is_untouched(host, address)


def test_a_port_that_is_not_there_is_not_programmed(host):
    answer = host.program(number=1)
    assert answer == CallResult(Outcome.REFUSED, errno.ENODEV, "port", "1")
    assert is_untouched(host)


def test_another_card_at_the_address_is_not_programmed(host):
    identity = host.identity(CARD)
    host.kernel.swap(CARD, (0x8086, 0x0B30))
    answer = host.program(identity=identity)
    assert (answer.outcome, answer.step) == (Outcome.CHANGED, "identity")
    assert is_untouched(host, SECOND)


def test_a_card_that_is_replaced_while_it_is_programmed_may_hold_anything(
    host, monkeypatch
):
    write = fpga._write

    def replaced(*arguments: Any) -> None:
        write(*arguments)
        host.kernel.swap(CARD, (0x8086, 0x0B30))

    monkeypatch.setattr(fpga, "_write", replaced)
    assert host.program() == CallResult(Outcome.REFUSED, errno.ENODEV, "programming")


def test_what_is_gone_gets_no_lock_file(host):
    identity = host.identity(CARD)
    host.kernel.hot_unplug(CARD)
    answer = host.program(identity=identity)
    assert answer == CallResult(Outcome.GONE, errno.ENODEV, "identity")
    assert not os.path.exists(host.kernel.path("run/os_acc"))


def test_a_card_that_a_guest_has_is_not_programmed(host):
    assert host.take(CARD) == OK
    answer = host.program()
    assert answer == CallResult(Outcome.CHANGED, 0, "driver", "vfio-pci")


def test_an_older_call_is_refused(host):
    assert host.program() == DONE
    answer = host.program(epoch=0)
    assert (answer.outcome, answer.step) == (Outcome.STALE, "lock")
    assert len(host.ioctls()) == 1


@pytest.mark.parametrize(
    ("node", "step"), [("dfl-port.0", "port"), ("dfl-fme.0", "fme")]
)
def test_what_somebody_has_open_is_not_programmed(host, node, step):
    host.kernel.open_node(node)
    assert host.program() == CallResult(Outcome.IN_USE, errno.EBUSY, step)
    assert is_untouched(host)
    host.kernel.close_node(node)
    assert host.program() == DONE


def test_the_node_of_something_else_is_not_opened(host):
    node = Path(host.kernel.path("dev/dfl-fme.0"))
    node.chmod(0o600)
    node.write_text("1:3\n")
    assert host.program() == CallResult(Outcome.REFUSED, errno.ENXIO, "fme")
    assert is_untouched(host)


# -- failures -----------------------------------------------------------------


@pytest.mark.parametrize(
    "errors",
    [
        ("reconfig operation error",),
        ("reconfig CRC error", "reconfig fifo overflow error"),
        (),
    ],
)
def test_an_error_of_the_hardware_carries_what_the_manager_reports(host, errors):
    host.kernel.fail_programming(CARD, *errors)
    answer = host.program()
    report = "\n".join(errors)
    assert answer == CallResult(Outcome.REFUSED, errno.EIO, "programming", report)
    assert host.functions() == [None]


def test_a_report_that_cannot_be_read_hides_no_failure(host, monkeypatch):
    def unreadable(path: str) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    host.kernel.fail_programming(CARD, "reconfig CRC error")
    monkeypatch.setattr("os_acc.privsep.fpga._status", unreadable)
    assert host.program() == CallResult(Outcome.REFUSED, errno.EIO, "programming")


def test_a_card_that_never_completes_reports_nothing(host):
    host.kernel.fail_programming(CARD, "reconfig CRC error")
    host.program()
    host.kernel.fail_programming(CARD, error=errno.ETIMEDOUT)
    # The manager's report on the previous programming does not count.
    answer = host.program()
    assert answer == CallResult(Outcome.REFUSED, errno.ETIMEDOUT, "programming")


def test_the_next_one_after_a_failure_begins_anew_with_the_card(host):
    host.kernel.fail_programming(CARD)
    host.program()
    assert host.program() == DONE
    assert host.functions() == [WANTED]
    writes = [write.path.rpartition("/")[2] for write in host.kernel.writes()]
    renewal = ["driver_override", "unbind", "drivers_probe", "driver_override"]
    assert writes == ["dfl-fme.0", *renewal, "dfl-fme.0"]
    assert host.kernel.state(CARD).driver_override is None


def test_no_other_driver_has_a_card_that_is_begun_anew(host):
    prefer(host.kernel, "bochs-drm", CARD)
    host.kernel.fail_programming(CARD, "reconfig CRC error")
    host.program()
    assert host.program() == DONE
    assert set(host.kernel.drivers(CARD)) == {"dfl-pci"}


def test_a_card_of_which_somebody_has_a_port_open_is_not_begun_anew(host):
    host.kernel.fail_programming(PORTED)
    host.program(PORTED)
    host.kernel.open_node("dfl-port.3")
    assert host.program(PORTED) == CallResult(Outcome.IN_USE, errno.EBUSY, "dfl-port.3")
    assert len(host.kernel.writes()) == 1
    host.kernel.close_node("dfl-port.3")
    assert host.program(PORTED) == DONE


def test_a_card_that_has_vfs_is_not_begun_anew(host):
    host.kernel.fail_programming(PORTED)
    host.program(PORTED, number=1)
    host.release(1)
    host.make_vfs(1)
    answer = host.program(PORTED, number=1)
    assert answer == CallResult(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", "1")


def test_a_card_that_does_not_come_back_is_told(host):
    host.kernel.fail_programming(CARD)
    host.program()
    host.kernel.ignore(CARD, "drivers_probe")
    assert host.program() == CallResult(Outcome.NO_EFFECT, 0, "driver")


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EINVAL])
def test_any_error_of_the_ioctl_leaves_the_port_unknown(host, error):
    host.kernel.fail(CARD, "program", error)
    assert host.program() == CallResult(Outcome.REFUSED, error, "programming")


def test_a_card_that_programs_itself_is_in_use(host):
    host.kernel.fail(CARD, "program", errno.EBUSY)
    assert host.program() == CallResult(Outcome.IN_USE, errno.EBUSY, "fme")
    assert host.functions() == [DFL_FUNCTION]


def test_a_card_that_lies_is_seen_by_what_it_holds(host):
    host.kernel.ignore(CARD, "program")
    assert host.program() == CallResult(Outcome.OK, 0, "", DFL_FUNCTION)


def test_a_function_that_cannot_be_read_back_is_no_success(host):
    digest = host.add(HEAD + bytes(len(PAYLOAD)))
    answer = host.program(digest=digest)
    assert answer == CallResult(Outcome.NO_EFFECT, 0, "programming")


def test_nothing_is_begun_once_the_time_is_up(host, monkeypatch):
    times = iter([0.0, 0.0, 100.0])
    monkeypatch.setattr(images.time, "monotonic", lambda: next(times, 100.0))
    assert host.program(milliseconds=10_000).errno == errno.ETIMEDOUT
    assert is_untouched(host)


# -- leaving the driver -------------------------------------------------------


@pytest.mark.parametrize("node", ["dfl-port.0", "dfl-fme.0"])
def test_a_card_of_which_somebody_has_a_node_open_is_not_taken(host, node):
    # The kernel would kill a process that closes a port without a driver.
    host.kernel.open_node(node)
    assert host.take(CARD) == CallResult(Outcome.IN_USE, errno.EBUSY, node)
    assert not host.kernel.writes()
    host.kernel.close_node(node)
    assert host.take(CARD) == OK


def test_nor_is_it_given_to_another_driver(host):
    host.kernel.open_node("dfl-port.0")
    answer = host.give_back(CARD, "")
    assert answer == CallResult(Outcome.IN_USE, errno.EBUSY, "dfl-port.0")
    # No holder matters where the card stays on its driver.
    assert host.give_back(CARD, "dfl-pci") == OK
    assert not host.kernel.writes()


def test_a_card_that_comes_back_has_its_nodes_again(host):
    assert host.program() == DONE
    assert host.take(CARD) == OK
    assert host.give_back(CARD, "dfl-pci") == OK
    assert host.functions() == [WANTED]
