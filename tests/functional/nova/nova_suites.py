# SPDX-License-Identifier: Apache-2.0

"""Nova's own functional tests, with the virt driver of os_acc or Nova's own.

``unittest`` loads and runs them: pytest cannot collect Nova's cases. They are part of
Nova's wheel, and start Nova's services and Placement in this process, on Nova's fake of
libvirt, which has PCI devices, mediated devices and NUMA cells. Each of their compute
nodes also has a GPU of os_acc.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from nova import test
from nova.conf import CONF
from nova.tests.functional import integrated_helpers
from nova.virt import driver

from os_acc import conf
from os_acc.nova import loading
from os_acc.nova.initialization import DeferredNode
from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.nova import libvirt_servers
from tests.functional.nova.compute_nodes import ComputeNode

_PREFIX = "nova.tests.functional."
#: The modules and classes of each subject, by their names without the prefix. A test
#: belongs to the first subject that names it.
_SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "VDPA": ("libvirt.test_pci_sriov_servers.VDPAServersTest",),
    "PCI": (
        "libvirt.test_pci_sriov_servers",
        "regressions.test_bug_1983753",
        "regressions.test_bug_1995153",
    ),
    "PCI in Placement": (
        "libvirt.test_pci_in_placement",
        "regressions.test_bug_2098496",
        "regressions.test_bug_2102038",
        "regressions.test_bug_2111440",
        "regressions.test_bug_2140631.TestBug2140631PCI",
    ),
    "vGPU": (
        "libvirt.test_vgpu",
        "regressions.test_bug_2074219",
        "regressions.test_bug_2098892",
    ),
    "NUMA": (
        "libvirt.test_numa_servers",
        "libvirt.test_numa_live_migration",
        "regressions.test_bug_2139351",
        "regressions.test_bug_2140537",
        "regressions.test_bug_2152697",
        "regressions.test_bug_2153425",
    ),
    "live migration": ("libvirt.test_live_migration",),
    "evacuation": ("libvirt.test_evacuate",),
    "reshape": ("libvirt.test_reshape",),
    "power management": ("libvirt.test_power_manage",),
    "UEFI": ("libvirt.test_uefi",),
    "vPMEM": ("libvirt.test_vpmem",),
    "real time": ("libvirt.test_rt_servers",),
    "VIF models": ("libvirt.test_vif_model",),
    "shared providers": ("libvirt.test_shared_resource_provider",),
}
#: The PCI slots of the GPUs, one for each compute node of a test.
_SLOTS = ("0000:17", "0000:27", "0000:37")


def subjects() -> dict[str, str]:
    """Return the subject of each test, by the test's name without the prefix."""
    found: dict[str, str] = {}
    for subject, names in _SUBJECTS.items():
        for name in names:
            for case in _cases(_load(name)):
                found.setdefault(case.id().removeprefix(_PREFIX), subject)
    return found


def _load(name: str) -> unittest.TestSuite:
    return unittest.defaultTestLoader.loadTestsFromName(_PREFIX + name)


def _cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _cases(each)
        else:
            yield each


@dataclasses.dataclass(frozen=True)
class Run:
    """The run of one of Nova's tests.

    :ivar drivers: the class of each virt driver that Nova loaded.
    :ivar failures: log and traceback of each failure.
    :ivar skipped: Nova's reason, if Nova skips the test.
    """

    drivers: tuple[type, ...]
    failures: tuple[str, ...]
    skipped: tuple[str, ...]


def run(name: str, directory: Path | None = None) -> Run:
    """Run one of Nova's tests.

    :param name: of the test, without the prefix.
    :param directory: of the simulated kernel for the virt driver of os_acc; None: run
        it with Nova's own.
    """
    result = unittest.TestResult()
    module, _class, _method = name.rsplit(".", 2)
    (case,) = (each for each in _cases(_load(module)) if each.id() == _PREFIX + name)
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(_served(directory)) if directory else None
        stack.enter_context(_configured())
        drivers = stack.enter_context(_recorded())
        case.run(result)
        if nodes:
            nodes.check_unused()
    assert result.testsRun == 1
    assert not result.unexpectedSuccesses
    failures = (*result.errors, *result.failures)
    return Run(
        tuple(drivers),
        tuple(text for _, text in failures),
        tuple(reason for _, reason in result.skipped),
    )


class _Nodes:
    """The compute nodes of one test; its servers do not request their GPUs."""

    def __init__(self, host: TestHost) -> None:
        self._host = host
        self._nodes: dict[str, ComputeNode] = {}

    def deferred(self, name: str, interval: float) -> DeferredNode:
        """Return the handle of a node whose nova-compute starts, perhaps again."""
        if name in self._nodes:
            self._nodes[name].restart()
        else:
            gpu = f"{_SLOTS[len(self._nodes)]}:00.0"
            self._nodes[name] = ComputeNode(name, self._host, (gpu,))
        return self._nodes[name].deferred(interval)

    def without_ours(self, providers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the providers of a node without the one of its GPU, which is there."""
        ours = {
            each.uuid
            for node in self._nodes.values()
            for each in node.manager.providers()
        }
        others = [each for each in providers if each["uuid"] not in ours]
        assert len(others) == len(providers) - 1
        return others

    def check_unused(self) -> None:
        """Check that no server was attached to a GPU."""
        for node in self._nodes.values():
            assert node.leases() == {}
            assert self._host.drivers(*node.gpus) == ["nouveau"]


@contextlib.contextmanager
def _served(directory: Path) -> Iterator[_Nodes]:
    """Let Nova's tests select the driver of os_acc, which serves these nodes."""
    functions = (each for slot in _SLOTS for each in hosts.gpu(slot))
    conf.DriverSettings.load(CONF)
    loading.extend_nova_virt()
    # Some tests count the providers of a node.
    helper = integrated_helpers.PlacementHelperMixin
    in_tree = helper._get_all_rps_in_a_tree
    with TestHost(directory, HostSpec(tuple(functions))) as host:
        nodes = _Nodes(host)
        with (
            libvirt_servers.served_by(nodes.deferred),
            mock.patch.object(test.TestCase, "flags", _with_ours(test.TestCase.flags)),
            mock.patch.object(
                helper,
                "_get_all_rps_in_a_tree",
                lambda case, root: nodes.without_ours(in_tree(case, root)),
            ),
        ):
            yield nodes


def _with_ours(flags: Callable[..., None]) -> Callable[..., None]:
    """Return Nova's function that sets options, with our driver for Nova's."""

    def with_ours(case: Any, **options: Any) -> None:
        if options.get("compute_driver") == "libvirt.LibvirtDriver":
            options["compute_driver"] = loading.DRIVER
        flags(case, **options)

    return with_ours


@contextlib.contextmanager
def _configured() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, group, value in _overrides():
            CONF.set_override(name, value, group=group)
            stack.callback(CONF.clear_override, name, group=group)
        yield


def _overrides() -> Iterator[tuple[str, str, str]]:
    # Nova's tests expect this file in a checkout of Nova.
    yield "api_paste_config", "wsgi", f"{sys.prefix}/etc/nova/api-paste.ini"
    # Threads of a test share a SQLite file: 5 seconds are few on a busy machine.
    for group in ("database", "api_database"):
        yield "connection_parameters", group, "timeout=120"


@contextlib.contextmanager
def _recorded() -> Iterator[list[type]]:
    """Record the class of each virt driver that Nova loads, in a block."""
    loaded: list[type] = []
    load = driver.load_compute_driver

    def recorded(*args: Any, **kwargs: Any) -> Any:
        found = load(*args, **kwargs)
        loaded.append(type(found))
        return found

    with mock.patch.object(driver, "load_compute_driver", recorded):
        yield loaded
