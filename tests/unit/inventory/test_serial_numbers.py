# SPDX-License-Identifier: Apache-2.0

"""A card stays the same card when its serial number becomes readable."""

import pathlib

import pytest

from os_acc import exception
from os_acc.testing import TestHost, instance
from tests.unit.fpga import CARD, GZIP, held, upload

FPGA = "0000:5e:00.0"


def show_number(bench: TestHost, address: str, number: str = "00-1b") -> None:
    """Make the number readable, as another kernel or a rule of udev's does."""
    device = pathlib.Path(bench.root, "sys/bus/pci/devices", address)
    (device / "serial_number").write_text(f"{number}\n")


def test_the_device_goes_back_to_its_driver(bench):
    before = bench.drivers(FPGA)
    bench.plug(1, FPGA)
    show_number(bench, FPGA)
    assert bench.unplug(1) == 1
    assert bench.drivers(FPGA) == before


def test_it_is_made_ready_again_for_its_guest(bench):
    (entry,) = bench.plug(1, FPGA)
    bench.kernel.reboot()
    show_number(bench, FPGA)
    bench.restart()
    (again,) = bench.manager.plug(instance(1), None, None)
    assert again["uuid"] == entry["uuid"]
    assert bench.drivers(FPGA) == ["vfio-pci"]


def test_another_number_than_before_is_another_card(bench):
    show_number(bench, FPGA)
    bench.plug(1, FPGA)
    show_number(bench, FPGA, "00-1c")
    with pytest.raises(exception.DeviceChanged, match="00-1c"):
        bench.manager.plug(instance(1), None, None)


def test_a_region_goes_on_being_offered_and_programmed(fpgas):
    upload(fpgas)
    before = fpgas.provider(CARD).uuid
    fpgas.plug(1, CARD, function_id=GZIP)
    show_number(fpgas, CARD)
    offered = fpgas.provider(CARD)
    assert (offered.uuid, offered.device.plugin) == (before, "dfl")
    fpgas.kernel.reboot()
    show_number(fpgas, CARD)
    fpgas.restart()
    fpgas.manager.plug(instance(1), None, None)
    assert held(fpgas, CARD) == GZIP
    assert fpgas.drivers(CARD) == ["vfio-pci"]
