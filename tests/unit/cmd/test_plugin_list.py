# SPDX-License-Identifier: Apache-2.0

"""``os-acc plugin list``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest
from stevedore import ExtensionManager

from os_acc.plugins import loader
from os_acc.plugins.loader import NAMESPACE
from tests.unit.cmd.console import Console
from tests.unit.cmd.golden_files import expect

HERE = "tests.unit.acme"


@pytest.fixture
def installed(
    monkeypatch: pytest.MonkeyPatch, install_plugins: Callable[..., None]
) -> None:
    """Install plugins in each state, and two of one name."""
    install_plugins(
        acme=f"{HERE}:Acme",
        fails=f"{HERE}:FailsToStart",
        lost=f"{HERE}:FailsToDiscover",
        newer=f"{HERE}:Newer",
        off="tests.unit.no_such_module:Acme",
    )
    ExtensionManager.ENTRY_POINT_CACHE[NAMESPACE] += [
        EntryPoint("twice", f"{HERE}:{kind}", NAMESPACE) for kind in ("Acme", "Rival")
    ]

    def distribution_of(point: EntryPoint) -> tuple[str, str]:
        if point.name == "pci":
            return "os-acc", "1.0.0"
        if point.name == "twice":
            return {"Acme": "acme-gpu", "Rival": "rival-gpu"}[point.attr], "0.3"
        return f"acme-{point.name}", "0.3"

    monkeypatch.setattr(loader, "distribution_of", distribution_of)


ENABLED = "enabled_plugins = acme,fails,lost,newer,pci,twice"


def test_what_the_manual_shows_of_the_plugins(
    console: Console, installed: None
) -> None:
    console.configure(more=ENABLED)
    ran = console.run("plugin", "list", "--max-width", "120")
    assert ran.status == 0
    expect("plugin-list.txt", ran.out)


def test_the_plugins_of_os_acc_are_those_of_its_distribution(console: Console) -> None:
    found = console.json("plugin", "list")
    assert {each["Distribution"] for each in found} == {"os-acc"}
    assert {each["State"] for each in found} == {"loaded"}
