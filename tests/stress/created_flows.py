# SPDX-License-Identifier: Apache-2.0

"""The flows with devices that are created for a guest: mediated devices and vGPUs.

A created device without a lease, but for that of another tool, was never removed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import ClassVar

from os_acc.attach.manager import Manager
from os_acc.host import mdev
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, hosts, nvidia
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.stress import flows
from tests.stress.flows import INSTANCE, OWN_PLUGINS, Flow, PlugFlow
from tests.stress.simulated_host import plug

CARD = "0000:d8:00.0"
_DISPLAY, _AUDIO = hosts.gpu("0000:d8", 1, card=3)
_TYPES = (MdevTypeSpec("nvidia-558"), MdevTypeSpec("nvidia-559", cost=2))
_PARENT = MdevParentSpec(CARD, 5, _TYPES)
_VGPU = 1152


class Created(PlugFlow):
    """A device is created and removed beside that of another tool.

    :ivar stranger: the name of the other tool's.
    """

    stranger: ClassVar[str]

    def create_stranger(self, bench: TestHost) -> None:
        """Create the device of the other tool."""
        raise NotImplementedError

    def existing(self, bench: TestHost) -> set[str]:
        """Return the names of all created devices."""
        raise NotImplementedError

    def name_of(self, lease: Lease) -> str:
        """Return the name of the created device of a lease."""
        raise NotImplementedError

    def leased(self, manager: Manager) -> set[str]:
        """Return the names of the devices that the instance has."""
        return {self.name_of(lease) for lease in manager.store.leases(INSTANCE)}

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        self.create_stranger(bench)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased, existing = self.leased(manager), self.existing(bench)
        assert existing == leased | {self.stranger}, (existing, leased)
        super().resume(bench, manager)
        manager.unplug({"uuid": INSTANCE})
        assert self.existing(bench) == {self.stranger}


class CreatedAfterReboot(Created):
    """A reboot has removed the devices of a lease, and the other tool's."""

    counts = frozenset({1})
    unready = frozenset({INSTANCE})

    def prepare(self, bench: TestHost) -> None:
        PlugFlow.prepare(self, bench)
        plug(bench.start_here(), INSTANCE, *self.places)
        flows.reboot(bench)

    def run(self, manager: Manager) -> None:
        manager.plug({"uuid": INSTANCE}, None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased = self.leased(manager)
        assert self.existing(bench) <= leased
        manager.plug({"uuid": INSTANCE}, None, None)
        assert self.existing(bench) == leased


class MediatedDevice(Created):
    """A mediated device of a card."""

    name = "a mediated device"
    more = (dataclasses.replace(_DISPLAY, mdevs=_PARENT), _AUDIO)
    device_spec = (
        f'{{"address": "{CARD}", "mdev_types": "nvidia-558, nvidia-559"}}',
        *PlugFlow.device_spec,
    )
    plugins = (*OWN_PLUGINS, "mdev")
    places = (f"{CARD}/nvidia-558",)
    stranger = "44444444-4444-4444-8444-444444444444"

    def create_stranger(self, bench: TestHost) -> None:
        types = os.path.join(bench.root, mdev.PARENTS, CARD, "mdev_supported_types")
        bench.kernel.write(os.path.join(types, "nvidia-558", "create"), self.stranger)

    def existing(self, bench: TestHost) -> set[str]:
        return {each.uuid for each in mdev.read_mdevs(bench.root)}

    def name_of(self, lease: Lease) -> str:
        return lease.uuid


class TwoTypes(MediatedDevice):
    """Mediated devices of two types of one card."""

    name = "mediated devices of two types"
    places = (f"{CARD}/nvidia-558", f"{CARD}/nvidia-559")
    counts = frozenset({0, 2})


class MediatedAfterReboot(CreatedAfterReboot, MediatedDevice):
    """The mediated device of a lease is created anew."""

    name = "a mediated device after a reboot"


class VirtualGpu(Created):
    """A VF of NVIDIA's driver becomes a vGPU."""

    name = "a vGPU on a VF"
    more = (hosts.vgpu_card("0000:d8"),)
    device_spec = (
        f'{{"address": "0000:d8:00.*", "vgpu_type": {_VGPU}}}',
        *PlugFlow.device_spec,
    )
    plugins = (*OWN_PLUGINS, "nvidia")
    places = (CARD,)
    stranger = "0000:d8:00.5"

    def create_stranger(self, bench: TestHost) -> None:
        place = os.path.join(bench.root, "sys/bus/pci/devices", self.stranger)
        bench.kernel.write(os.path.join(place, nvidia.CURRENT), str(_VGPU))

    def existing(self, bench: TestHost) -> set[str]:
        found = (f"0000:d8:00.{number}" for number in range(4, 8))
        root = bench.root
        return {each for each in found if mdev.vgpu_type(root, PciAddress.parse(each))}

    def name_of(self, lease: Lease) -> str:
        return str(lease.address)


class VirtualGpuAfterReboot(CreatedAfterReboot, VirtualGpu):
    """The vGPU of a lease is created anew."""

    name = "a vGPU after a reboot"


FLOWS: Mapping[str, Flow] = flows.by_name(
    MediatedDevice, TwoTypes, MediatedAfterReboot, VirtualGpu, VirtualGpuAfterReboot
)
