# SPDX-License-Identifier: Apache-2.0

"""Entry points trust no caller: rejected arguments never reach the kernel."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Mapping
from typing import Any

import pytest

from os_acc.privsep import binding, claims, fpga, holders, qat, sriov, xrt
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.request import is_driver_name

LEASE = "77777777-7777-4777-8777-77777777abcd"
PLACE, CARD = (0, 0x5E, 0, 0), (0x10EE, 0x5000, 0x10EE, 0x000E, 0)
EPOCH, SECOND = 1, 1000
INTERFACE, DIGEST = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d", "0123456789abcdef" * 8

PATHS = [
    "../../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "-x",
    "vfio-pci\n",
    "vfio-pci\0",
    "vfio\tpci",
    "ünicode",
    "\ud800",
    "x" * 65,
    "x" * 100_000,
]
WRONG = [
    None,
    True,
    -1,
    1.0,
    2**63,
    10**5000,
    float("nan"),
    "1",
    b"1",
    "",
    "../..",
    {},
    set(),
    object(),
]


def kind(value: object) -> str:
    """Return a short name for a test; some values cannot be formatted."""
    return type(value).__name__


#: Valid values for the fields of all requests.
VALID: Mapping[str, Any] = {
    "group": 7,
    "targets": ((PLACE, CARD, "", "", ""),),
    "addresses": (PLACE,),
    "card": PLACE,
    "identity": CARD,
    "count": 3,
    "epoch": EPOCH,
    "milliseconds": SECOND,
    "lease": LEASE,
    **dict.fromkeys(("eraser", "releaser", "node", "instead_of"), ""),
    **dict.fromkeys(("asks_migration", "proven_free"), False),
    "use": "host",
    "number": 1,
    "interface_id": INTERFACE,
    "digest": ("sha512", DIGEST),
    "offset": 0,
    "size": 1,
    "signature": ("",) * 4,
}
take, give_back = binding.take, binding.give_back
set_num_vfs, program = sriov.set_num_vfs, fpga.program


def call(entry: Any, **changed: object) -> list[CallResult]:
    """Call an entry point with valid arguments, except for these."""
    names = inspect.signature(entry.args[0]).parameters
    assert changed.keys() <= names.keys()
    answer = entry(*({**VALID, **changed}[name] for name in names))
    return list(answer) if isinstance(answer[0], CallResult) else [answer]


def is_refused(entry: Any, **wrong: object) -> bool:
    return {outcome for outcome, *_ in call(entry, **wrong)} == {Outcome.INVALID}


@pytest.mark.parametrize(
    "entry",
    [
        *(take, give_back, claims.reserve, claims.forget, set_num_vfs),
        *(qat.set_qat_services, fpga.set_ports, program, xrt.program),
    ],
)
def test_valid_arguments_reach_the_kernel(untouchable, entry):
    with pytest.raises(AssertionError, match="reached the kernel"):
        call(entry)


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (take, "group targets epoch milliseconds"),
        (set_num_vfs, "card identity count"),
        (qat.set_qat_services, "count"),
        (xrt.program, "number"),
        (program, "card identity number interface_id digest offset size epoch"),
        (program, "milliseconds signature"),
        (fpga.set_ports, "count"),
    ],
)
def test_each_argument_has_one_type_and_a_range(untouchable, entry, names):
    for name in names.split():
        for value in WRONG:
            assert is_refused(entry, **{name: value}), (name, kind(value))


def test_both_parts_of_a_digest_are_text(untouchable):
    for value in WRONG:
        assert is_refused(program, digest=(value, DIGEST)), kind(value)
        assert is_refused(program, digest=("sha512", value)), kind(value)


@pytest.mark.parametrize("value", [None, 0, 1, "yes", []])
def test_proof_is_yes_or_no(untouchable, value):
    assert is_refused(give_back, proven_free=value)


@pytest.mark.parametrize("milliseconds", [0, 600_001])
def test_no_call_waits_for_ever(untouchable, milliseconds):
    for entry in (take, set_num_vfs, program):
        assert is_refused(entry, milliseconds=milliseconds)


@pytest.mark.parametrize(
    "place",
    [
        (0, 0, 0, 8),
        (0, 0, 32, 0),
        (0, 256, 0, 0),
        (2**32, 0, 0, 0),
        (0, 0, 0),
        (0, 0, 0, 0, 0),
        (0, 0, 0, True),
        (0, 0, 0, "0"),
        (0, 0, 0, "../.."),
        (10**5000, 0, 0, 0),
        "0000:5e:00.0",
        ["0", "0", "0", "0"],
    ],
    ids=kind,
)
def test_an_address_is_four_numbers_in_their_ranges(untouchable, place):
    assert is_refused(take, targets=((place, CARD),))
    assert is_refused(set_num_vfs, card=place)
    assert is_refused(claims.forget, addresses=(place,))
    assert holders.holders((place,))[0] == Outcome.INVALID


def test_holders_are_looked_for_at_addresses(untouchable):
    for all_parts in (*WRONG, (), [], (None,), (PLACE, "x")):
        assert holders.holders(all_parts)[0] == Outcome.INVALID, kind(all_parts)


@pytest.mark.parametrize("name", [*PATHS, None, 7, b"nvme", ("nvme",)])
def test_a_driver_is_the_name_of_one_never_a_path(untouchable, name):
    assert not is_driver_name(name)
    assert is_refused(give_back, targets=((PLACE, CARD, name, ""),))
    assert is_refused(give_back, targets=((PLACE, CARD, "", name),))
    assert is_refused(take, eraser=name)


@pytest.mark.parametrize("node", ["x" * 201, "a\n", None, 1, b"a"])
def test_a_node_is_printable_text(untouchable, node):
    assert is_refused(take, node=node)


def test_what_shows_itself_as_something_else_is_not_taken(untouchable):
    """The check and the conversion to text would see different values."""

    class Number(int):
        def __format__(self, _spec):
            return "../.."

    class Name(str):
        def encode(self, *_args):
            return b"0000:00:00.0\n1234 1111"

    place = (0, 0x5E, 0, Number(0))
    assert is_refused(take, targets=((place, CARD),))
    assert is_refused(set_num_vfs, card=place)
    assert holders.holders((place,))[0] == Outcome.INVALID
    assert is_refused(give_back, targets=((PLACE, CARD, "", Name("nvme")),))
    assert is_refused(program, digest=(Name("sha512"), DIGEST))
    assert is_refused(program, digest=("sha512", Name(DIGEST)))
    assert is_refused(program, interface_id=Name(INTERFACE))


@pytest.mark.parametrize("identity", [(), CARD[:4], (*CARD, 0), (2**16, 0, 0, 0, 0)])
def test_an_identity_is_five_numbers(untouchable, identity):
    assert is_refused(take, targets=((PLACE, identity),))
    assert is_refused(set_num_vfs, identity=identity)
    assert is_refused(program, identity=identity)


@pytest.mark.parametrize("name", [*PATHS, DIGEST[:-1], DIGEST.upper(), f"{DIGEST}\n"])
def test_a_digest_is_one_and_no_path(untouchable, name):
    assert is_refused(program, digest=("sha512", name))
    assert is_refused(program, digest=(name, DIGEST))


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "SHA512", "sha256", "shake_128"])
def test_an_algorithm_that_proves_nothing_or_another_length_is_none(
    untouchable, algorithm
):
    assert is_refused(program, digest=(algorithm, DIGEST))


@pytest.mark.parametrize(
    "interface_id", [*PATHS, INTERFACE.upper(), INTERFACE.replace("-", "")]
)
def test_an_interface_is_a_canonical_uuid(untouchable, interface_id):
    assert is_refused(program, interface_id=interface_id)


@pytest.mark.parametrize(
    "lease", ["", "unreadable", *PATHS, LEASE.upper(), LEASE.replace("-", "")]
)
def test_a_lease_is_a_canonical_uuid(untouchable, lease):
    assert is_refused(take, lease=lease)
    assert is_refused(give_back, lease=lease)
    assert is_refused(claims.reserve, lease=lease)
    assert is_refused(claims.forget, lease=lease)


@pytest.mark.parametrize("value", [*PATHS, "GUEST", "vm", None, 1, ["", LEASE], b""])
def test_a_use_and_the_lease_before_are_what_they_can_be(untouchable, value):
    assert is_refused(claims.reserve, use=value)
    assert is_refused(claims.reserve, instead_of=value)


@pytest.mark.parametrize("places", [(), (PLACE, PLACE), (PLACE[:3],), PLACE, None])
def test_what_is_forgotten_is_named_once_each(untouchable, places):
    assert is_refused(claims.forget, addresses=places)


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"size": 2**30 + 1}, {"offset": 2**30 + 1}, {"number": 8}]
)
def test_no_more_is_programmed_than_memory_can_hold(untouchable, wrong):
    assert is_refused(program, **wrong)


def test_no_call_takes_virtual_functions_away(untouchable):
    assert is_refused(set_num_vfs, count=0)


@pytest.mark.parametrize("services", [0, 0b1111, 0b1001, 1 << 5])
def test_services_that_no_device_combines_are_refused(untouchable, services):
    assert is_refused(qat.set_qat_services, count=services)


@pytest.mark.parametrize(
    "targets",
    [
        ((PLACE, CARD), (PLACE, CARD)),
        ((PLACE, CARD), None),
        ((PLACE, CARD, "nvme", "", "", ""),),
        ((PLACE,),),
        (PLACE, CARD),
    ],
)
def test_one_wrong_target_refuses_all(untouchable, targets):
    assert is_refused(take, targets=targets)


NAMED = (PLACE, CARD, "nvme", "", "", "")


@pytest.mark.parametrize(
    ("entry", "counts"),
    [(take, (1, 4, 6)), (claims.reserve, (1, 3, 4, 6)), (give_back, (2, 3, 6))],
)
def test_a_target_has_the_fields_of_its_call(untouchable, entry, counts):
    for count in counts:
        assert is_refused(entry, targets=(NAMED[:count],))


def test_what_is_not_there_leaves_no_file_behind(fake):
    nowhere = (0xFFFF, 0xFF, 0x1F, 0x7)
    card, stranger = (PLACE, CARD), (nowhere, CARD)
    taken = binding.take(7, (card, stranger), EPOCH, SECOND, LEASE)
    assert [each.outcome for each in taken] == [Outcome.UNREACHED, Outcome.GONE]
    assert sriov.set_num_vfs(nowhere, CARD, 1, EPOCH, SECOND)[0] == Outcome.GONE
    assert not os.path.exists(f"{fake.root}/run/os_acc")
    assert fake.writes() == []


@pytest.mark.parametrize("error", [errno.ENODEV, errno.ENOENT, errno.ENOTDIR])
def test_what_is_pulled_out_while_it_is_read_is_gone(fake, monkeypatch, error):
    read = fake.read

    def pulled_out(path):
        if path.endswith("/modalias"):
            raise OSError(error, "pulled out", path)
        return read(path)

    monkeypatch.setattr(fake, "read", pulled_out)
    group = fake.group("0000:5e:00.0")
    (taken,) = call(take, group=group)
    (returned,) = call(give_back, group=group, proven_free=True)
    (made,) = call(set_num_vfs)
    assert {taken[0], returned[0], made[0]} == {Outcome.GONE}
    assert fake.writes() == []


def test_a_card_does_not_program_itself_under_another_name(untouchable):
    assert is_refused(xrt.program, number=PLACE[3])
    assert is_refused(xrt.program, number=8)


def test_a_call_has_a_bounded_number_of_parts(untouchable):
    places = tuple((0, bus, slot, 0) for bus in range(64) for slot in range(32))
    assert is_refused(claims.forget, addresses=places)
