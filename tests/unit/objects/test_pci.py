# SPDX-License-Identifier: Apache-2.0

"""Addresses and identities of PCI functions."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.exception import InvalidInput
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity, PciRole
from tests.unit.pci_addresses import ADDRESSES

IDENTITY = PciIdentity(0x8086, 0x0953, 0x8086, 0x370A, 0x01)
PLAIN = PciFunction(
    PciAddress(0, 1, 0, 0), IDENTITY, 0x010802, None, None, None, (), None, 0, ()
)


@given(ADDRESSES)
def test_an_address_is_read_as_it_is_written(address):
    assert PciAddress.parse(str(address)) == address
    assert PciAddress.parse(str(address).upper()) == address
    assert PciAddress(*address.parts) == address


@given(st.text() | st.from_regex(r"[0-9a-f:.]{0,14}", fullmatch=True))
def test_any_text_is_an_address_or_refused(text):
    try:
        found = PciAddress.parse(text)
    except InvalidInput:
        return
    assert PciAddress.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3b:00.0",
        "000:3b:00.0",
        "123456789:3b:00.0",
        "0000:3b:20.0",
        "0000:3b:00.8",
        "0000:3b:00",
        " 0000:3b:00.0",
        "0000:3b:00.0\n",
        "0000-3b-00.0",
        None,
        0,
        b"0000:3b:00.0",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(InvalidInput) as caught:
        PciAddress.parse(text)
    assert repr(text) in str(caught.value)
    assert "0000:3b:02.1" in caught.value.hint


@pytest.mark.parametrize(
    "parts",
    [
        (-1, 0, 0, 0),
        (2**32, 0, 0, 0),
        (0, 256, 0, 0),
        (0, 0, 32, 0),
        (0, 0, 0, 8),
        (0, 0, 0, True),
        (0, 0, 0, 1.0),
        ("0", 0, 0, 0),
        (None, 0, 0, 0),
    ],
)
def test_a_part_out_of_its_range_is_refused(parts):
    with pytest.raises(InvalidInput):
        PciAddress(*parts)


def test_addresses_are_sorted_by_number_not_by_text():
    texts = ["10000:00:00.0", "ffff:00:00.0", "0000:00:10.0", "0000:00:02.1"]
    assert [str(each) for each in sorted(map(PciAddress.parse, texts))] == texts[::-1]


def test_an_identity_is_shown_as_lspci_shows_it():
    assert str(IDENTITY) == "8086:0953:8086:370a:01"
    assert str(PciIdentity(*IDENTITY.numbers, serial="S1")).endswith(":01:S1")


@pytest.mark.parametrize(
    ("one", "other", "may_be"),
    [("", "", True), ("1", "1", True), ("", "1", True), ("1", "2", False)],
)
def test_a_serial_number_that_cannot_be_read_says_nothing(one, other, may_be):
    first, second = (
        PciIdentity(*IDENTITY.numbers, serial=each) for each in (one, other)
    )
    assert first.may_be(second) is second.may_be(first) is may_be
    another = dataclasses.replace(second, revision=second.revision + 1)
    assert not first.may_be(another)


@pytest.mark.parametrize(
    ("one", "other", "may_be"),
    [("1", "1", True), ("1", "2", False), ("1", "", False), ("", "", False)],
)
def test_a_new_firmware_changes_the_ids_of_a_drive_but_the_vendor(one, other, may_be):
    old = PciIdentity(*IDENTITY.numbers, drive=one)
    new = dataclasses.replace(old, revision=old.revision + 1, drive=other)
    assert old.may_be(new) is new.may_be(old) is may_be
    assert not old.may_be(dataclasses.replace(new, vendor=old.vendor + 1))


@pytest.mark.parametrize(
    ("physfn", "total", "role"),
    [
        (None, 0, PciRole.PLAIN),
        (None, 8, PciRole.PF),
        (PciAddress(0, 0, 0, 0), 0, PciRole.VF),
    ],
)
def test_a_function_has_one_role(physfn, total, role):
    function = dataclasses.replace(PLAIN, physfn=physfn, total_vfs=total)
    assert function.role is role


@pytest.mark.parametrize(
    ("class_code", "header", "expected"),
    [
        (0x060400, True, True),
        (0x088000, True, True),
        (0x060000, False, True),
        (0x060100, False, True),
        (0x068000, False, False),
        (0x030000, False, False),
    ],
)
def test_the_header_makes_a_bridge_and_the_class_the_chipset(
    class_code, header, expected
):
    function = dataclasses.replace(
        PLAIN, class_code=class_code, has_bridge_header=header
    )
    assert function.is_bridge is expected
