# SPDX-License-Identifier: Apache-2.0

"""Plugins of installed distributions: equal names, and plugins that are not enabled."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stevedore import ExtensionManager, _cache

from os_acc import conf
from os_acc.plugins import loader
from os_acc.testing import TestHost
from tests.unit import acme
from tests.unit.cmd.console import Console

ACME = "tests.unit.acme:Acme"
CARD = "0000:5e:00.0"
HANGS = "tests.unit.acme_that_hangs"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs the metadata of a distribution."""
    sys.modules.pop(HANGS, None)
    site = tmp_path / "site"

    def put(distribution: str, version: str = "1.0", **names: str) -> None:
        directory = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        directory.mkdir(parents=True)
        (directory / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        points = "".join(f"{name} = {at}\n" for name, at in names.items())
        (directory / "entry_points.txt").write_text(f"[os_acc]\n{points}")
        # The caches are those of the time before.
        monkeypatch.setattr(_cache._c, "_internal", {})
        monkeypatch.setattr(_cache._c, "_disable_caching", True)
        monkeypatch.setattr(_cache._c, "_dir", str(tmp_path / "cache"))
        monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})
        monkeypatch.syspath_prepend(str(site))

    yield put
    sys.modules.pop(HANGS, None)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Let a plugin hang while it is imported, until the test ends."""
    acme.NeverReturns.gate.clear()
    yield acme.NeverReturns.gate
    acme.NeverReturns.gate.set()


def reasons(host: TestHost) -> dict[str, str]:
    return {each.name: each.reason for each in host.manager.plugins.set_aside}


# -- equal names ---------------------------------------------------------------


def test_plugins_of_two_distributions_with_one_name_are_both_set_aside(bench, install):
    install("acme-one", "1.2", acme=ACME)
    install("acme-two", "0.9", acme="tests.unit.acme:Rival")
    bench.restart()
    assert [each.name for each in bench.manager.plugins.loaded].count("acme") == 0
    (reason,) = [reasons(bench)["acme"]]
    assert "acme-one 1.2" in reason
    assert "acme-two 0.9" in reason
    assert bench.provider(CARD).device.plugin != "acme"


def test_devices_of_a_plugin_wait_until_its_name_is_unique_again(bench, install):
    install("acme-one", acme=ACME)
    bench.restart()
    assert bench.provider(CARD).device.plugin == "acme"
    install("acme-two", acme="tests.unit.acme:Rival")
    bench.restart()
    assert "acme-two 1.0" in bench.rejected(CARD).detail


def test_the_options_of_an_ambiguous_plugin_are_those_of_none(install):
    install("acme-one", acme=ACME)
    install("acme-two", acme="tests.unit.acme:Rival")
    assert "os_acc_acme" not in dict(loader.list_opts())


def test_a_distribution_is_named_with_its_version(install):
    install("acme-one", "1.2", acme=ACME)
    (found,) = loader.installed(["acme"])
    assert (found.conflict, found.sources) == ("", ("acme-one 1.2",))


# -- plugins that are not enabled -------------------------------------------------


def test_a_plugin_that_is_not_enabled_is_not_imported(bench, install, tmp_path):
    install("acme", acme=f"{HANGS}:Acme")
    bench.restart(enabled_plugins=["pci"])
    console = Console(bench, tmp_path)
    console.configure(more="enabled_plugins = pci\n[os_acc_acme]\nvendor = 1\n")
    assert console.device(CARD)["State"] == "free"
    (names,) = console.checks()["options"]
    assert names["Result"] == "ok"
    assert HANGS not in sys.modules


def test_an_enabled_plugin_that_hangs_costs_its_options_alone(
    install, gate, monkeypatch
):
    monkeypatch.setattr(loader, "_LOAD_SECONDS", 0.2)
    install("acme", acme=f"{HANGS}:Acme", other=ACME)
    assert {"os_acc_other", "os_acc"} <= {
        group if isinstance(group, str) else group.name for group, _ in conf.list_opts()
    }
