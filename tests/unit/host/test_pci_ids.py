# SPDX-License-Identifier: Apache-2.0

"""Model names come from the database of pciutils, if there is one."""

import os
from pathlib import Path

import pytest

from os_acc.host import pci_ids
from os_acc.host.pci_ids import ModelNames
from os_acc.objects.pci import PciIdentity
from os_acc.testing import hosts


def identity(vendor: int, product: int) -> PciIdentity:
    return PciIdentity(vendor, product, 0, 0, 0)


A40, CARD, VF = identity(0x10DE, 0x2235), identity(0x8086, 0x0B2B), identity(1, 2)
UNKNOWN = identity(0x8086, 0x4940)


def write(root: Path, text: str | bytes, path: str = pci_ids.PATHS[0]) -> None:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_a_device_has_the_name_that_lspci_prints(tmp_path):
    hosts.install_model_names(str(tmp_path))
    names = ModelNames.read(str(tmp_path), [A40, CARD, UNKNOWN, VF])
    assert names.short(A40) == "GA102GL [A40]"
    assert names.full(A40) == "NVIDIA Corporation GA102GL [A40]"
    assert names.full(UNKNOWN) == "Intel Corporation Device 4940"
    assert names.short(UNKNOWN) == "8086:4940"
    assert names.full(VF) == names.short(VF) == "0001:0002"
    assert (names.known(UNKNOWN), names.known(VF)) == (None, None)


def test_without_the_database_a_model_is_its_numbers(tmp_path):
    names = ModelNames.read(str(tmp_path), [A40])
    assert (names.short(A40), names.full(A40)) == ("10de:2235", "10de:2235")
    assert names.known(A40) is None


def test_hwdata_has_the_database_elsewhere(tmp_path):
    write(tmp_path, hosts.MODEL_NAMES, "usr/share/hwdata/pci.ids")
    assert ModelNames.read(str(tmp_path), [A40]).known(A40) == "GA102GL [A40]"


def test_a_subsystem_and_a_class_are_no_devices(tmp_path):
    text = "10de  NVIDIA\n\t1111  Another\n\t\t10de 2235  Board\nC 03  Display\n"
    write(tmp_path, text + "\t00  VGA\n\t2235  None\n")
    assert ModelNames.read(str(tmp_path), [A40]).known(A40) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n\t2235  Without a vendor\n",
        b"10d_  Not a number\n\t2235  Below it\n",
        b"10de\n\t22\n\t+235  Sign\n",
        b"\xff\xfe\x00",
    ],
    ids=["empty", "no vendor", "no number", "cut off", "not text"],
)
def test_a_malformed_database_names_nothing(tmp_path, text):
    write(tmp_path, text)
    assert ModelNames.read(str(tmp_path), [A40]).known(A40) is None


def test_a_name_can_be_printed_and_is_short(tmp_path):
    write(tmp_path, b"10de  N\x1b[31m\xff\n\t2235  " + b"x" * 500 + b"\n")
    names = ModelNames.read(str(tmp_path), [A40])
    assert names.full(A40) == "N\ufffd[31m\ufffd " + "x" * 80


def test_a_database_that_cannot_be_read_is_none(tmp_path):
    os.makedirs(tmp_path / pci_ids.PATHS[0])
    assert ModelNames.read(str(tmp_path), [A40]).known(A40) is None
