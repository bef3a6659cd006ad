# SPDX-License-Identifier: Apache-2.0

"""The flows that faults strike: every flow of the library that writes.

A flow prepares a host and then performs one operation. Its writes to the kernel are
recorded, never listed here.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Mapping
from typing import ClassVar

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import FunctionSpec, HostSpec, TestHost
from tests.expected_errors import suppress
from tests.stress import flows
from tests.stress.flows import (
    AUDIO,
    EMPTY_NIC,
    FPGA,
    GPU,
    INSTANCE,
    NIC,
    OTHER_FPGA,
)
from tests.stress.simulated_host import plug

VFIO = "vfio-pci"
#: The consumer of the next plug.
NEXT = "44444444-4444-4444-8444-444444444444"
_ALL = '{"address": "*:*:*.*"}'
_SIBLING = {PciAddress.parse(AUDIO): "snd_hda_intel"}


class Kind(enum.Enum):
    """The effect of a flow on a device.

    The value is the state of the lease after a failed write; None: no lease.
    """

    #: All or nothing.
    TAKE = None
    #: A device that cannot be released clean waits for an operator.
    GIVE_BACK = LeaseState.QUARANTINED
    #: The lease stays, and the same call can make its device ready.
    MAKE_READY = LeaseState.HELD


class Flow(flows.Named):
    """One flow.

    :ivar kind: the effect on its devices.
    :ivar places: the cards that it uses.
    :ivar elsewhere: a card that it does not use.
    :ivar starts: whether it is the start of the library itself, which logs its
        failures.
    :ivar fails: whether it fails by itself: then the writes after that failure
        are struck.
    :ivar makes_vfs: the PF that it gives VFs, or empty.
    :ivar more: further functions of the host.
    """

    kind: ClassVar[Kind] = Kind.GIVE_BACK
    places: ClassVar[tuple[str, ...]] = (GPU,)
    elsewhere: ClassVar[str] = OTHER_FPGA
    device_spec: ClassVar[tuple[str, ...]] = (_ALL,)
    starts: ClassVar[bool] = False
    fails: ClassVar[bool] = False
    makes_vfs: ClassVar[str] = ""
    more: ClassVar[tuple[FunctionSpec, ...]] = ()

    def dress(self, bench: TestHost) -> None:
        """Prepare the host as an operator would."""

    def prepare(self, bench: TestHost) -> None:
        """Bring host and state to the start of the flow."""

    def ready(self, bench: TestHost) -> Manager:
        """Start the library, for a flow that is not the start itself."""
        return bench.start()

    def begin(self, bench: TestHost) -> None:
        """Add the failure of the flow itself, besides the fault."""

    def act(self, manager: Manager) -> None:
        """Run the flow, unless it is the start of the library."""

    def again(self, manager: Manager) -> None:
        """Act as the caller after the fault; then all is unplugged."""

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        """Make sure that a flow which reported success has done its work."""
        raise NotImplementedError

    def check_always(self, bench: TestHost, manager: Manager) -> None:
        """Check the conditions that hold after every outcome of the flow."""

    def next_plug(self, manager: Manager) -> None:
        """Plug the same devices for another instance, at the end of the trial."""
        assert plug(manager, NEXT, *self.places)


def host(flow: Flow) -> HostSpec:
    """Return a host with the cards of a flow alone: it is copied often."""
    names = {flow.elsewhere, *(each.address for each in flow.more), flow.makes_vfs}
    names.update(*map(members, flow.places))
    return HostSpec(
        tuple(each for each in flows.host(flow.more).functions if each.address in names)
    )


def members(place: str) -> tuple[str, ...]:
    """Return the functions that are leased together with a card."""
    return (GPU, AUDIO) if place == GPU else (place,)


def write(bench: TestHost, address: str, attribute: str, text: str) -> None:
    """Write an attribute of a function, as an operator."""
    kernel = bench.kernel
    kernel.write(kernel.path("sys/bus/pci/devices", address, attribute), text)


def probe(bench: TestHost, address: str) -> None:
    """Let the bus offer a function to its drivers, as an operator."""
    bench.kernel.write(bench.kernel.path("sys/bus/pci/drivers_probe"), address)


# -- taking -------------------------------------------------------------------


class Take(Flow):
    kind = Kind.TAKE

    def act(self, manager: Manager) -> None:
        plug(manager, INSTANCE, *self.places)

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        leases = manager.store.leases(INSTANCE)
        assert [lease.state for lease in leases] == [LeaseState.HELD] * len(self.places)
        for lease in leases:
            for address in lease.members:
                state = bench.kernel.state(address)
                assert (state.driver, state.driver_override) == (VFIO, VFIO)


class TakeCard(Take):
    name = "take a card with two functions"


class TakeVf(Take):
    name = "take a VF"
    places = (NIC,)


class TakeWithoutDriver(Take):
    name = "take a function without a driver"
    places = (FPGA,)


class TakeOverridden(Take):
    name = "take a card with an override"

    def dress(self, bench: TestHost) -> None:
        write(bench, GPU, "driver_override", "nouveau")


class TakeSeveral(Take):
    name = "take several groups at once"
    places = (FPGA, NIC)


# -- giving back --------------------------------------------------------------


class GiveBack(Flow):
    """Unplug the plugged devices."""

    def prepare(self, bench: TestHost) -> None:
        plug(bench.start_here(), INSTANCE, *self.places)

    def act(self, manager: Manager) -> None:
        assert manager.unplug({"uuid": INSTANCE}) == len(self.places)

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        assert manager.store.leases() == ()


class GiveBackCard(GiveBack):
    name = "give back a card with two functions"


class GiveBackVf(GiveBack):
    name = "give back a VF"
    places = (NIC,)


class GiveBackWithoutDriver(GiveBack):
    name = "give back a function without a driver"
    places = (FPGA,)


class GiveBackOverridden(GiveBack):
    name = "give back a card with an override"

    def dress(self, bench: TestHost) -> None:
        write(bench, GPU, "driver_override", "nouveau")


class GiveBackOdd(GiveBack):
    """Release to a driver that no probe would choose, as libvirt leaves it."""

    name = "give back to an unlikely driver"
    places = (FPGA,)
    # The card with this driver.
    elsewhere = NIC

    def dress(self, bench: TestHost) -> None:
        write(bench, FPGA, "driver_override", "ice")
        probe(bench, FPGA)
        write(bench, FPGA, "driver_override", "\n")
        assert bench.kernel.state(FPGA).driver == "ice"


class GiveBackSeveral(GiveBack):
    name = "give back several groups at once"
    places = (FPGA, NIC)


class RollBack(GiveBack):
    """The driver refuses the last function, so that the plug is rolled back."""

    name = "go back from a refused plug"
    fails = True

    def prepare(self, bench: TestHost) -> None:
        """Plug nothing."""

    def begin(self, bench: TestHost) -> None:
        bench.kernel.ignore(AUDIO, "drivers_probe")

    def act(self, manager: Manager) -> None:
        plug(manager, INSTANCE, *self.places)


class Replay(GiveBack):
    """Complete the operation of a killed worker at the next start."""

    name = "replay at initialize"
    starts = True

    def prepare(self, bench: TestHost) -> None:
        leave_half_way(bench, bench.start_here())


class SettleAtUnplug(GiveBack):
    name = "settle at unplug"

    def prepare(self, bench: TestHost) -> None:
        """Leave nothing before the library has started."""

    def ready(self, bench: TestHost) -> Manager:
        manager = bench.start()
        leave_half_way(bench, manager)
        return manager


class SettleAtPlug(SettleAtUnplug):
    name = "settle at the next plug"

    def act(self, manager: Manager) -> None:
        with suppress(exception.ObjectKind.LEASE):
            manager.plug({"uuid": INSTANCE}, None, None)


def leave_half_way(bench: TestHost, manager: Manager) -> None:
    """Leave a plug whose worker was killed, also during the rollback."""
    bench.kernel.kill(AUDIO, "drivers_probe")
    bench.kernel.kill(GPU, "reset")
    with contextlib.suppress(exception.HelperLost):
        plug(manager, INSTANCE, GPU)
    bench.kernel.lift()
    (lease,) = manager.store.leases(INSTANCE)
    assert lease.state is LeaseState.RELEASING


# -- making ready again -------------------------------------------------------


class Reboot(Flow):
    name = "make ready after a reboot"
    kind = Kind.MAKE_READY

    def prepare(self, bench: TestHost) -> None:
        plug(bench.start_here(), INSTANCE, *self.places)
        bench.kernel.reboot()

    def act(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, None, None)

    again = act

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        (lease,) = manager.store.leases(INSTANCE)
        assert lease.state is LeaseState.HELD
        for place in self.places:
            for address in members(place):
                state = bench.kernel.state(address)
                assert (state.driver, state.driver_override) == (VFIO, VFIO)


# -- an operator's commands ---------------------------------------------------


class ReleaseQuarantined(GiveBack):
    name = "an operator releases a quarantined card"

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        bench.kernel.fail(AUDIO, "driver_override", errno.EIO)
        with contextlib.suppress(exception.DevicesUnreleased):
            bench.start_here().unplug({"uuid": INSTANCE})

    def act(self, manager: Manager) -> None:
        operator_actions.release_device(manager, PciAddress.parse(GPU), None)


class ReleaseUnknown(GiveBack):
    """A card that an operator has bound to vfio-pci."""

    name = "an operator releases an unknown card"

    def prepare(self, bench: TestHost) -> None:
        for address in members(GPU):
            write(bench, address, "driver_override", VFIO)
            write(bench, address, "driver/unbind", address)
            probe(bench, address)
            write(bench, address, "driver_override", "\n")

    def act(self, manager: Manager) -> None:
        operator_actions.release_device(
            manager, PciAddress.parse(GPU), "nouveau", siblings=_SIBLING
        )


class GiveBackAdopted(ReleaseUnknown):
    name = "give back an adopted card"

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        gpu = PciAddress.parse(GPU)
        operator_actions.adopt_device(
            bench.start_here(), gpu, INSTANCE, "nouveau", siblings=_SIBLING
        )

    def act(self, manager: Manager) -> None:
        assert manager.unplug({"uuid": INSTANCE}) == 1


# -- virtual functions --------------------------------------------------------


class NumVfs(Flow):
    """The library makes VFs when it starts."""

    name = "num_vfs at initialize"
    kind = Kind.TAKE
    places = ()
    device_spec = (
        f'{{"address": "{EMPTY_NIC}", "num_vfs": "2"}}',
        f'{{"address": "{OTHER_FPGA}"}}',
    )
    starts = True
    makes_vfs = EMPTY_NIC

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        state = bench.kernel.state(EMPTY_NIC)
        assert (state.numvfs, state.autoprobe) == (2, True)
        for vf in ("0000:af:02.0", "0000:af:02.1"):
            assert bench.kernel.state(vf).driver is None, "the host has taken it"


class NumVfsAgain(NumVfs):
    """The worker of an earlier start was killed half-way."""

    name = "num_vfs after a killed worker"

    def prepare(self, bench: TestHost) -> None:
        bench.kernel.kill(EMPTY_NIC, "sriov_numvfs", after=True)
        bench.start_here()
        assert bench.kernel.state(EMPTY_NIC).autoprobe is False


FLOWS: Mapping[str, Flow] = flows.by_name(
    TakeCard,
    TakeVf,
    TakeWithoutDriver,
    TakeOverridden,
    TakeSeveral,
    GiveBackCard,
    GiveBackVf,
    GiveBackWithoutDriver,
    GiveBackOverridden,
    GiveBackOdd,
    GiveBackSeveral,
    RollBack,
    Replay,
    SettleAtUnplug,
    SettleAtPlug,
    Reboot,
    ReleaseQuarantined,
    ReleaseUnknown,
    GiveBackAdopted,
    NumVfs,
    NumVfsAgain,
)
