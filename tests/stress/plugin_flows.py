# SPDX-License-Identifier: Apache-2.0

"""The flows with plugins that prepare and release their devices, or erase them.

The plugins leave a mark on the host: a free device with a mark was never released. A
file stands for the memory of a device: a free device with data was never erased. A
privileged step of a plugin leaves its mark in an attribute of the function.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib import metadata

from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.plugins import loader
from os_acc.testing import TestHost
from tests.stress.flows import (
    INSTANCE,
    OTHER_VF,
    OWN_PLUGINS,
    VF,
    Flow,
    PlugFlow,
    by_name,
)
from tests.stress.simulated_host import plug
from tests.unit import acme

#: The entry point of the plugin.
MARKS = metadata.EntryPoint("marks", "tests.unit.acme:MarksIntel", loader.NAMESPACE)
#: The entry point of the plugin that erases its devices.
ERASES = metadata.EntryPoint("erases", "tests.unit.acme:ErasesIntel", loader.NAMESPACE)
#: The entry point of the plugin with privileged steps.
STEPS = metadata.EntryPoint(
    "steps", "tests.unit.vendor_steps:SteppingIntel", loader.NAMESPACE
)
INSTALLED = (MARKS, ERASES, STEPS)


class Prepared(PlugFlow):
    """A plugin prepares and releases the VF."""

    name = "a VF that a plugin prepares"
    places = (VF,)
    plugins = (*OWN_PLUGINS, MARKS.name)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased = {str(lease.address) for lease in manager.store.leases(INSTANCE)}
        assert set(acme.marked(bench.root)) == leased
        super().resume(bench, manager)
        assert acme.marked(bench.root)
        manager.unplug({"uuid": INSTANCE})
        assert not acme.marked(bench.root)


class PluginLost(Prepared):
    """The plugin is missing after the crash, until an operator enables it again."""

    name = "a VF whose plugin is lost"
    plugins = OWN_PLUGINS

    def act(self, bench: TestHost) -> Iterator[None]:
        manager = bench.start_here(enabled_plugins=Prepared.plugins)
        yield
        self.run(manager)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leases = manager.store.leases(INSTANCE)
        # Without the plugin no device is free that it has prepared.
        assert set(acme.marked(bench.root)) <= {str(each.address) for each in leases}
        manager = bench.start(enabled_plugins=Prepared.plugins)
        for lease in leases:
            if lease.state is LeaseState.QUARANTINED:
                operator_actions.release_device(manager, lease.address, None)
        super().resume(bench, manager)


class Stepped(PlugFlow):
    """Privileged steps of a plugin set the NUMA node of the VF, and set it back."""

    name = "a VF with privileged steps of a plugin"
    places = (VF,)
    plugins = (*OWN_PLUGINS, STEPS.name)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leased = {str(lease.address) for lease in manager.store.leases(INSTANCE)}
        assert _set(bench) == leased
        super().resume(bench, manager)
        assert _set(bench)
        manager.unplug({"uuid": INSTANCE})
        assert not _set(bench)


def _set(bench: TestHost) -> set[str]:
    """Return the VFs whose node the step has set; the card is on node 0."""
    kernel = bench.kernel
    place = kernel.path("sys/bus/pci/devices")
    return {
        each
        for each in (VF, OTHER_VF)
        if kernel.read(f"{place}/{each}/numa_node").strip() == "1"
    }


def advance(manager: Manager) -> bool:
    """Continue each erasure by one call; return whether there was one."""
    deadline = time.monotonic() + 60
    due = manager.life.eraser.due(deadline)
    for uuid in due:
        manager.life.eraser.advance(uuid, deadline)
    return bool(due)


class Erased(PlugFlow):
    """A plugin erases the VF that a guest has written to, after the unplug.

    All functions of the plugin start without data: one with data and without a lease
    was offered to the next guest before it was erased.
    """

    name = "a VF that a plugin erases"
    places = (VF,)
    plugins = (*OWN_PLUGINS, ERASES.name)
    counts = frozenset({0, 1})

    def act(self, bench: TestHost) -> Iterator[None]:
        manager = bench.start_here()
        yield
        plug(manager, INSTANCE, *self.places)
        acme.write_medium(bench.root, *self._addresses(manager))
        manager.unplug({"uuid": INSTANCE})
        while advance(manager):
            pass

    def resume(self, bench: TestHost, manager: Manager) -> None:
        self._check(bench, manager)
        held = self._addresses(manager)
        while advance(manager):
            self._check(bench, manager)
        manager.unplug({"uuid": INSTANCE})
        self._check(bench, manager)
        while advance(manager):
            self._check(bench, manager)
        for address in {*held, *self.places}:
            assert not acme.has_data(bench.root, address), address
        super().resume(bench, manager)
        manager.unplug({"uuid": INSTANCE})
        while advance(manager):
            pass

    @staticmethod
    def _addresses(manager: Manager) -> list[str]:
        return [str(lease.address) for lease in manager.store.leases(INSTANCE)]

    @staticmethod
    def _check(bench: TestHost, manager: Manager) -> None:
        """Check that each device with data has a lease."""
        leased = {str(lease.address) for lease in manager.store.leases()}
        for each in bench.kernel.snapshot():
            if acme.has_data(bench.root, each.address):
                assert each.address in leased, f"{each.address} is free, with data"


FLOWS: Mapping[str, Flow] = by_name(Prepared, PluginLost, Stepped, Erased)
