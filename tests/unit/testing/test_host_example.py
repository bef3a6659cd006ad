# SPDX-License-Identifier: Apache-2.0

"""The example of doc/source/contributor/test-host.rst."""

from __future__ import annotations

from pathlib import Path

import pytest

from os_acc import exception
from os_acc.testing import FunctionSpec, HostSpec, TestHost

CARD = "0000:3b:00.0"
SPEC = HostSpec(
    (
        FunctionSpec(
            CARD, vendor=0x1D0F, product=0x7064, class_code=0x120000, driver="acme"
        ),
    )
)


def test_a_card_goes_to_a_guest_and_comes_back(tmp_path: Path) -> None:
    with TestHost(tmp_path, SPEC) as host:
        (entry,) = host.plug(1, CARD)
        assert entry["pci_id"] == CARD
        assert host.drivers(CARD) == ["vfio-pci"]
        assert host.unplug(1) == 1
        assert host.drivers(CARD) == ["acme"]


def test_a_guest_that_runs_keeps_its_card(tmp_path: Path) -> None:
    with TestHost(tmp_path, SPEC, write_timeout=5.0) as host:
        host.plug(1, CARD)
        host.kernel.hold(CARD)
        with pytest.raises(exception.DevicesUnreleased):
            host.unplug(1)
        assert host.plugged(1) == [CARD]


def test_the_service_remembers_its_leases(tmp_path: Path) -> None:
    with TestHost(tmp_path, SPEC) as host:
        host.plug(1, CARD)
        host.restart()
        assert host.plugged(1) == [CARD]


def test_the_helper_is_a_process_of_its_own(tmp_path: Path) -> None:
    with TestHost(tmp_path, SPEC, separate_helper=True) as host:
        host.plug(1, CARD)
        host.unplug(1)
        assert host.drivers(CARD) == ["acme"]
