# SPDX-License-Identifier: Apache-2.0

"""A plugin that hangs for one device quarantines no other one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import ClassVar

import pytest

from os_acc import exception
from os_acc.inventory import plugin_discovery
from os_acc.objects.device import Device
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base
from os_acc.testing import TestHost
from tests.unit.acme import Acme, NeverReturns

CARD = "0000:5e:00.0"


class Hangs(Acme):
    """Hangs in its scans where a test wants it to."""

    in_scans: ClassVar[bool] = False

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        if self.in_scans:
            NeverReturns.wait()
        return super().discover(candidates)


@pytest.fixture
def host(make_bench, install_plugins) -> Iterator[TestHost]:
    NeverReturns.gate.clear()
    install_plugins(acme=f"{__name__}:Hangs")
    bench = make_bench()
    bench.plug(1, CARD)
    yield bench
    NeverReturns.gate.set()


def hang_in_a_scan(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(plugin_discovery, "_DISCOVER_SECONDS", 0.1)
        patch.setattr(Hangs, "in_scans", True)
        host.manager.discover()


def hang_for_another_device(host: TestHost, _patch: pytest.MonkeyPatch) -> None:
    plugins = host.manager.plugins
    with pytest.raises(exception.PluginFailed, match="did not return"):
        plugins.call(plugins.loaded[0], 0.1, NeverReturns.wait)


@pytest.mark.parametrize("hang", [hang_in_a_scan, hang_for_another_device])
def test_an_unplug_beside_a_hanging_call_is_repeated(host, monkeypatch, hang):
    hang(host, monkeypatch)
    assert host.manager.plugins.hanging() == ("acme",)
    with pytest.raises(exception.DevicesUnreleased, match="earlier call") as caught:
        host.unplug(1)
    assert caught.value.retryable
    assert host.lease_state(1) is LeaseState.RELEASING
    NeverReturns.gate.set()
    while host.manager.plugins.hanging():
        time.sleep(0.01)
    assert host.unplug(1) == 1
    assert host.plug(2, CARD)
