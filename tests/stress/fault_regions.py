# SPDX-License-Identifier: Apache-2.0

"""Flows that program a region, and the checks of its contents.

A card is handed over whole, or as VFs with the ports that were released for
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.host.dfl import read_card
from os_acc.host.pci import read_function
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region
from os_acc.testing import TestHost, hosts
from os_acc.testing.demo.host import GZIP, fill_images
from tests.expected_errors import suppress
from tests.stress import fault_flows
from tests.stress.fault_flows import NEXT, VFIO, Flow, GiveBack, Kind
from tests.stress.flows import DFL, INSTANCE, OTHER_FPGA, by_name
from tests.stress.simulated_host import request

VF, OTHER_VF = "0000:b3:00.1", "0000:b3:00.2"
_TWO_PORTS = hosts.dfl(
    "0000:b3", 1, functions=(hosts.DFL_FUNCTION, hosts.DFL_FUNCTION), vfs=2
)
#: VFs of one card; the other has no SR-IOV.
_VFS = (
    f'{{"address": "{DFL}", "num_vfs": "2"}}',
    f'{{"address": "{OTHER_FPGA}"}}',
)


def ask(manager: Manager, place: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a request for a region that is programmed with the one image."""
    selected, specs = request(manager, [place])
    specs["accel1:function_name"] = "gzip"
    return selected, specs


class RegionFlow(Flow):
    """A flow for the first region of a card; the card is handed over whole."""

    places = (DFL,)
    more = (hosts.dfl("0000:b3", 1),)

    def dress(self, bench: TestHost) -> None:
        fill_images(bench.images)

    def next_plug(self, manager: Manager) -> None:
        (place,) = self.places
        assert manager.plug({"uuid": NEXT}, *ask(manager, place))
        assert not manager.store.recorded_state().unverified_regions

    def check_always(self, bench: TestHost, manager: Manager) -> None:
        """Check that the recorded contents of regions are the real ones."""
        recorded_state = manager.store.recorded_state()
        (held, *_) = bench.kernel.held_by_hardware(DFL)
        unverified = region(bench) in recorded_state.unverified_regions
        assert unverified or held in (hosts.DFL_FUNCTION, GZIP), held
        for lease in recorded_state.leases:
            drivers = {bench.kernel.state(each).driver for each in lease.members}
            if lease.state is LeaseState.HELD and drivers == {VFIO}:
                assert lease.programming is not None
                assert lease.programming.function_id == held
                assert not unverified, "handed over, and not read back"


def region(bench: TestHost) -> Region:
    """Return the first region of the card, as the store identifies it."""
    address = PciAddress.parse(DFL)
    function = read_function(bench.root, address)
    assert function is not None
    return Region(address, function.identity, 0, hosts.DFL_INTERFACE, None)


def check_programmed(bench: TestHost, manager: Manager, consumer: str) -> None:
    """Check that a guest holds the region with the requested function."""
    (lease,) = manager.store.leases(consumer)
    assert lease.state is LeaseState.HELD
    for address in lease.members:
        state = bench.kernel.state(address)
        assert (state.driver, state.driver_override) == (VFIO, VFIO)
    assert bench.kernel.held_by_hardware(DFL)[0] == GZIP
    assert not manager.store.recorded_state().unverified_regions


# -- taking -------------------------------------------------------------------


class Program(RegionFlow):
    """The card itself is programmed, and leaves the host."""

    name = "program a card, and take it"
    kind = Kind.TAKE

    def ready(self, bench: TestHost) -> Manager:
        manager = bench.start()
        # Built before any fault: the request comes from Nova.
        self._asked = ask(manager, *self.places)
        return manager

    def act(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, *self._asked)

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        check_programmed(bench, manager, INSTANCE)


class ProgramAnew(Program):
    """The port is held in reset: the card is bound to its driver anew."""

    name = "program a card whose programming has failed"

    def prepare(self, bench: TestHost) -> None:
        manager = self.ready(bench)
        bench.kernel.fail_programming(DFL, "reconfig CRC error")
        with suppress(exception.ProgrammingReason.CRC):
            self.act(manager)
        assert region(bench) in manager.store.recorded_state().unverified_regions


class OfVf(RegionFlow):
    """VFs have the ports; they were made when the service first started."""

    places = (VF,)
    more = (_TWO_PORTS,)
    device_spec = _VFS

    def dress(self, bench: TestHost) -> None:
        super().dress(bench)
        bench.start()


class ProgramVf(OfVf, Program):
    name = "program the port of a VF, and take that"


# -- giving back, and making ready ----------------------------------------------


class GiveBackProgrammed(RegionFlow, GiveBack):
    name = "give back a card that was programmed"

    def prepare(self, bench: TestHost) -> None:
        manager = bench.start()
        manager.plug({"uuid": INSTANCE}, *ask(manager, *self.places))


class GiveBackProgrammedVf(OfVf, GiveBackProgrammed):
    name = "give back a VF whose port was programmed"


class Reboot(RegionFlow, fault_flows.Reboot):
    """The guest's function is lost: the region is read, and programmed."""

    name = "make a card ready after a reboot"

    def prepare(self, bench: TestHost) -> None:
        manager = bench.start()
        manager.plug({"uuid": INSTANCE}, *ask(manager, *self.places))
        bench.kernel.reboot()

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        check_programmed(bench, manager, INSTANCE)


class RebootOfVf(OfVf, Reboot):
    name = "make a VF ready after a reboot"


# -- ports --------------------------------------------------------------------


class NumVfs(fault_flows.NumVfs):
    """Ports leave the host, and VFs with these ports are made."""

    name = "num_vfs of an FPGA card"
    device_spec = _VFS
    makes_vfs = DFL
    more = (_TWO_PORTS,)

    def dress(self, bench: TestHost) -> None:
        fill_images(bench.images)

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        assert bench.kernel.state(DFL).numvfs == 2
        for vf in (VF, OTHER_VF):
            assert bench.kernel.state(vf).driver == "dfl-pci"
        card = read_card(bench.root, PciAddress.parse(DFL))
        assert card is not None
        found = [(str(each.function), each.function_id) for each in card.ports]
        assert found == [(VF, hosts.DFL_FUNCTION), (OTHER_VF, hosts.DFL_FUNCTION)]


class NumVfsAgain(NumVfs):
    """The process that made them was killed, and so was the cleanup."""

    name = "num_vfs of an FPGA card, half-way"

    def prepare(self, bench: TestHost) -> None:
        bench.kernel.kill(DFL, "release", nth=2)
        bench.kernel.kill(DFL, "assign")
        bench.start()
        card = read_card(bench.root, PciAddress.parse(DFL))
        assert card is not None
        assert [port.number for port in card.ports] == [1]


class PortsBack(NumVfs):
    """The card makes no VFs: its ports return to the host."""

    name = "ports go back where no VFs come"
    fails: ClassVar[bool] = True

    def begin(self, bench: TestHost) -> None:
        bench.kernel.fail(DFL, "sriov_numvfs")


FLOWS: Mapping[str, Flow] = by_name(
    Program,
    ProgramAnew,
    ProgramVf,
    GiveBackProgrammed,
    GiveBackProgrammedVf,
    Reboot,
    RebootOfVf,
    NumVfs,
    NumVfsAgain,
    PortsBack,
)
