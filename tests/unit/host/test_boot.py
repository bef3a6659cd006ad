# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from os_acc.exception import HostStepFailed, StepReason
from os_acc.host.attributes import boot_id
from tests.expected_errors import has
from tests.unit.host.tree import Sysfs

PATH = "proc/sys/kernel/random/boot_id"


def test_the_boot_has_a_uuid(sysfs: Sysfs) -> None:
    sysfs.put(PATH, "0e2d3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6")
    assert boot_id(sysfs.root) == "0e2d3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"


def test_the_running_boot_keeps_its_uuid() -> None:
    assert boot_id("/") == boot_id("/")


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_without_a_uuid_nobody_knows_which_boot_it_is(
    sysfs: Sysfs, text: str | None
) -> None:
    if text is not None:
        sysfs.put(PATH, text)
    with pytest.raises(
        HostStepFailed, check=has(reason=StepReason.REFUSED), match="boot_id"
    ):
        boot_id(sysfs.root)
