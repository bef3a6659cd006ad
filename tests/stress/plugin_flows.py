# SPDX-License-Identifier: Apache-2.0

"""The flows with a plugin that prepares and releases its devices.

The plugin leaves a mark on the host: a free device with a mark was never released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata

from os_acc import plugins
from os_acc.attach import operations
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost
from tests.stress.flows import INSTANCE, OWN_PLUGINS, VF, Flow, PlugFlow
from tests.stress.simulated_host import plug
from tests.unit import acme

#: The entry point of the plugin.
MARKS = metadata.EntryPoint("marks", "tests.unit.acme:MarksIntel", plugins.NAMESPACE)


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
        plug(manager, INSTANCE, *self.places)
        manager.unplug({"uuid": INSTANCE})

    def resume(self, bench: TestHost, manager: Manager) -> None:
        leases = manager.store.leases(INSTANCE)
        # Without the plugin no device is free that it has prepared.
        assert set(acme.marked(bench.root)) <= {str(each.address) for each in leases}
        manager = bench.start(enabled_plugins=Prepared.plugins)
        for lease in leases:
            if lease.state is LeaseState.QUARANTINED:
                operations.release_device(manager, lease.address, None)
        super().resume(bench, manager)


FLOWS: Mapping[str, Flow] = {flow.name: flow for flow in (Prepared(), PluginLost())}
