# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from stevedore import ExtensionManager

from os_acc import plugins, service
from os_acc.attach.manager import Manager
from os_acc.objects.pci import PciAddress
from os_acc.privsep import rootconf, worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel, HostSpec, hosts
from tests.unit import acme_fpga
from tests.unit.bench import Bench, privileged_here
from tests.unit.bitstreams.glance_double import Double, listening
from tests.unit.fpga import CRYPTO, POWER_ON, VFS, FpgaBench, two_cards


@pytest.fixture(autouse=True)
def _own_root_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the root configuration that a test has read when it ends."""
    monkeypatch.setattr(rootconf, "_last", rootconf._last)


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a fake host that privileged code talks to, and what runs on it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(privileged_here())

        def make(spec: HostSpec | None = None, **options: object) -> Bench:
            bench = Bench(tmp_path, spec or hosts.two_socket_host(), **options)
            stack.enter_context(bench.kernel.installed())
            stack.callback(bench.end)
            return bench

        yield make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """The two-socket host, with everything on it named."""
    return make_bench()


@pytest.fixture
def fake(bench: Bench) -> FakeKernel:
    """The kernel of the two-socket host."""
    return bench.kernel


@pytest.fixture
def let_a_device_see(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Record an epoch for a device, as a call does while the clock is that far."""

    def see(address: str, epoch: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "clock", worker.Clock(lambda: epoch * 1000))
            (answer,) = worker.run(
                [PciAddress.parse(address)], epoch, 30, lambda _: CallResult(Outcome.OK)
            )
        assert answer.outcome == Outcome.OK

    return see


@pytest.fixture
def manager(bench: Bench) -> Manager:
    """The manager on the two-socket host."""
    return bench.manager


@pytest.fixture
def api(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The public API on the two-socket host, with one instance on it."""
    monkeypatch.setattr(service, "_manager", bench.manager)
    bench.plug(1, "0000:5e:00.0")
    return bench


@pytest.fixture
def make_fpgas(tmp_path: Path) -> Iterator[Callable[..., FpgaBench]]:
    """Make a fake host with FPGA cards; two cards of one region without more."""
    with contextlib.ExitStack() as stack:

        def make(spec: HostSpec | None = None, **options: object) -> FpgaBench:
            bench = FpgaBench(tmp_path, spec or two_cards(), **options)
            return stack.enter_context(bench.working())

        yield make


@pytest.fixture
def fpgas(make_fpgas: Callable[..., FpgaBench]) -> FpgaBench:
    """The host with two cards, each of them one region."""
    return make_fpgas()


@pytest.fixture
def ports(make_fpgas: Callable[..., FpgaBench]) -> FpgaBench:
    """A card that stays with the host, whose two regions go to guests as VFs."""
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    return make_fpgas(HostSpec((card,)), device_spec=[VFS])


@pytest.fixture
def glance() -> Iterator[Double]:
    """A Keystone and a Glance that listen."""
    with listening() as server:
        yield server


@pytest.fixture
def two_functions(
    make_fpgas: Callable[..., FpgaBench], monkeypatch: pytest.MonkeyPatch
) -> FpgaBench:
    """A card with a region of two functions, and bitstreams for it."""
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        plugins.NAMESPACE,
        [EntryPoint("acme", "tests.unit.acme_fpga:TwoFunctions", plugins.NAMESPACE)],
    )
    monkeypatch.setattr(acme_fpga.TwoFunctions, "holds", POWER_ON)
    monkeypatch.setattr(acme_fpga.TwoFunctions, "programmed", [], raising=False)
    bench = make_fpgas(acme_fpga.host())
    bench.upload()
    bench.upload("crypto", CRYPTO)
    return bench
