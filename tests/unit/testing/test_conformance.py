# SPDX-License-Identifier: Apache-2.0

"""Plugins of the library conform; a plugin with a bug fails the check for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from os_acc.plugins import base
from os_acc.plugins.pci import PciPlugin
from os_acc.testing import HostSpec, TestHost, conformance, hosts


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with TestHost(tmp_path, hosts.two_socket_host()) as host:
        yield host


@pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
def test_the_generic_plugin_conforms(check: conformance.Check, host: TestHost) -> None:
    check(host, "pci")


@pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
def test_the_dfl_plugin_conforms(check: conformance.Check, tmp_path: Path) -> None:
    with TestHost(tmp_path, HostSpec((hosts.dfl("0000:3b"),))) as host:
        check(host, "dfl")


@pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
def test_each_check_fails_without_a_device(
    check: conformance.Check, host: TestHost
) -> None:
    with pytest.raises(conformance.RuleBroken, match="offers a device"):
        check(host, "absent")


def test_traits_that_change_are_found(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, numbers = PciPlugin.discover, itertools.count()

    def discover(
        self: PciPlugin, candidates: base.Candidates
    ) -> Iterable[base.Device | base.RejectedDevice]:
        trait = f"CUSTOM_SCAN_{next(numbers)}"
        for each in right(self, candidates):
            if isinstance(each, base.Device):
                yield dataclasses.replace(each, traits=frozenset({trait}))

    monkeypatch.setattr(PciPlugin, "discover", discover)
    with pytest.raises(conformance.RuleBroken, match="two scans"):
        conformance.discovery_is_stable(host, "pci")


def test_a_scan_that_writes_is_found(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = PciPlugin.discover

    def discover(
        self: PciPlugin, candidates: base.Candidates
    ) -> Iterable[base.Device | base.RejectedDevice]:
        address = str(candidates.usable[0].function.address)
        device = host.kernel.path("sys/bus/pci/devices", address)
        host.kernel.write(f"{device}/driver_override", "vfio-pci")
        return right(self, candidates)

    monkeypatch.setattr(PciPlugin, "discover", discover)
    with pytest.raises(conformance.RuleBroken, match="writes nothing"):
        conformance.discovery_only_reads(host, "pci")


def test_a_device_lost_in_a_restart_is_found(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, started = PciPlugin.discover, set[PciPlugin]()

    def discover(
        self: PciPlugin, candidates: base.Candidates
    ) -> Iterable[base.Device | base.RejectedDevice]:
        started.add(self)
        found = [
            each for each in right(self, candidates) if isinstance(each, base.Device)
        ]
        return found if len(started) == 1 else found[1:]

    monkeypatch.setattr(PciPlugin, "discover", discover)
    with pytest.raises(conformance.RuleBroken, match="after a restart"):
        conformance.names_survive_restart(host, "pci")


def test_a_release_that_changes_the_host_is_found(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(
        self: PciPlugin, handle: base.AttachHandle, steps: base.PrivilegedSteps
    ) -> None:
        other = host.kernel.snapshot()[-1].address
        device = host.kernel.path("sys/bus/pci/devices", str(other))
        host.kernel.write(f"{device}/driver_override", "acme")

    monkeypatch.setattr(PciPlugin, "release", release)
    with pytest.raises(conformance.RuleBroken, match="once unplugged"):
        conformance.unplug_restores_the_host(host, "pci")
