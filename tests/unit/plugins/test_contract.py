# SPDX-License-Identifier: Apache-2.0

"""The plugin contract is frozen: a vendor's plugin runs on every later os_acc 1.x.

See "Compatibility" in doc/source/contributor/plugins.rst.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from os_acc.plugins import base
from tools import plugin_contract

BASE = plugin_contract.BASE
RECORDED = plugin_contract.recorded()
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("version", sorted(RECORDED), ids=str)
def test_a_plugin_for_a_frozen_version_runs_on_this_one(version):
    if version[0] == base.CONTRACT_VERSION[0]:
        found = plugin_contract.breaks(RECORDED[version], plugin_contract.describe())
        assert found == [], f"contract {version} is frozen; plugins would break"


def test_this_version_is_recorded_and_nothing_was_added_since():
    recorded = RECORDED[base.CONTRACT_VERSION]
    now = plugin_contract.describe()
    changed = {
        name
        for name in recorded.keys() | now.keys()
        if recorded.get(name) != now.get(name)
    }
    assert changed == set(), (
        "an addition needs a higher minor number in CONTRACT_VERSION, and a record:"
        " python tools/plugin_contract.py --record"
    )


@pytest.mark.parametrize("version", sorted(RECORDED), ids=str)
def test_a_frozen_record_and_its_example_are_not_edited(version):
    """They prove that os_acc still runs what a vendor wrote for that version.

    Edited with os_acc, they would prove only that both changed together.
    """
    sums = plugin_contract.record_of(version).with_suffix(".sha256").read_text()
    assert plugin_contract.checksums(version) == sums


def test_the_example_has_all_its_files():
    names = {each.name for each in plugin_contract.frozen_files((1, 2))}
    assert {"1.2.json", "README.rst", "pyproject.toml", "plugin.py"} <= names
    assert "test_plugin.py" in names


def test_every_name_of_the_contract_can_be_imported_from_one_module():
    assert [name for name in base.__all__ if not hasattr(base, name)] == []


def test_each_type_that_the_contract_mentions_belongs_to_it():
    ours = {
        name
        for module, found in list(sys.modules.items())
        if module.startswith(("os_acc.objects", "os_acc.exception", BASE))
        for name, value in vars(found).items()
        if isinstance(value, type) and value.__module__ == module
    }
    of_base = {
        name: part
        for name, part in plugin_contract.describe().items()
        if name.startswith(BASE)
    }
    mentioned = set(re.findall(r"\b[A-Z]\w+", str(list(of_base.values()))))
    assert "UsableFunction" in mentioned & ours
    assert (mentioned & ours) - set(base.__all__) == set()


# -- the comparison itself ---------------------------------------------------


class Small:
    """A description with one part of each kind."""

    def __init__(self) -> None:
        parameter = ["region", "POSITIONAL_OR_KEYWORD", "Region", "required"]
        method = {"parameters": [parameter], "returns": "None", "abstract": False}
        self.description: dict[str, Any] = {
            f"{BASE}.Region": {
                "bases": [],
                "fields": [["card", "PciAddress", "required"]],
                "methods": {"key": {"property": "str"}},
            },
            f"{BASE}.RejectReason": {"bases": [], "members": ["MANAGEMENT"]},
            f"{BASE}.PluginBase": {
                "bases": [],
                "attributes": {"is_fallback": ["ClassVar[bool]", "False"]},
                "methods": {"program": method},
            },
            f"{BASE}.PrivilegedSteps": {
                "bases": ["Protocol"],
                "attributes": {},
                "methods": {"load_xclbin": copy.deepcopy(method)},
            },
        }

    def changed(self, name: str, change: Change) -> list[str]:
        """Return what a change of one part breaks."""
        new = copy.deepcopy(self.description)
        change(new[f"{BASE}.{name}"])
        return plugin_contract.breaks(self.description, new)


def method(part: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = part["methods"][name]
    return found


NEW = ["extra", "POSITIONAL_OR_KEYWORD", "int", "0"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Region", lambda part: part["fields"].clear()),
        ("Region", lambda part: part["fields"][0].__setitem__(0, "pf")),
        ("Region", lambda part: part["fields"][0].__setitem__(1, "str")),
        ("Region", lambda part: part["fields"][0].__setitem__(2, "None")),
        ("Region", lambda part: part["fields"].insert(0, NEW)),
        ("Region", lambda part: part["fields"].append(["new", "int", "required"])),
        ("Region", lambda part: part["methods"].clear()),
        ("Region", lambda part: part["methods"].update(key={"property": "int"})),
        ("Region", lambda part: part.pop("fields")),
        ("RejectReason", lambda part: part["members"].clear()),
        ("PluginBase", lambda part: part["bases"].append("ABC")),
        ("PluginBase", lambda part: part["attributes"].clear()),
        (
            "PluginBase",
            lambda part: part["attributes"].update(is_fallback=["bool", "True"]),
        ),
        (
            "PluginBase",
            lambda part: part["attributes"].update(new=["ClassVar[str]", "'required'"]),
        ),
        ("PluginBase", lambda part: method(part, "program")["parameters"].append(NEW)),
        ("PluginBase", lambda part: method(part, "program").update(returns="int")),
        ("PluginBase", lambda part: method(part, "program").update(abstract=True)),
        (
            "PluginBase",
            lambda part: part["methods"].update(
                new={"parameters": [], "returns": "None", "abstract": True}
            ),
        ),
        (
            "PrivilegedSteps",
            lambda part: method(part, "load_xclbin")["parameters"].clear(),
        ),
        (
            "PrivilegedSteps",
            lambda part: method(part, "load_xclbin")["parameters"].append(
                [*NEW[:3], "required"]
            ),
        ),
    ],
)
def test_a_change_that_breaks_plugins_is_reported(name, change):
    (found,) = Small().changed(name, change)[:1]
    assert found.startswith(f"{BASE}.{name}")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Region", lambda part: part["fields"].append(["new", "int", "0"])),
        ("Region", lambda part: part["methods"].update(new={"property": "int"})),
        ("RejectReason", lambda part: part["members"].append("NEW")),
        (
            "PluginBase",
            lambda part: part["attributes"].update(new=["ClassVar[bool]", "False"]),
        ),
        (
            "PluginBase",
            lambda part: part["methods"].update(
                new={"parameters": [], "returns": "None", "abstract": False}
            ),
        ),
        (
            "PrivilegedSteps",
            lambda part: method(part, "load_xclbin")["parameters"].append(NEW),
        ),
    ],
)
def test_an_addition_with_a_default_breaks_no_plugin(name, change):
    assert Small().changed(name, change) == []


def test_a_name_that_is_removed_is_reported():
    old = Small().description
    new = {name: part for name, part in old.items() if not name.endswith("Region")}
    assert plugin_contract.breaks(old, new) == [f"{BASE}.Region was removed"]


def test_inspection_sees_each_kind_of_change(monkeypatch):
    """The description follows the code: a renamed parameter of a real method."""

    def program(self, region, bitstream, privileged_steps): ...

    monkeypatch.setattr(base.PluginBase, "program", program)
    monkeypatch.setattr(base.PluginBase, "is_fallback", True)
    monkeypatch.delattr(base.PciAddress, "same_slot")
    recorded = RECORDED[base.CONTRACT_VERSION]
    found = plugin_contract.breaks(recorded, plugin_contract.describe())
    text = "\n".join(found)
    assert "PluginBase.program()" in text
    assert "PluginBase.is_fallback" in text
    assert "PciAddress.same_slot() was removed" in text
