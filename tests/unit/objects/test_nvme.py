# SPDX-License-Identifier: Apache-2.0

"""Data structures of NVMe controllers, and the rules for erasing them."""

import dataclasses
import struct

import pytest

from os_acc import exception
from os_acc.objects import nvme
from os_acc.objects.nvme import (
    NvmeController,
    NvmeHealth,
    NvmeNamespace,
    ReadValue,
    SanitizeAction,
    SanitizeState,
    SanitizeStatus,
)
from os_acc.objects.nvme_erasure import EraseMethod, NvmeDevice, choose, refusal

CONTROLLER = NvmeController(
    number=0,
    shares_subsystem=False,
    formats=True,
    manages=True,
    unallocated=0,
    virtualizes=False,
    sanitizes=frozenset(SanitizeAction),
    format_reaches_all=False,
    erase_reaches_all=False,
    crypto_erases=True,
    deallocates=True,
)
NAMESPACE = NvmeNamespace(1, 128, 512, 0, False, None, ReadValue.ZEROES)
DRIVE = NvmeDevice(CONTROLLER, (NAMESPACE,))
ALL = tuple(EraseMethod)
SANITIZE, FORMATS = ALL[:3], (EraseMethod.FORMAT_CRYPTO, EraseMethod.FORMAT)


def page(*fields: tuple[int, bytes], size: int = nvme.IDENTIFY_SIZE) -> bytes:
    data = bytearray(size)
    for at, value in fields:
        data[at : at + len(value)] = value
    return bytes(data)


def allowed(device: NvmeDevice) -> set[EraseMethod]:
    return {method for method in ALL if not refusal(device, method)}


def with_controller(**changes: bool) -> NvmeDevice:
    controller = dataclasses.replace(CONTROLLER, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(DRIVE, controller=controller)


def test_a_controller_is_parsed():
    found = NvmeController.parse(
        page(
            (76, b"\x02"),
            (78, b"\x05\x01"),
            (256, struct.pack("<H", 1 << 1 | 1 << 7)),
            (328, struct.pack("<I", 0b101)),
            (520, struct.pack("<H", 1 << 2)),
            (524, b"\x06"),
        )
    )
    assert found == NvmeController(
        number=0x105,
        shares_subsystem=True,
        formats=True,
        manages=False,
        unallocated=0,
        virtualizes=True,
        sanitizes=frozenset({SanitizeAction.CRYPTO_ERASE, SanitizeAction.OVERWRITE}),
        format_reaches_all=False,
        erase_reaches_all=True,
        crypto_erases=True,
        deallocates=True,
    )


@pytest.mark.parametrize(("oacs", "found"), [(1 << 3, 3 << 64), (0, 0)])
def test_the_capacity_without_a_namespace_is_parsed(oacs, found):
    """Bytes 296 to 311; reserved without Namespace Management."""
    capacity = (3 << 64).to_bytes(16, "little")
    data = page((256, struct.pack("<H", oacs)), (296, capacity))
    assert NvmeController.parse(data).unallocated == found


def test_a_namespace_keeps_its_format():
    found = NvmeNamespace.parse(
        3,
        page(
            (0, struct.pack("<Q", 1000)),
            # LBA format 1 with metadata at the end of the data, and protection type 2
            # in the first bytes of the metadata.
            (25, b"\x01\x11"),
            (29, b"\x0a"),
            (30, b"\x01"),
            (33, b"\x02"),
            (128 + 4, struct.pack("<I", 12 << 16 | 8)),
        ),
    )
    assert (found.blocks, found.block_size) == (1000, 4096)
    assert found.format == 0x1 | 0x10 | 2 << 5 | 1 << 8
    assert found.is_shareable
    assert found.read_value is ReadValue.ONES
    assert found.formatted is None


def test_the_progress_of_a_format_is_what_remains():
    running = page((128, struct.pack("<I", 9 << 16)), (32, bytes([0x80 | 25])))
    assert NvmeNamespace.parse(1, running).formatted == 0.75
    idle = page((128, struct.pack("<I", 9 << 16)), (32, b"\x80"))
    assert NvmeNamespace.parse(1, idle).formatted is None


def test_lists_end_where_the_specification_ends_them():
    assert nvme.parse_namespaces(page((0, struct.pack("<4I", 1, 7, 0, 9)))) == (1, 7)
    every = struct.pack("<1024I", *range(1, 1025))
    assert len(nvme.parse_namespaces(every)) == 1024
    assert nvme.parse_controllers(page((0, struct.pack("<4H", 2, 0, 5, 9)))) == (0, 5)
    (only,) = nvme.parse_secondaries(
        page((0, b"\x01"), (32, struct.pack("<HHB3xHHH", 6, 0, 1, 2, 0, 0)))
    )
    assert (only.number, only.vf_number, only.is_online) == (6, 2, True)


@pytest.mark.parametrize("data", [b"", bytes(512), page((0, b"\xff" * 4))])
def test_nonsense_is_rejected(data):
    with pytest.raises(exception.InvalidInput):
        nvme.parse_controllers(data)
    with pytest.raises(exception.InvalidInput):
        nvme.parse_secondaries(data)


def test_the_state_of_a_sanitize_operation_is_parsed():
    running = SanitizeStatus.parse(page((0, b"\x00\x40\x02\x00\x04"), size=512))
    assert (running.is_running, running.progress) == (True, 0.25)
    done = SanitizeStatus.parse(page((0, b"\xff\xff\x01\x01"), size=512))
    assert (done.state, done.is_erased) == (SanitizeState.COMPLETED, True)
    assert SanitizeStatus.parse(page((2, b"\x07"), size=512)).state is None


@pytest.mark.parametrize(
    ("warning", "spare", "fault"),
    [
        (0, 100, ""),
        (0b10, 100, ""),
        (0b100, 100, "its reliability is degraded by errors of the media"),
        (0b1000, 100, "its media are read-only"),
        (0, 9, "its spare capacity is below the threshold"),
        (1, 9, "its spare capacity is below the threshold"),
    ],
)
def test_a_fault_is_what_does_not_pass(warning, spare, fault):
    log = page((0, bytes([warning])), (3, bytes([spare, 10])), size=512)
    assert NvmeHealth.parse(log).fault == fault


def test_a_drive_of_its_own_may_be_erased_in_any_way():
    assert allowed(DRIVE) == set(ALL)


def test_a_shared_subsystem_is_not_sanitized():
    for neighbours in (frozenset({7}), None):
        device = dataclasses.replace(DRIVE, neighbours=neighbours)
        assert allowed(device) == set(ALL) - set(SANITIZE)
    vf = dataclasses.replace(DRIVE, is_vf=True)
    assert allowed(vf) == set(ALL) - set(SANITIZE)


def test_an_operation_that_the_controller_lacks_is_not_started():
    device = with_controller(formats=False, deallocates=False)
    assert allowed(device) == set(SANITIZE)
    assert EraseMethod.FORMAT_CRYPTO not in allowed(
        with_controller(crypto_erases=False)
    )


@pytest.mark.parametrize("bit", ["format_reaches_all", "erase_reaches_all"])
def test_fna_allows_a_format_only_without_neighbours(bit):
    device = with_controller(**{bit: True})
    assert set(FORMATS) <= allowed(device)
    for shared in (
        dataclasses.replace(device, is_vf=True),
        dataclasses.replace(device, neighbours=frozenset({7})),
        dataclasses.replace(device, neighbours=None),
    ):
        assert not allowed(shared) & set(FORMATS)


def test_a_shared_namespace_is_not_erased():
    device = dataclasses.replace(DRIVE, shared=(1,), neighbours=frozenset({7}))
    assert allowed(device) == set()


def test_only_sanitize_reaches_detached_namespaces():
    device = dataclasses.replace(DRIVE, unattached=(5,))
    assert allowed(device) == set(SANITIZE)
    # To a VF, they are namespaces of others.
    assert FORMATS[1] in allowed(dataclasses.replace(device, is_vf=True))


def test_a_drive_needs_all_its_namespaces_attached():
    drive = with_controller(manages=True)
    assert drive.lack == ""
    for left in ({"unattached": (5,)}, {"namespaces": ()}):
        lacking = dataclasses.replace(drive, **left)
        assert "attach" in lacking.lack
        assert dataclasses.replace(lacking, is_vf=True).lack == ""
        # Without Namespace Management, no guest has removed it.
        assert dataclasses.replace(with_controller(manages=False), **left).lack == ""
    # A VF may have it.
    physical = with_controller(manages=True, virtualizes=True)
    assert dataclasses.replace(physical, unattached=(5,)).lack == ""


def test_a_deallocation_has_to_guarantee_what_is_read():
    unknown = dataclasses.replace(NAMESPACE, read_value=ReadValue.UNKNOWN)
    device = dataclasses.replace(DRIVE, namespaces=(NAMESPACE, unknown))
    assert EraseMethod.DEALLOCATE not in allowed(device)


def test_the_first_method_that_is_allowed_is_chosen():
    device = dataclasses.replace(DRIVE, neighbours=frozenset({7}))
    choice = choose(device, (EraseMethod.SANITIZE_BLOCK, EraseMethod.FORMAT))
    assert choice.method is EraseMethod.FORMAT
    assert str(choice) == (
        "sanitize-block: Sanitize erases the whole subsystem, which has controller 7 "
        "as well"
    )
    assert str(choose(DRIVE, ())) == "no method is configured"
