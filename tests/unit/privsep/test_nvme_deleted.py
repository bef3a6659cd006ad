# SPDX-License-Identifier: Apache-2.0

"""The data of namespaces that a guest has detached or deleted, on simulated drives."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.nvme import SanitizeAction
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.privsep.nvme import erasing, survey
from os_acc.privsep.nvme.commands import AdminQueue
from os_acc.testing import FakeKernel
from os_acc.testing.device_specs import BLOCK, FORMATS, MANAGES, NvmeSpec
from tests.unit.privsep.nvme_drives import (
    CRYPTO_FORMAT,
    DATA,
    DRIVE,
    FORMAT,
    LEASE,
    SANITIZE,
    kernel_with,
)

OTHER = "0000:da:00.0"


@pytest.fixture(params=[(), (1,)], ids=["all deleted", "a small one left"])
def kernel_after_deletion(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[FakeKernel]:
    oacs = FORMATS | MANAGES
    spec = NvmeSpec(request.param, oacs=oacs, unvmcap=1 << 40, sanicap=BLOCK)
    with kernel_with(tmp_path, spec).installed() as kernel:
        yield kernel


def test_namespaces_that_a_guest_detached_are_not_forgotten(tmp_path):
    spec = NvmeSpec((), unattached=(5,), oacs=1 << 1 | MANAGES)
    with (
        kernel_with(tmp_path, spec).installed(),
        pytest.raises(OSError, match="namespace 5 is not attached"),
    ):
        erasing.erase(DRIVE, LEASE, FORMAT)


def test_the_data_of_a_deleted_namespace_is_not_forgotten(kernel_after_deletion):
    """Its guest has deleted the namespace, and perhaps made a small one."""
    for methods in (CRYPTO_FORMAT, FORMAT, (EraseMethod.DEALLOCATE,)):
        with pytest.raises(OSError, match="it has capacity without a namespace"):
            erasing.erase(DRIVE, LEASE, methods)
    with pytest.raises(OSError, match="only Sanitize reaches"):
        erasing.check(DRIVE, LEASE, FORMAT)
    # Formats come first for the operator, and are not allowed.
    methods = (*CRYPTO_FORMAT, *FORMAT, *SANITIZE)
    assert erasing.erase(DRIVE, LEASE, methods) == 0.0
    assert kernel_after_deletion.advance_sanitize(DRIVE, 1.0)


def test_a_drive_whose_guest_left_no_namespace_is_erased_and_kept(tmp_path):
    spec = NvmeSpec((), oacs=FORMATS | MANAGES, unvmcap=1 << 40, sanicap=BLOCK)
    with kernel_with(tmp_path, spec).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.advance_sanitize(DRIVE, 1.0)
        for _attempt in range(2):
            with pytest.raises(OSError, match="is erased, but has no namespace"):
                erasing.erase(DRIVE, LEASE, SANITIZE)
        queue = survey.wait_for_queue(DRIVE)
        assert "no namespace attached" in erasing.refusal(DRIVE, queue, SANITIZE)


def test_a_drive_without_namespaces_is_sanitized(tmp_path):
    with kernel_with(tmp_path, NvmeSpec((), sanicap=BLOCK)).installed() as kernel:
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 0.0
        kernel.advance_sanitize(DRIVE, 1.0)
        assert erasing.erase(DRIVE, LEASE, SANITIZE) == 1.0


def test_a_drive_that_lists_no_namespace_is_neither_plugged_nor_erased(tmp_path):
    with kernel_with(tmp_path, NvmeSpec((), oacs=0)).installed():
        # Without Namespace Management a guest can delete none: the answer is wrong.
        for step in (erasing.check, erasing.erase):
            with pytest.raises(OSError, match="it lists no namespace"):
                step(DRIVE, LEASE, FORMAT)


@pytest.mark.parametrize("answer", range(1, 13))
@pytest.mark.parametrize("sanicap", [0, BLOCK])
@pytest.mark.parametrize("oacs", [FORMATS, FORMATS | MANAGES])
def test_a_drive_that_lists_no_namespace_once_is_not_taken_for_erased(
    tmp_path, sanicap, oacs, answer
):
    """Its firmware reports success, and sends no list."""
    with kernel_with(
        tmp_path, NvmeSpec(oacs=oacs, sanicap=sanicap)
    ).installed() as fake:
        fake.write_medium(DRIVE, 1, DATA)
        fake.ignore(DRIVE, "identify", nth=answer)
        for _call in range(2):
            with contextlib.suppress(OSError):
                erasing.erase(DRIVE, LEASE, (*SANITIZE, *FORMAT))
            erased = not fake.read_medium(DRIVE, 1).startswith(DATA)
            assert erased or not erasing.read_note(DRIVE, LEASE).is_done
            fake.advance_sanitize(DRIVE, 1.0)


def test_a_blank_drive_is_not_sanitized_by_a_number_that_another_drive_has(
    tmp_path, monkeypatch
):
    """No disk of a blank drive is open, which would keep the number."""
    with kernel_with(tmp_path, NvmeSpec((), sanicap=BLOCK)).installed() as kernel:
        sanitize = AdminQueue.sanitize

        def replace_and_sanitize(queue: AdminQueue, action: SanitizeAction) -> None:
            drive = kernel.hot_unplug(DRIVE)
            assert drive.nvme is not None
            spec = dataclasses.replace(drive.nvme, namespaces=(1,), serial="OTHER")
            (controller,) = drive.devices
            other = dataclasses.replace(
                drive,
                address=OTHER,
                nvme=spec,
                devices=(dataclasses.replace(controller, children=()),),
            )
            kernel.hot_plug(other)
            kernel.write_medium(OTHER, 1, DATA)
            sanitize(queue, action)

        monkeypatch.setattr(AdminQueue, "sanitize", replace_and_sanitize)
        with pytest.raises(OSError, match="No such device"):
            erasing.erase(DRIVE, LEASE, SANITIZE)
        assert not kernel.advance_sanitize(OTHER, 1.0)
        assert kernel.read_medium(OTHER, 1).startswith(DATA)
