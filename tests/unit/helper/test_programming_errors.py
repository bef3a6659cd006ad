# SPDX-License-Identifier: Apache-2.0

"""The client turns the helper's answers to programming calls into typed errors."""

import dataclasses
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams.policy import SIGNATURE_PROPERTIES
from os_acc.helper.client import EpochRefused, Helper
from os_acc.host.pci import read_function
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.privsep import fpga, privileged_conf
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing.hosts import DFL_INTERFACE
from tests.expected_errors import kind_of, raises
from tests.unit.fpga_host import (
    CARD,
    HEAD,
    PAYLOAD,
    PORTED,
    SILENT,
    UNSIGNED,
    WANTED,
    FpgaHost,
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FpgaHost]:
    with FpgaHost(tmp_path) as host:
        yield host


@pytest.fixture
def hands() -> Helper:
    return Helper(write_timeout=60)


def soon() -> float:
    return time.monotonic() + 60


def program(host: FpgaHost, hands: Helper, epoch: int = 1) -> str:
    return hands.program(host.region(), host.bitstream(), epoch, soon())


def card(host: FpgaHost, address: str = PORTED) -> PciFunction:
    function = read_function(host.kernel.root, PciAddress.parse(address))
    assert function is not None
    return function


def test_the_function_that_the_region_holds_is_returned(host, hands):
    assert program(host, hands) == WANTED
    assert host.functions() == [WANTED]


def test_it_carries_numbers_ids_and_a_digest(host, hands, monkeypatch):
    seen = []

    def entry_point(*arguments: object) -> CallResult:
        seen.extend(arguments)
        return CallResult(Outcome.OK, 0, "", WANTED)

    monkeypatch.setattr(fpga, "program", entry_point)
    program(host, hands, epoch=7)
    address, identity, number, *rest, milliseconds, signature = seen
    assert address == (0, 0x3B, 0, 0)
    assert identity == host.identity(CARD)
    assert number == 0
    digest = "sha512", host.digest.value
    assert rest == [DFL_INTERFACE, digest, len(HEAD), len(PAYLOAD), 7]
    assert 0 < milliseconds <= 60_000
    assert signature == UNSIGNED


def test_the_signature_of_the_image_goes_with_it(host, hands, monkeypatch):
    seen = []

    def entry_point(*arguments: object) -> CallResult:
        seen.append(arguments[-1])
        return CallResult(
            Outcome.REFUSED, errno.EKEYREJECTED, "signature", "it is expired"
        )

    monkeypatch.setattr(fpga, "program", entry_point)
    signed = ("c2ln", "SHA-256", "DSA", "5f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90")
    properties = dict(zip(SIGNATURE_PROPERTIES, signed, strict=True))
    found = host.bitstream()
    image = dataclasses.replace(found.image, properties=properties)
    with pytest.raises(exception.ImageRefused, match="it is expired"):
        hands.program(host.region(), dataclasses.replace(found, image=image), 1, soon())
    assert seen == [signed]


def test_a_card_that_root_does_not_name_is_not_programmable(host, hands):
    path = Path(host.kernel.root, *privileged_conf.PATH)
    path.parent.mkdir(parents=True)
    path.write_text("[os_acc]\n")
    with raises(exception.RegionReason.NOT_PROGRAMMABLE, match="root's configuration"):
        program(host, hands)
    assert host.kernel.writes() == []


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        ("reconfig operation error", exception.ProgrammingReason.OPERATION),
        ("reconfig CRC error", exception.ProgrammingReason.CRC),
        ("reconfig incompatible image", exception.ProgrammingReason.INCOMPATIBLE),
        ("reconfig IP protocol error", exception.ProgrammingReason.PROTOCOL),
        ("reconfig fifo overflow error", exception.ProgrammingReason.FIFO_OVERFLOW),
        ("reconfig of a kind to come", exception.ProgrammingReason.FAILED),
    ],
)
def test_each_error_of_the_hardware_has_its_type(host, hands, reported, kind):
    host.kernel.fail_programming(CARD, reported)
    with pytest.raises(exception.ProgrammingFailed, match=reported) as caught:
        program(host, hands)
    assert kind_of(caught.value) is kind
    assert caught.value.errors == (reported,)
    assert (caught.value.address, caught.value.errno) == (CARD, errno.EIO)


def test_a_card_that_never_completes_has_a_type_of_its_own(host, hands):
    host.kernel.fail_programming(CARD, error=errno.ETIMEDOUT)
    with raises(exception.ProgrammingReason.TIMEOUT, match="ETIMEDOUT"):
        program(host, hands)


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL, errno.ENOMEM])
def test_an_error_without_a_report_is_told_by_its_number(host, hands, error):
    host.kernel.fail_programming(CARD, error=errno.EIO)
    if error != errno.EIO:
        host.kernel.lift()
        host.kernel.fail(CARD, "program", error)
    with pytest.raises(exception.ProgrammingFailed, match=errno.errorcode[error]):
        program(host, hands)


def test_who_has_it_open_is_named(host, hands):
    host.kernel.open_node("dfl-port.0", 77, "fpgadiag")
    with pytest.raises(exception.DeviceInUse, match="fpgadiag") as caught:
        program(host, hands)
    assert caught.value.holders == ((77, "fpgadiag"),)


def test_who_has_let_go_meanwhile_has_no_name(host, hands, monkeypatch):
    busy = CallResult(Outcome.IN_USE, errno.EBUSY, "port")
    monkeypatch.setattr(fpga, "program", lambda *_arguments: busy)
    with pytest.raises(exception.DeviceInUse) as caught:
        program(host, hands)
    assert caught.value.holders == ()
    assert caught.value.retryable


def test_an_altered_file_is_an_invalid_image(host, hands):
    bitstream = host.bitstream()
    host.file().write_bytes(b"something else")
    with raises(exception.ImageReason.INVALID, match=bitstream.image.id):
        hands.program(host.region(), bitstream, 1, soon())
    assert not host.ioctls()


def test_a_file_that_is_gone_is_one_too(host, hands):
    bitstream = host.bitstream()
    host.file().unlink()
    with raises(exception.ImageReason.INVALID, match="ENOENT"):
        hands.program(host.region(), bitstream, 1, soon())


def test_another_interface_is_a_mismatch_and_was_not_tried(host, hands):
    region = dataclasses.replace(host.region(), interface_id=WANTED)
    with raises(exception.ImageReason.MISMATCH, match=DFL_INTERFACE):
        hands.program(region, host.bitstream(), 1, soon())
    assert not host.ioctls()


def test_a_region_without_interface_is_not_even_asked_about(host, hands):
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        hands.program(host.region(SILENT), host.bitstream(), 1, soon())
    # The same applies to a region that had an interface when it was read.
    region = dataclasses.replace(host.region(SILENT), interface_id=DFL_INTERFACE)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        hands.program(region, host.bitstream(), 1, soon())


def test_a_port_that_is_gone_cannot_be_programmed(host, hands):
    region = dataclasses.replace(host.region(), number=5)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE, match="port"):
        hands.program(region, host.bitstream(), 1, soon())


def test_a_later_operation_comes_first(host, hands):
    program(host, hands, epoch=9)
    with pytest.raises(EpochRefused):
        program(host, hands, epoch=8)


def test_ports_are_released_and_come_back(host, hands):
    hands.change(card(host), 1, soon(), fpga.set_ports, 2)
    assert host.card(PORTED).ports == ()
    hands.change(card(host), 2, soon(), fpga.set_ports, 0)
    assert len(host.card(PORTED).ports) == 2


def test_who_keeps_a_port_is_named(host, hands):
    host.kernel.open_node("dfl-port.2", 77, "fpgadiag")
    with pytest.raises(exception.DeviceInUse, match="fpgadiag"):
        hands.change(card(host), 1, soon(), fpga.set_ports, 2)
