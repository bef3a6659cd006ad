# SPDX-License-Identifier: Apache-2.0

"""The DFL plugin recognises its cards, and no other plugin offers them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.plugins.dfl import DflPlugin
from os_acc.testing import (
    FunctionSpec,
    HostSpec,
    TestHost,
    hosts,
    image_directory,
)
from os_acc.testing.dfl import payload
from os_acc.testing.specs import netdev
from tests.expected_errors import raises
from tests.functional.host.operator_commands import adopt
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    INTERFACE,
    POWER_ON,
    function_trait,
    held,
    is_unknown,
    traits,
    upload,
)


def offered(bench: TestHost) -> set[str]:
    return {
        str(handle.address)
        for provider in bench.manager.providers()
        for handle in provider.device.handles
    }


def card(**changed: object) -> HostSpec:
    return HostSpec((dataclasses.replace(hosts.dfl("0000:3b"), **changed),))


# -- cards that are not bound to dfl-pci ---------------------------------------


def test_a_failed_region_is_not_given_out_for_having_no_driver(fpgas):
    upload(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        fpgas.plug(1, function_id=GZIP)
    fpgas.bind(CARD, "")
    fpgas.restart()
    refused = fpgas.rejected(CARD)
    assert refused.reason is RejectReason.UNSEEN_REGION
    assert refused.detail == "it has no driver"
    fpgas.bind(CARD, "dfl-pci")
    fpgas.plug(2, function_id=GZIP)
    assert held(fpgas) == GZIP


def test_a_card_that_another_driver_has_is_offered_by_nobody(make_fpgas):
    bench = make_fpgas(card(driver="uio_pci_generic", dfl=None))
    assert bench.rejected(CARD).detail == "bound to uio_pci_generic"


def test_a_card_that_the_operator_gave_to_vfio_is_offered_by_nobody(make_fpgas):
    tags = '{"address": "*:*:*.*", "prebound": true}'
    bench = make_fpgas(card(driver="vfio-pci", dfl=None), device_spec=[tags])
    assert bench.rejected(CARD).reason is RejectReason.UNSEEN_REGION


def test_a_card_that_was_adopted_stays_a_provider(fpgas):
    fpgas.bind(CARD, "vfio-pci")
    assert fpgas.rejected(CARD).reason is RejectReason.UNKNOWN_STATE
    adopt(fpgas, CARD, "dfl-pci")
    provider = fpgas.provider(CARD)
    assert provider.device.resource_class == "CUSTOM_ACCELERATOR_FPGA"
    assert provider.device.region is None
    assert fpgas.unplug(1) == 1
    # Its guest could program it.
    assert function_trait(POWER_ON) not in traits(fpgas)


def test_what_only_shares_an_id_with_a_card_is_somebody_elses(make_fpgas):
    """0x1000 is Silicom's N5010, and an old disk controller of Broadcom."""
    other = card(vendor=0x1000, product=0x1000, driver="", dfl=None)
    assert make_fpgas(other).provider(CARD).device.plugin == "pci"


@pytest.mark.parametrize(("subsystem", "is_known"), [(0x1771, True), (0x0001, False)])
def test_of_the_generic_id_the_subsystem_tells(make_fpgas, subsystem, is_known):
    """The kernel binds 8086:bcce only with the subsystems in its table."""
    bare = card(product=0xBCCE, subsystem_product=subsystem, driver="", dfl=None)
    bench = make_fpgas(bare)
    offered = {provider.device.plugin for provider in bench.manager.providers()}
    assert offered == (set() if is_known else {"pci"})


def test_a_port_that_names_nothing_only_goes_to_who_has_it_programmed(fpgas):
    """The port is in reset after a failure, and the record of that is lost."""
    upload(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        fpgas.plug(1, function_id=GZIP)
    shutil.rmtree(fpgas.state_path)
    fpgas.restart()
    assert not is_unknown(fpgas)
    assert fpgas.provider(CARD).device.region.function_id is None
    with raises(exception.RegionReason.UNKNOWN):
        fpgas.plug(2)
    fpgas.plug(2, function_id=GZIP)
    assert held(fpgas) == GZIP


# -- bitstreams ----------------------------------------------------------------


@pytest.mark.parametrize("tail", [0, 3])
def test_an_xclbin_is_not_written_to_a_dfl_card(fpgas, tail):
    """The card would receive its header too, for any region that it declares."""
    rest = payload(GZIP, 64) + b"x" * tail
    content = image_directory.xclbin(INTERFACE, rest, own_id=GZIP)
    image = fpgas.images.put("adder", content)
    with raises(exception.ImageReason.MISMATCH, match="is an xclbin"):
        fpgas.plug(1, bitstream_id=image)
    assert fpgas.programmings() == []
    assert not is_unknown(fpgas)
    assert held(fpgas) == POWER_ON


# -- a smart NIC ---------------------------------------------------------------


def smart_nic() -> HostSpec:
    """Return a card like Silicom's N5010: network ports, and an FPGA.

    The FPGA is a separate function, with the PCI class of a NIC like the others.
    """
    fpga = dataclasses.replace(
        hosts.dfl("0000:3b"),
        vendor=0x1C2C,
        product=0x1000,
        subsystem_vendor=0x1C2C,
        subsystem_product=0,
        class_code=0x020000,
    )
    port = FunctionSpec(
        "0000:3b:00.1",
        0x1C2C,
        0x1002,
        0x020000,
        "ice",
        devices=(netdev("ens1f1", up=True),),
    )
    return HostSpec((fpga, port))


def test_a_smart_nic_that_shows_its_fpga_is_an_fpga(make_fpgas):
    nic = make_fpgas(smart_nic())
    upload(nic)
    upload(nic, "crypto", CRYPTO)
    device = nic.provider(CARD).device
    assert (device.plugin, device.resource_class) == ("dfl", "CUSTOM_ACCELERATOR_FPGA")
    assert "CUSTOM_PROGRAMMABLE" in device.traits
    (entry,) = nic.plug(1, function_id=GZIP)
    assert entry["pci_id"] == CARD
    assert held(nic) == GZIP
    # The host's own network interface keeps its driver.
    assert nic.rejected("0000:3b:00.1").reason is RejectReason.HOST_USES
    assert nic.drivers("0000:3b:00.1") == ["ice"]
    assert nic.unplug(1) == 1
    nic.plug(2, function_name="crypto")
    assert held(nic) == CRYPTO


def test_the_network_ports_of_a_smart_nic_can_be_given_away_on_their_own(make_fpgas):
    fpga, port = smart_nic().functions
    idle = dataclasses.replace(port, devices=(netdev("ens1f1"),))
    nic = make_fpgas(HostSpec((fpga, idle)))
    upload(nic)
    assert nic.provider(idle.address).device.resource_class == "CUSTOM_ACCELERATOR_NIC"
    nic.plug(1, idle.address)
    nic.plug(2, function_id=GZIP)
    assert nic.drivers(idle.address, CARD) == ["vfio-pci", "vfio-pci"]
    assert held(nic) == GZIP


# -- a card that cannot be read ------------------------------------------------


def test_a_card_that_cannot_be_read_is_offered_as_nothing_else(fpgas):
    """A plugin that offers the whole card would ignore its region."""
    (ports,) = Path(fpgas.root).glob(f"sys/bus/pci/devices/{CARD}/**/ports_num")
    said = ports.read_text()
    ports.write_text("many\n")
    fpgas.restart()
    assert fpgas.rejected(CARD).reason is RejectReason.UNREADABLE
    assert "many" in fpgas.rejected(CARD).detail
    assert CARD not in offered(fpgas)
    ports.write_text(said)
    assert CARD in offered(fpgas)
    assert fpgas.provider(CARD).device.region is not None


# -- privileged steps ----------------------------------------------------------


def test_a_plugin_learns_the_time_that_it_has(make_fpgas, monkeypatch):
    bench = make_fpgas(plug_timeout=300)
    upload(bench)
    program, seconds = DflPlugin.program, list[float]()

    def note(self, region, bitstream, steps):
        seconds.append(steps.seconds_left())
        program(self, region, bitstream, steps)

    monkeypatch.setattr(DflPlugin, "program", note)
    bench.plug(1, function_id=GZIP)
    assert 0 < seconds[0] <= 300
