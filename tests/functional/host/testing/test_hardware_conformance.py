# SPDX-License-Identifier: Apache-2.0

"""Checks on hardware compare all that a plug changes, on the driver of the host too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.plugins import base
from os_acc.plugins.nvidia import NvidiaPlugin
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.conformance import hardware, report
from tests.unit.plugins import staying_vendor, vgpus
from tests.unit.plugins.vgpus import host as vgpu_host  # noqa: F401

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
VGPU, STAYING = vgpus.VFS[0], staying_vendor.VFS[0]


@pytest.fixture
def staying_host(
    tmp_path: Path, install_plugins: Callable[..., None]
) -> Iterator[TestHost]:
    install_plugins(acme=f"{staying_vendor.HERE}:AcmeGpu")
    with staying_vendor.make(tmp_path) as host:
        yield host


@pytest.fixture
def prebound_host(tmp_path: Path) -> Iterator[TestHost]:
    spec = '{"address": "0000:17:00.*", "prebound": true}'
    with TestHost(tmp_path, HostSpec(hosts.gpu("0000:17")), device_spec=[spec]) as host:
        host.bind(GPU, "vfio-pci")
        host.bind(AUDIO, "vfio-pci")
        yield host


def details(
    host: TestHost, unit: str, *checks: hardware.Check
) -> dict[str, tuple[str, str]]:
    """Return the result and the broken rule of each check on a unit."""
    address = PciAddress.parse(unit)
    with hardware.Bench.alone(host.restart, address) as bench:
        found = list(report.run(bench, checks or hardware.CHECKS))
    return {each.name: (each.result.value, each.detail) for each in found}


@pytest.mark.parametrize(
    ("fixture", "unit"),
    [("vgpu_host", VGPU), ("staying_host", STAYING), ("prebound_host", GPU)],
    ids=["vgpu", "staying", "prebound"],
)
def test_a_device_that_keeps_its_driver_passes(request, fixture, unit):
    host: TestHost = request.getfixturevalue(fixture)
    before = host.kernel.snapshot()

    found = details(host, unit)

    assert found == {each.__name__: ("passed", "") for each in hardware.CHECKS}
    assert host.kernel.snapshot() == before


@pytest.mark.parametrize(
    ("fixture", "unit", "plugin", "left"),
    [
        ("vgpu_host", VGPU, NvidiaPlugin, f"vgpu_types=({vgpus.HALF},)"),
        ("staying_host", STAYING, staying_vendor.AcmeGpu, "offered=(True,)"),
    ],
    ids=["vgpu", "staying"],
)
def test_a_plugin_that_leaves_its_work_behind_is_reported(
    request, monkeypatch, fixture, unit, plugin, left
):
    host: TestHost = request.getfixturevalue(fixture)
    monkeypatch.setattr(plugin, "release", base.PluginBase.release)

    (result, detail), *_ = details(
        host, unit, hardware.unplug_restores_the_host
    ).values()

    assert result == "failed"
    rule, _, after = detail.partition(", after: ")
    assert rule.startswith("an unplug restores the device; before: ")
    assert (left in rule, left in after) == (False, True)


def test_a_device_that_no_plug_has_prepared_is_reported(
    vgpu_host: TestHost,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug = hardware.Bench.plug

    def undone(bench: hardware.Bench) -> list[object]:
        entries = plug(bench)
        vgpus.set_type(vgpu_host, VGPU, 0)
        return entries

    monkeypatch.setattr(hardware.Bench, "plug", undone)
    found = details(vgpu_host, VGPU, hardware.unplug_restores_the_host)
    assert found == {
        "unplug_restores_the_host": ("failed", "a plug prepares the device")
    }
