# SPDX-License-Identifier: Apache-2.0

"""The plugin of NVMe devices, from plug to erasure."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.cmd.checks import devices
from os_acc.cmd.checks.context import CheckContext
from os_acc.objects.device import Erasure
from os_acc.privsep.nvme import notes
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.nvme_specs import BLOCK, SEVERAL, NvmeSpec

DRIVE = "0000:d9:00.0"
DATA = b"data of a guest." * 512
ZEROES = bytes(1 << 16)
ERASES = {"os_acc_nvme": {"erase_methods": ["sanitize-block", "format"]}}


def host_with(directory: Path, spec: NvmeSpec) -> TestHost:
    drive = dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=spec)
    return TestHost(directory, HostSpec((drive,)), groups=ERASES)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with host_with(tmp_path, NvmeSpec()) as host:
        yield host


def is_marked(host: TestHost) -> bool:
    return os.path.exists(host.kernel.path(notes.MARKS, DRIVE))


def test_a_drive_keeps_its_provider_whether_it_is_erased_or_not(
    host: TestHost,
) -> None:
    erased = host.provider(DRIVE)
    assert erased.device.plugin == "nvme"
    assert erased.device.erasure is Erasure.PLUGIN
    host.groups["os_acc_nvme"] = {"erase_methods": []}
    host.restart()
    plain = host.provider(DRIVE)
    assert plain.device.plugin == "pci"
    assert (plain.name, plain.uuid) == (erased.name, erased.uuid)
    assert plain.device.resource_class == erased.device.resource_class


def test_a_drive_is_marked_while_a_guest_has_it(host: TestHost) -> None:
    host.plug(1, DRIVE)
    assert is_marked(host)


def test_a_drive_that_cannot_be_erased_is_never_plugged(tmp_path: Path) -> None:
    spec = NvmeSpec(sanicap=BLOCK, cmic=SEVERAL, oacs=0)
    with host_with(tmp_path, spec) as host:
        with pytest.raises(exception.HostStepFailed, match="may have other controll"):
            host.plug(1, DRIVE)
        assert host.drivers(DRIVE) == ["nvme"]
        assert not is_marked(host)


def test_a_plug_that_fails_early_leaves_no_mark(host: TestHost) -> None:
    host.kernel.fail(DRIVE, "driver_override")
    with pytest.raises(exception.OsAccError):
        host.plug(1, DRIVE)
    assert host.drivers(DRIVE) == ["nvme"]
    assert not is_marked(host)


def test_missing_udev_rules_are_reported_where_drives_are_offered(
    host: TestHost,
) -> None:
    def findings() -> list[str]:
        context = CheckContext(host.config(), host.root, None)
        return [each.what for each in devices.udev_rules(context)]

    assert host.manager
    assert findings() == [
        f"udev and LVM would scan the data of guests on {DRIVE}: 50-os-acc.rules is "
        "missing"
    ]
    rules = Path(host.root, "etc/udev/rules.d/50-os-acc.rules")
    rules.parent.mkdir(parents=True)
    rules.touch()
    assert findings() == []
    rules.unlink()
    host.groups["os_acc_nvme"] = {"erase_methods": []}
    host.restart()
    assert findings() == []
