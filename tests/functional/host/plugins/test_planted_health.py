# SPDX-License-Identifier: Apache-2.0

"""Each bug of a health step is reported, and costs no device and no other plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from os_acc.inventory import health_steps
from os_acc.plugins import base
from os_acc.privsep import worker
from os_acc.testing import TestHost
from tests.functional.host.plugins.planted_health import HERE
from tests.functional.host.plugins.test_planted_bugs import offered
from tests.unit.cmd.console import Console

FIRST, SECOND, GPU = "0000:5e:00.0", "0000:e3:00.0", "0000:17:00.0"

# The defect of each health step.
HEALTH = {
    "HealthRaises": "raised RuntimeError: no firmware",
    "HealthExits": "SystemExit: 1",
    "HealthLeaves": "ended without an answer",
    "HealthIsText": "returned 'is too hot', which is not a pair of a fault and",
    "HealthHasFloat": "returned a tuple, no plain value",
    "HealthHasBool": "True is no number",
    "HealthHasTitle": "'Fan 1' is no name of a reading",
    "HealthHasReport": "whose fault is no phrase for the operator",
}


@pytest.fixture
def make_host(make_bench, install_plugins):
    """Return a function that builds a host of two cards of a plugin, and a GPU."""

    def make(plugin: str) -> TestHost:
        install_plugins(bad=f"{HERE}:{plugin}")
        named = [f'{{"address": "{each}"}}' for each in (FIRST, SECOND, GPU[:-1] + "*")]
        return make_bench(device_spec=named)

    return make


@pytest.mark.parametrize("plugin", HEALTH)
@pytest.mark.share(4)
def test_a_wrong_health_step_is_reported_and_costs_no_device(
    make_host, tmp_path, caplog, plugin
):
    host = make_host(plugin)
    manager = host.manager
    for _ in range(3):
        manager.health_steps.read()
    (message,) = (
        each.getMessage()
        for each in caplog.records
        if "defect to the vendor" in each.getMessage()
    )
    assert HEALTH[plugin] in message
    assert FIRST in message
    assert [str(each) for _, each in manager.health_steps.defects] == [FIRST]
    assert offered(host.manager) == {FIRST: "bad", SECOND: "bad", GPU: "pci"}
    assert not manager.catalog.health.faults
    host.plug(1, FIRST, SECOND, GPU)
    assert host.unplug(1) == 3
    assert Console(host, tmp_path).run("metrics").status == 0


def test_a_health_step_that_hangs_reserves_its_card_alone(make_host, monkeypatch):
    monkeypatch.setattr(health_steps, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(worker, "_LOCK_SECONDS", 0.1)
    host = make_host("HealthHangs")
    hangs = Path(host.root, "sys/hangs")
    hangs.touch()
    manager = host.manager
    manager.health_steps.read()
    assert dict(manager.catalog.health.faults) == {
        base.PciAddress.parse(FIRST): health_steps.STUCK
    }
    host.plug(1, SECOND, GPU)
    hangs.unlink()
    for pid in tuple(worker._stuck):
        os.waitpid(pid, 0)
    manager.health_steps.read()
    assert not manager.catalog.health.faults
    host.plug(2, FIRST)


def test_a_function_that_is_no_step_sets_the_plugin_aside(make_host):
    host = make_host("HealthIsFunction")
    (aside,) = host.manager.host_info()["set_aside"]
    assert "which no health_step() made" in aside["reason"]
    assert offered(host.manager) == dict.fromkeys((FIRST, SECOND, GPU), "pci")
