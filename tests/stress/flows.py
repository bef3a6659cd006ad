# SPDX-License-Identifier: Apache-2.0

"""The flows that are killed: each flow of the library, on a prepared host."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts
from os_acc.testing.demo.host import GZIP, fill_images
from tests.expected_errors import suppress
from tests.stress import kills, processes
from tests.stress.kills import Trial, Way
from tests.stress.recorder import Point
from tests.stress.simulated_host import plug, request
from tests.unit.rival_driver import prefer

INSTANCE = "11111111-1111-4111-8111-111111111111"
MIGRATION = "22222222-2222-4222-8222-222222222222"
#: Its guest runs from start to end, and holds its device.
BYSTANDER = "33333333-3333-4333-8333-333333333333"

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
NIC = "0000:3b:00.0"
VF, OTHER_VF = "0000:3b:02.0", "0000:3b:02.1"
FPGA, OTHER_FPGA = "0000:5e:00.0", "0000:5f:00.0"
EMPTY_NIC = "0000:af:00.0"
DFL = "0000:b3:00.0"
BYSTANDERS = "0000:c1:00.0"

#: The plugins of os_acc.
OWN_PLUGINS = ("dfl", "pci", "xrt")

_ALL = '{"address": "*:*:*.*"}'
_THIRD = "third-driver"


def host(more: tuple[FunctionSpec, ...] = ()) -> HostSpec:
    """Build a GPU with its audio function, NICs with and without VFs, FPGAs."""
    functions: tuple[FunctionSpec, ...] = (
        *hosts.gpu("0000:17", 0),
        hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=2),
        hosts.fpga("0000:5e", 0),
        hosts.fpga("0000:5f", 0),
        hosts.nic("0000:af", 1, name="ens2f0", vfs=4),
        hosts.fpga("0000:c1", 1),
    )
    return HostSpec((*functions, *more))


class Named:
    """A flow with the name of its tests."""

    name: ClassVar[str]


_Named = TypeVar("_Named", bound=Named)


def by_name(*flows: type[_Named]) -> Mapping[str, _Named]:
    """Return one flow of each kind."""
    return {flow.name: flow() for flow in flows}


class Flow(Named):
    """One flow; by default it plugs and unplugs all or nothing.

    :ivar more: further functions of the host.
    :ivar device_spec: the devices that the library may use.
    :ivar plugins: the plugins that the library uses.
    :ivar groups: further options, by group.
    :ivar counts: the numbers of leases that the flow's consumers may have in the end.
    :ivar strays: functions on vfio-pci without a lease, at the start.
    :ivar unready: consumers with leases that a reboot has invalidated, until
        :meth:`resume` restores them.
    """

    more: ClassVar[tuple[FunctionSpec, ...]] = ()
    device_spec: ClassVar[tuple[str, ...]] = (_ALL,)
    plugins: ClassVar[tuple[str, ...]] = OWN_PLUGINS
    groups: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    counts: ClassVar[frozenset[int]] = frozenset({0, 1})
    strays: ClassVar[frozenset[str]] = frozenset()
    unready: ClassVar[frozenset[str]] = frozenset()

    def prepare(self, bench: TestHost) -> None:
        """Bring host and state to the start of the flow."""
        plug_bystander(bench)

    def act(self, bench: TestHost) -> Iterator[None]:
        """Start the library, yield, then do the steps that are recorded and killed."""
        manager = bench.start_here()
        yield
        self.run(manager)

    def run(self, manager: Manager) -> None:
        """Do these steps."""
        raise NotImplementedError

    def resume(self, bench: TestHost, manager: Manager) -> None:
        """Act as the caller after the crash, before all is unplugged."""

    def in_use(self) -> frozenset[str]:
        """Functions that guests of the flow hold all the time."""
        return frozenset()


class PlugFlow(Flow):
    """Plug and unplug devices of some cards."""

    places: ClassVar[tuple[str, ...]]

    def run(self, manager: Manager) -> None:
        plug(manager, INSTANCE, *self.places)
        manager.unplug({"uuid": INSTANCE})

    def resume(self, bench: TestHost, manager: Manager) -> None:
        assert len(plug(manager, INSTANCE, *self.places)) == len(self.places)


class OneVf(PlugFlow):
    name = "one VF"
    places = (NIC,)


class Siblings(PlugFlow):
    name = "a card with siblings"
    places = (GPU,)


class TwoDrivers(Siblings):
    """Another driver matches the card, and a plain probe binds that one."""

    name = "a card of two drivers"

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        prefer(bench.kernel, _THIRD, GPU)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        super().resume(bench, manager)
        assert _THIRD not in bench.kernel.drivers(GPU)


class Several(PlugFlow):
    name = "several groups"
    places = (FPGA, NIC, OTHER_FPGA)
    counts = frozenset({0, 3})


class Program(Flow):
    """Fetch an image, program a region with it, and give it to a guest.

    After any kill no guest has a region with unverified contents.
    """

    name = "a region that is programmed"
    more = (hosts.dfl("0000:b3", 1),)

    def prepare(self, bench: TestHost) -> None:
        plug_bystander(bench)
        fill_images(bench.images)

    def run(self, manager: Manager) -> None:
        self._plug(manager)
        manager.unplug({"uuid": INSTANCE})

    def resume(self, bench: TestHost, manager: Manager) -> None:
        kernel, recorded_state = bench.kernel, manager.store.recorded_state()
        for lease in recorded_state.leases:
            if lease.consumer == INSTANCE:
                assert not recorded_state.unverified_regions
                assert kernel.held_by_hardware(DFL) == (GZIP,)
        if not recorded_state.unverified_regions:
            (held,) = kernel.held_by_hardware(DFL)
            assert held in (hosts.DFL_FUNCTION, GZIP)
        (entry,) = self._plug(manager)
        assert entry["pci_id"] == DFL
        assert kernel.held_by_hardware(DFL) == (GZIP,)
        assert not manager.store.recorded_state().unverified_regions

    @staticmethod
    def _plug(manager: Manager) -> list[dict[str, Any]]:
        selected, specs = request(manager, [DFL])
        specs["accel1:function_name"] = "gzip"
        return manager.plug({"uuid": INSTANCE}, selected, specs)


class Renew(Program):
    """After a failed programming the card is bound anew to one of two drivers."""

    name = "a card that begins anew with its driver"

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        prefer(bench.kernel, _THIRD, DFL)
        bench.kernel.fail_programming(DFL, "reconfig CRC error")
        with suppress(exception.ProgrammingReason.CRC):
            self._plug(bench.start_here())
        assert bench.start().store.recorded_state().unverified_regions

    def resume(self, bench: TestHost, manager: Manager) -> None:
        super().resume(bench, manager)
        assert _THIRD not in bench.kernel.drivers(DFL)


class ProgramAfterReboot(Program):
    """The region of a lease has lost the guest's function."""

    name = "a region that a reboot has emptied"
    unready = frozenset({INSTANCE})
    counts = frozenset({1})

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        self._plug(bench.start_here())
        reboot(bench)

    def run(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, None, None)
        assert bench.kernel.held_by_hardware(DFL) == (GZIP,)
        assert not manager.store.recorded_state().unverified_regions


class Refused(PlugFlow):
    """The driver refuses the last device, so that the plug is rolled back."""

    name = "a refused bind"
    places = (FPGA, GPU)
    counts = frozenset({0, 2})

    def act(self, bench: TestHost) -> Iterator[None]:
        bench.kernel.ignore(AUDIO, "drivers_probe")
        manager = bench.start_here()
        yield
        with suppress(exception.StepReason.BIND):
            plug(manager, INSTANCE, *self.places)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        bench.kernel.lift()
        super().resume(bench, manager)


class HeldFlow(Flow):
    """A flow that begins with a plugged card."""

    places: ClassVar[tuple[str, ...]] = (GPU, NIC)
    counts = frozenset({2})

    def prepare(self, bench: TestHost) -> None:
        plug(plug_bystander(bench), INSTANCE, *self.places)


class Rekey(HeldFlow):
    name = "re-key and back"

    def run(self, manager: Manager) -> None:
        manager.rekey(INSTANCE, MIGRATION)
        manager.rekey(MIGRATION, INSTANCE)


class Reboot(HeldFlow):
    name = "re-establish after a reboot"
    unready = frozenset({INSTANCE})

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        reboot(bench)

    def run(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        assert len(manager.plug({"uuid": INSTANCE}, None, None)) == 2
        assert bench.kernel.state(GPU).driver == "vfio-pci"
        assert bench.kernel.state(AUDIO).driver == "vfio-pci"


class NumaSwap(HeldFlow):
    """The guest's cells are known at last, and another VF takes over.

    After any kill the guest has one of the two, and the other one is as it was.
    """

    name = "a device that is not in the guest's cell"
    places = (NIC,)
    counts = frozenset({1})

    def prepare(self, bench: TestHost) -> None:
        kernel = bench.kernel
        node = kernel.path("sys/bus/pci/devices", VF, "numa_node")
        kernel.write(node, "1")
        super().prepare(bench)
        assert bench.start_here().store.lease_of(PciAddress.parse(VF))

    def run(self, manager: Manager) -> None:
        self._plug(manager)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        (before,) = manager.attached({"uuid": INSTANCE})[INSTANCE]
        (entry,) = self._plug(manager)
        assert (entry["pci_id"], entry["numa_affinity"]) == (OTHER_VF, "local")
        assert entry["uuid"] == before["uuid"]
        assert len(manager.store.leases(INSTANCE)) == 1

    @staticmethod
    def _plug(manager: Manager) -> list[dict[str, Any]]:
        return manager.plug({"uuid": INSTANCE, "numa_cells": [0]}, None, None)


class Running(HeldFlow):
    """Unplug while the guest still runs: the device that it holds stays."""

    name = "unplug of a running guest"
    counts = frozenset({1, 2})

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        bench.kernel.hold(GPU, 4712)

    def in_use(self) -> frozenset[str]:
        return frozenset({GPU, AUDIO})

    def run(self, manager: Manager) -> None:
        with contextlib.suppress(exception.DevicesUnreleased):
            manager.unplug({"uuid": INSTANCE})

    def resume(self, bench: TestHost, manager: Manager) -> None:
        assert bench.kernel.state(GPU).driver == "vfio-pci"
        bench.kernel.let_go(GPU)


class Quarantine(HeldFlow):
    """A card that cannot be given back, until an operator releases it."""

    name = "quarantine and release"
    places = (GPU,)
    counts = frozenset({0, 1})

    def act(self, bench: TestHost) -> Iterator[None]:
        bench.kernel.fail(AUDIO, "driver_override", errno.EIO, times=None)
        manager = bench.start_here()
        yield
        with contextlib.suppress(exception.DevicesUnreleased):
            manager.unplug({"uuid": INSTANCE})
        bench.kernel.lift()
        with suppress(exception.ObjectKind.DEVICE):
            operator_actions.release_device(manager, PciAddress.parse(GPU), None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        bench.kernel.lift()
        for lease in manager.store.leases(INSTANCE):
            if lease.state is LeaseState.QUARANTINED:
                operator_actions.release_device(manager, lease.address, None)


class StrayFlow(Flow):
    """A card that an operator has bound to vfio-pci."""

    strays = frozenset({FPGA})

    def prepare(self, bench: TestHost) -> None:
        plug_bystander(bench)
        kernel = bench.kernel
        device = f"sys/bus/pci/devices/{FPGA}"
        kernel.write(kernel.path(device, "driver_override"), "vfio-pci")
        kernel.write(kernel.path("sys/bus/pci/drivers_probe"), FPGA)
        kernel.write(kernel.path(device, "driver_override"), "\n")

    def resume(self, bench: TestHost, manager: Manager) -> None:
        address = PciAddress.parse(FPGA)
        stray = bench.kernel.state(FPGA).driver == "vfio-pci"
        if stray and manager.store.lease_of(address) is None:
            operator_actions.release_device(manager, address, "")


class Adopt(StrayFlow):
    name = "adopt, then unplug"

    def run(self, manager: Manager) -> None:
        operator_actions.adopt_device(manager, PciAddress.parse(FPGA), INSTANCE, "")
        manager.unplug({"uuid": INSTANCE})


class ReleaseUnknown(StrayFlow):
    name = "release of an unknown device"

    def run(self, manager: Manager) -> None:
        operator_actions.release_device(manager, PciAddress.parse(FPGA), "")


class NumVfs(Flow):
    """The library makes VFs when it starts for the first time."""

    name = "num_vfs at the first initialize"
    device_spec = (
        f'{{"address": "{EMPTY_NIC}", "num_vfs": "2"}}',
        f'{{"address": "{FPGA}"}}',
    )
    counts = frozenset({0})

    def prepare(self, bench: TestHost) -> None:
        """Prepare nothing: the state directory does not exist yet."""

    def act(self, bench: TestHost) -> Iterator[None]:
        yield
        bench.start_here()

    def resume(self, bench: TestHost, manager: Manager) -> None:
        kernel = bench.kernel
        assert kernel.state(EMPTY_NIC).numvfs == 2
        numvfs = f"sys/bus/pci/devices/{EMPTY_NIC}/sriov_numvfs"
        kernel.write(kernel.path(numvfs), "0")


class Recovery(Flow):
    """The recovery from a killed plug is killed as well."""

    name = "recovery from a crash"

    def prepare(self, bench: TestHost) -> None:
        plug_bystander(bench)

        def half_a_plug() -> None:
            manager = bench.start_here()
            middle = Point(f"{GPU}, call 1", True, 7)
            kills.install(bench, Trial(Way.GROUP, middle))
            plug(manager, INSTANCE, GPU)

        assert processes.call(half_a_plug).killed
        assert bench.kernel.state(GPU).driver != bench.kernel.state(AUDIO).driver

    def act(self, bench: TestHost) -> Iterator[None]:
        yield
        bench.start_here()


FLOWS: Mapping[str, Flow] = by_name(
    OneVf,
    Siblings,
    TwoDrivers,
    Several,
    Program,
    Renew,
    ProgramAfterReboot,
    Refused,
    Rekey,
    Reboot,
    NumaSwap,
    Running,
    Quarantine,
    Adopt,
    ReleaseUnknown,
    NumVfs,
    Recovery,
)


def plug_bystander(bench: TestHost) -> Manager:
    """Start a guest that runs all the time."""
    manager = bench.start_here()
    plug(manager, BYSTANDER, BYSTANDERS)
    bench.kernel.hold(BYSTANDERS)
    return manager


def reboot(bench: TestHost) -> None:
    """Reboot the host, and start the guest again that runs all the time."""
    bench.kernel.reboot()
    bench.start_here().plug({"uuid": BYSTANDER}, None, None)
    bench.kernel.hold(BYSTANDERS)
