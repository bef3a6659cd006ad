# SPDX-License-Identifier: Apache-2.0

"""A vendor's plugin for types of mediated devices, beside the library's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from os_acc import privsep
from os_acc.plugins import base
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts
from os_acc.testing.mdevs import mtty
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec

HERE: Final = "tests.unit.plugins.mdev_vendor"
#: The library's own plugin, which takes what no vendor takes.
GENERIC: Final = "os_acc.plugins.mdev:MdevPlugin"
GPU: Final = "0000:17:00.0"
#: Two virtual types, and one of a PCI function.
NAMED: Final = (
    '{"mdev_parent": "mtty", "mdev_types": "mtty-1, mtty-2"}',
    f'{{"address": "{GPU}", "mdev_types": "nvidia-558"}}',
)
TYPES: Final = ("mtty/mtty-1", "mtty/mtty-2", f"{GPU}/nvidia-558")

context = privsep.Context(f"{HERE}.context", "mdev_vendor", [])


@context.step
def count_functions(target: privsep.StepTarget) -> int:
    """Return the number of functions of the lease, and write nothing."""
    return len(target.functions)


def device(plugin: base.PluginBase, offered: base.OfferedType) -> base.Device:
    parent = offered.parent
    return base.Device(
        plugin=plugin.name,
        address=offered.type,
        identity=parent.identity if parent else None,
        resource_class="CUSTOM_ACCELERATOR_ACME",
        traits=frozenset(),
        handles=offered.handles,
        numa_node=parent.numa_node if parent else None,
        erasure=base.Erasure.REMOVAL,
    )


class Vendor(base.PluginBase):
    """Takes every type, and prepares the units."""

    contract_version = (1, 0)

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        for offered in candidates.mdev_types:
            yield device(self, offered)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Do nothing; a plugin with a method of its own has to release."""

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Do nothing."""


class Stepping(Vendor):
    """Prepares and releases the units by privileged steps."""

    contexts = (context,)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(count_functions)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(count_functions)


class TakesFunctions(base.PluginBase):
    """Takes every function as a whole, and no type."""

    contract_version = (1, 0)

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        for usable in candidates.usable:
            yield base.Device(
                plugin=self.name,
                address=usable.function.address,
                identity=usable.function.identity,
                resource_class="CUSTOM_ACCELERATOR_ACME",
                traits=frozenset(),
                handles=(usable.handle(),),
                numa_node=None,
            )


class FailsToDiscover(Vendor):
    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        raise RuntimeError("the vendor's daemon is down")


class TakesOne(Vendor):
    """Takes one type."""

    of: ClassVar[str] = TYPES[0]

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        for offered in candidates.mdev_types:
            if str(offered.type) == self.of:
                yield device(self, offered)


class TakesNone(Vendor):
    """Recognises no type any more."""

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        return ()


class Planted(Vendor):
    """Describes the first type wrongly, and the others as it should."""

    def discover(self, candidates: base.Candidates) -> Iterable[Any]:
        for offered in candidates.mdev_types:
            right = device(self, offered)
            if str(offered.type) == TYPES[0]:
                yield from self.wrong(right, candidates)
            else:
                yield right

    def wrong(self, right: base.Device, candidates: base.Candidates) -> Iterable[Any]:
        """Yield the wrong devices; a test replaces it."""
        raise NotImplementedError

    def erase(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> float:
        return 1.0


# -- hosts -----------------------------------------------------------------------


def gpu(**parent: Any) -> tuple[FunctionSpec, FunctionSpec]:
    """Return a graphics card whose driver offers types, and its audio function."""
    display, audio = hosts.gpu("0000:17")
    spec = MdevParentSpec(GPU, 2, (MdevTypeSpec("nvidia-558"),))
    return dataclasses.replace(
        display, mdevs=dataclasses.replace(spec, **parent)
    ), audio


def host_spec() -> HostSpec:
    """Return a host with a virtual parent and a GPU."""
    return HostSpec(gpu(), mdev_parents=(mtty(),))


def offered(host: TestHost) -> dict[str, str]:
    """Return the plugin that offers each device."""
    found = host.manager.discover(float("inf"))
    return {
        str(each.device.address): each.device.plugin
        for each in found.providers.values()
    }
