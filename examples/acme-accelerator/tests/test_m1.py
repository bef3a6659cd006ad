# SPDX-License-Identifier: Apache-2.0

"""The plugin of M1 cards and its privileged step on a simulated host."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from acme_accelerator import privsep, simulation
from os_acc import privsep as os_acc_privsep
from os_acc.plugins import base
from os_acc.testing import FunctionSpec, HostSpec, TestHost

CARD = "0000:5e:00.0"


def host_with(
    card: FunctionSpec, directory: Path, *, separate_helper: bool = False
) -> TestHost:
    # A busy machine delays the start of helpers.
    return TestHost(
        directory,
        HostSpec((card,)),
        enabled_plugins=["acme_m1"],
        device_spec=['{"vendor_id": "ace0", "product_id": "0e10"}'],
        separate_helper=separate_helper,
        plug_timeout=300,
        write_timeout=120,
    )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with host_with(simulation.m1_card(CARD), tmp_path) as host:
        yield host


def mode(host: TestHost) -> str:
    directory = Path(host.root, "sys/bus/pci/devices", CARD)
    return (directory / "acme_mode").read_text().strip()


def test_a_card_is_one_provider(host: TestHost) -> None:
    device = host.provider(CARD).device
    assert device.plugin == "acme_m1"
    assert len(device.handles) == 1


def test_a_guest_gets_the_card_in_its_mode(host: TestHost) -> None:
    host.plug(1, CARD)
    assert host.drivers(CARD) == ["vfio-pci"]
    assert mode(host) == "guest"


def test_the_host_gets_the_card_back_in_its_own_mode(host: TestHost) -> None:
    host.plug(1, CARD)
    assert host.unplug(1) == 1
    assert host.drivers(CARD) == ["acme"]
    assert mode(host) == "host"


def test_the_step_runs_in_a_helper_as_in_production(tmp_path: Path) -> None:
    card = simulation.m1_card(CARD)
    with host_with(card, tmp_path, separate_helper=True) as host:
        host.plug(1, CARD)
        assert mode(host) == "guest"
        host.unplug(1)
        assert mode(host) == "host"


def test_a_card_that_keeps_its_mode_fails_the_plug(tmp_path: Path) -> None:
    card = simulation.m1_card(CARD, is_stuck=True)
    with host_with(card, tmp_path) as host:
        with pytest.raises(base.HostStepFailed) as caught:
            host.plug(1, CARD)
        assert caught.value.errno == errno.EIO
        assert host.plugged(1) == []
        assert host.drivers(CARD) == ["acme"]


def test_a_step_rejects_the_number_of_no_mode() -> None:
    target = os_acc_privsep.StepTarget("", base.PciAddress.parse(CARD), ())
    with pytest.raises(OSError, match="no such mode"):
        privsep.set_mode.function(target, 2)
