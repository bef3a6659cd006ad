# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from acme_accelerator import hardware
from stevedore import ExtensionManager

from os_acc import deadlines, native_threads, privsep, service
from os_acc.attach.manager import Manager
from os_acc.attach.recovery import Retrier
from os_acc.helper import client
from os_acc.objects.pci import PciAddress
from os_acc.plugins import loader
from os_acc.privsep import privileged_conf, worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel, HostSpec, TestHost, hosts
from tests.unit import acme_card
from tests.unit.bitstreams.glance_double import Double, listening
from tests.unit.fpga import CRYPTO, POWER_ON, VFS, two_cards, upload

_MEMORY, _MEMORY_BYTES = "/dev/shm", 4 << 30


def pytest_configure() -> None:
    """Keep the simulated hosts in memory, unless ``TMPDIR`` names another place.

    Creating and removing them on a disk takes half of their time.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    place = os.statvfs(_MEMORY)
    has_space = place.f_bavail * place.f_frsize >= _MEMORY_BYTES
    if has_space and not place.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = _MEMORY
        tempfile.tempdir = None


@pytest.fixture(autouse=True)
def _own_root_configuration() -> Iterator[None]:
    """Forget the root configuration that a test has read when it ends.

    Without ``monkeypatch``: in an autouse fixture, it would undo its changes after
    those of the hosts.
    """
    before = privileged_conf._last
    yield
    privileged_conf._last = before


@pytest.fixture(autouse=True)
def _nothing_continues() -> Iterator[None]:
    """End the rounds of retries and the helpers that a test has started.

    They would continue in later tests: log into their output, and serve the host for
    which they were started. A helper that is still starting would do so, too.
    """
    yield
    for each in deadlines.fork_aware():
        if isinstance(each, Retrier):
            assert each.stop(60)
    for each in deadlines.fork_aware():
        if isinstance(each, client.Helper):
            for start in [link._start for link in each._links.values()]:
                if start is not None:
                    futures.wait([start.over], start.until - time.monotonic())
    for context in privsep.contexts():
        context.stop()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., TestHost]]:
    """Return a function that builds a fake host for privileged code and the library."""
    with contextlib.ExitStack() as stack:

        def make(spec: HostSpec | None = None, **options: Any) -> TestHost:
            # A child of a process with greenlets, as a helper in here forks, has none.
            options.setdefault("separate_helper", native_threads.is_needed())
            host = TestHost(tmp_path, spec or hosts.two_socket_host(), **options)
            return stack.enter_context(host)

        yield make


@pytest.fixture
def bench(make_bench: Callable[..., TestHost]) -> TestHost:
    """Return the two-socket host, with every device in ``device_spec``."""
    return make_bench()


@pytest.fixture
def fake(bench: TestHost) -> FakeKernel:
    """Return the kernel of the two-socket host."""
    return bench.kernel


@pytest.fixture
def let_a_device_see(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Return a function that records an epoch, as a call at that time of the clock."""

    def see(address: str, epoch: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "clock", worker.Clock(lambda: epoch * 1000))
            (answer,) = worker.run(
                [PciAddress.parse(address)], epoch, 30, lambda _: CallResult(Outcome.OK)
            )
        assert answer.outcome == Outcome.OK

    return see


@pytest.fixture
def manager(bench: TestHost) -> Manager:
    """Return the manager of the two-socket host."""
    return bench.manager


@pytest.fixture
def api(bench: TestHost, monkeypatch: pytest.MonkeyPatch) -> TestHost:
    """Return the two-socket host with the public API and one instance."""
    monkeypatch.setattr(service, "nodes", service.Nodes(bench.manager))
    bench.plug(1, "0000:5e:00.0")
    return bench


@pytest.fixture
def make_fpgas(make_bench: Callable[..., TestHost]) -> Callable[..., TestHost]:
    """Return a function that builds a host, by default with two cards of one region."""

    def make(spec: HostSpec | None = None, **options: Any) -> TestHost:
        return make_bench(spec or two_cards(), **options)

    return make


@pytest.fixture
def fpgas(make_fpgas: Callable[..., TestHost]) -> TestHost:
    """Return the host with two cards of one region each."""
    return make_fpgas()


@pytest.fixture
def ports(make_fpgas: Callable[..., TestHost]) -> TestHost:
    """Return a host whose card keeps its PF and offers two regions to guests as VFs."""
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    return make_fpgas(HostSpec((card,)), device_spec=[VFS])


@pytest.fixture
def glance() -> Iterator[Double]:
    """Run a double of Keystone and Glance."""
    with listening() as server:
        yield server


@pytest.fixture
def install_plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs plugins beside the fallback.

    Each argument maps the name of a plugin to the path of its class.
    """

    def as_entry_points(**names: str) -> None:
        found = {"pci": "os_acc.plugins.pci:PciPlugin", **names}
        monkeypatch.setitem(
            ExtensionManager.ENTRY_POINT_CACHE,
            loader.NAMESPACE,
            [EntryPoint(name, at, loader.NAMESPACE) for name, at in found.items()],
        )

    return as_entry_points


@pytest.fixture
def programmed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the first functions written to the region of two functions."""
    found: list[str] = []
    write = hardware.write_functions

    def note(
        node: int,
        functions: Sequence[str],
        data: bytes,
        seconds_left: Callable[[], float],
    ) -> None:
        write(node, functions, data, seconds_left)
        found.append(functions[0])

    monkeypatch.setattr(hardware, "write_functions", note)
    return found


@pytest.fixture
def _example_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example plugin alone."""
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        loader.NAMESPACE,
        [EntryPoint("acme", acme_card.PLUGIN, loader.NAMESPACE)],
    )


@pytest.fixture
def two_functions(
    make_fpgas: Callable[..., TestHost], _example_plugin: None
) -> TestHost:
    """Return a host with a region of two functions, and bitstreams for it."""
    bench = make_fpgas(acme_card.spec(), device_spec=[VFS])
    acme_card.hold(bench, POWER_ON)
    upload(bench, interface=acme_card.INTERFACE)
    upload(bench, "crypto", CRYPTO, interface=acme_card.INTERFACE)
    return bench
