# SPDX-License-Identifier: Apache-2.0

"""The flows with mediated devices of a card.

A mediated device without a lease, but for that of another tool, was never removed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

from os_acc.attach.manager import Manager
from os_acc.host import mdev
from os_acc.testing import TestHost, hosts
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.stress.flows import (
    BYSTANDER,
    BYSTANDERS,
    INSTANCE,
    OWN_PLUGINS,
    Flow,
    PlugFlow,
)
from tests.stress.simulated_host import plug

CARD = "0000:d8:00.0"
#: The mediated device of another tool.
STRANGER = "44444444-4444-4444-8444-444444444444"

_DISPLAY, _AUDIO = hosts.gpu("0000:d8", 1, card=3)
_TYPES = (MdevTypeSpec("nvidia-558"), MdevTypeSpec("nvidia-559", cost=2))
_PARENT = MdevParentSpec(CARD, 5, _TYPES)


class MediatedDevice(PlugFlow):
    """A mediated device is created and removed beside that of another tool."""

    name = "a mediated device"
    more = (dataclasses.replace(_DISPLAY, mdevs=_PARENT), _AUDIO)
    device_spec = (
        f'{{"address": "{CARD}", "mdev_types": "nvidia-558, nvidia-559"}}',
        *PlugFlow.device_spec,
    )
    plugins = (*OWN_PLUGINS, "mdev")
    places = (f"{CARD}/nvidia-558",)

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        parent = os.path.join(bench.root, mdev.PARENTS, CARD)
        types = os.path.join(parent, "mdev_supported_types")
        bench.kernel.write(os.path.join(types, "nvidia-558", "create"), STRANGER)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leases = {lease.uuid for lease in manager.store.leases(INSTANCE)}
        assert _existing(bench) == leases | {STRANGER}, (_existing(bench), leases)
        super().resume(bench, manager)
        manager.unplug({"uuid": INSTANCE})
        assert _existing(bench) == {STRANGER}


class TwoTypes(MediatedDevice):
    """Mediated devices of two types of one card."""

    name = "mediated devices of two types"
    places = (f"{CARD}/nvidia-558", f"{CARD}/nvidia-559")
    counts = frozenset({0, 2})


class MediatedAfterReboot(MediatedDevice):
    """A reboot has removed the mediated device of a lease."""

    name = "a mediated device after a reboot"
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
        leases = {lease.uuid for lease in manager.store.leases(INSTANCE)}
        assert _existing(bench) <= leases
        manager.plug({"uuid": INSTANCE}, None, None)
        assert _existing(bench) == leases


def _existing(bench: TestHost) -> set[str]:
    return {each.uuid for each in mdev.read_mdevs(bench.root)}


FLOWS: Mapping[str, Flow] = {
    flow.name: flow for flow in (MediatedDevice(), TwoTypes(), MediatedAfterReboot())
}
