# SPDX-License-Identifier: Apache-2.0

"""A drive is not erased in the place of another one of its model."""

import dataclasses
import os
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.nvme import erasing, survey
from os_acc.testing import FakeKernel
from os_acc.testing.device_specs import BLOCK, NvmeSpec
from tests.unit.privsep.nvme_drives import (
    DATA,
    DRIVE,
    FORMAT,
    LAST,
    LEASE,
    NEXT,
    PF,
    SANITIZE,
    VF,
    ZEROES,
    is_marked,
    kernel_with,
    put_on_record,
    take_over,
)


def replace_drive(kernel: FakeKernel, address: PciAddress, serial: str) -> None:
    """Replace a drive by one of its model that has this serial number."""
    old = kernel.hot_unplug(address)
    assert old.nvme is not None
    new = dataclasses.replace(old.nvme, serial=serial)
    kernel.hot_plug(dataclasses.replace(old, nvme=new))


def replace_drive_of_blank_vf(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the PF be another drive of the model, whose VF has no namespace."""
    monkeypatch.setattr(survey, "attached_to_vf", lambda *_args: ())
    (attribute,) = Path(kernel.path("sys/bus/pci/devices", str(PF))).glob(
        "nvme/*/serial"
    )
    attribute.chmod(0o600)
    attribute.write_text("B\n")


@pytest.mark.parametrize("is_begun", [False, True], ids=["before", "meanwhile"])
def test_another_drive_of_the_model_is_not_erased(tmp_path, is_begun):
    with kernel_with(tmp_path, NvmeSpec(sanicap=BLOCK, serial="A")).installed() as fake:
        put_on_record(DRIVE, LEASE)
        erasing.check(DRIVE, LEASE, SANITIZE)
        take_over(DRIVE, NEXT)
        if is_begun:
            assert erasing.erase(DRIVE, NEXT, SANITIZE) == 0.0
            fake.advance_sanitize(DRIVE, 1.0)
            fake.write_medium(DRIVE, 1, DATA)
        replace_drive(fake, DRIVE, "B")
        fake.write_medium(DRIVE, 1, DATA)
        for _attempt in range(2):
            with pytest.raises(OSError, match=r"number 'B', but that .* has 'A'"):
                erasing.erase(DRIVE, NEXT, FORMAT)
        assert fake.read_medium(DRIVE, 1).startswith(DATA)
        assert is_marked(fake, DRIVE)
        replace_drive(fake, DRIVE, "A")
        assert erasing.erase(DRIVE, NEXT, FORMAT) == 1.0
        assert fake.read_medium(DRIVE, 1) == ZEROES


def test_the_drive_of_a_blank_vf_is_known_by_its_pf(with_vfs, monkeypatch):
    put_on_record(VF, LEASE)
    erasing.check(VF, LEASE, FORMAT)
    take_over(VF, NEXT)
    replace_drive_of_blank_vf(with_vfs, monkeypatch)
    with pytest.raises(OSError, match=r"number 'B\+1', but that .* has 'QEMU0\+1'"):
        erasing.erase(VF, NEXT, FORMAT)


def test_a_lease_gets_its_own_drive_again(tmp_path):
    with kernel_with(tmp_path, NvmeSpec(serial="A")).installed() as fake:
        put_on_record(DRIVE, LEASE)
        erasing.check(DRIVE, LEASE, FORMAT)
        replace_drive(fake, DRIVE, "B")
        with pytest.raises(OSError, match="has 'A', and is not erased: put it in"):
            erasing.check(DRIVE, LEASE, FORMAT)
        replace_drive(fake, DRIVE, "A")
        erasing.check(DRIVE, LEASE, FORMAT)


def test_another_lease_gets_no_drive_with_data_that_is_not_erased(tmp_path):
    with kernel_with(tmp_path, NvmeSpec(serial="A")).installed() as fake:
        put_on_record(DRIVE, LEASE)
        fake.reboot()
        with pytest.raises(OSError, match=f"has the data of lease {LEASE}"):
            erasing.check(DRIVE, NEXT, FORMAT)
        replace_drive(fake, DRIVE, "B")
        erasing.check(DRIVE, NEXT, FORMAT)


def test_a_drive_that_replaces_an_erased_one_is_erased_as_well(tmp_path):
    with kernel_with(tmp_path, NvmeSpec(serial="A")).installed() as fake:
        assert erasing.erase(DRIVE, LEASE, FORMAT) == 1.0
        replace_drive(fake, DRIVE, "B")
        fake.write_medium(DRIVE, 1, DATA)
        assert erasing.erase(DRIVE, NEXT, FORMAT) == 1.0
        assert fake.read_medium(DRIVE, 1) == ZEROES


def test_a_blank_vf_is_not_taken_for_one_of_a_former_drive(with_vfs, monkeypatch):
    put_on_record(VF, LEASE)
    erasing.check(VF, LEASE, FORMAT)
    os.unlink(with_vfs.path(LOCKS, f"{VF}.lease"))
    # Its drive is replaced, and a plug gets the VF, whose PF shows no namespace.
    replace_drive_of_blank_vf(with_vfs, monkeypatch)
    erasing.check(VF, NEXT, FORMAT)
    assert erasing.erase(VF, LAST, FORMAT) == 1.0
