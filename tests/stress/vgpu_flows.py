# SPDX-License-Identifier: Apache-2.0

"""The flows with vGPUs of NVIDIA's driver on virtual functions.

A VF with a type but without a lease, other than that of another tool, was never
released.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from os_acc.attach.manager import Manager
from os_acc.host import vgpu
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, hosts, nvidia
from tests.stress.flows import (
    BYSTANDER,
    BYSTANDERS,
    INSTANCE,
    OWN_PLUGINS,
    Flow,
    PlugFlow,
)
from tests.stress.simulated_host import plug

BUS = "0000:d8"
CARD, STRANGER = f"{BUS}:00.0", f"{BUS}:00.5"
KIND = 1152


class VirtualGpu(PlugFlow):
    """A VF becomes a vGPU beside that of another tool."""

    name = "a vGPU on a VF"
    more = (hosts.vgpu_card(BUS),)
    device_spec = (
        f'{{"address": "{BUS}:00.*", "vgpu_type": {KIND}}}',
        *PlugFlow.device_spec,
    )
    plugins = (*OWN_PLUGINS, "nvidia")
    places = (CARD,)

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        place = os.path.join(bench.root, "sys/bus/pci/devices", STRANGER)
        bench.kernel.write(os.path.join(place, nvidia.CURRENT), str(KIND))

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased = {str(lease.address) for lease in manager.store.leases(INSTANCE)}
        assert _vgpus(bench) == leased | {STRANGER}, (_vgpus(bench), leased)
        super().resume(bench, manager)
        manager.unplug({"uuid": INSTANCE})
        assert _vgpus(bench) == {STRANGER}


class VirtualGpuAfterReboot(VirtualGpu):
    """A reboot has deleted the vGPU of a lease."""

    name = "a vGPU after a reboot"
    counts = frozenset({1})
    unready = frozenset({INSTANCE})

    def prepare(self, bench: TestHost) -> None:
        PlugFlow.prepare(self, bench)
        plug(bench.start_here(), INSTANCE, *self.places)
        bench.kernel.reboot()
        bench.start_here().plug({"uuid": BYSTANDER}, None, None)
        bench.kernel.hold(BYSTANDERS)

    def act(self, bench: TestHost) -> Iterator[None]:
        manager = bench.start_here()
        yield
        manager.plug({"uuid": INSTANCE}, None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased = {str(lease.address) for lease in manager.store.leases(INSTANCE)}
        assert _vgpus(bench) <= leased
        manager.plug({"uuid": INSTANCE}, None, None)
        assert _vgpus(bench) == leased


def _vgpus(bench: TestHost) -> set[str]:
    """Return the VFs that are vGPUs."""
    found = (f"{BUS}:00.{number}" for number in range(4, 8))
    return {
        each for each in found if vgpu.current_type(bench.root, PciAddress.parse(each))
    }


FLOWS: Mapping[str, Flow] = {
    flow.name: flow for flow in (VirtualGpu(), VirtualGpuAfterReboot())
}
