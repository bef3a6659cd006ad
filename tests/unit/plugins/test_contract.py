# SPDX-License-Identifier: Apache-2.0

"""The plugin contract: its description, and the comparison with released versions.

See "Compatibility" in doc/source/contributor/plugins.rst.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.plugins import base
from os_acc.testing import HostSpec, TestHost
from tools import plugin_contract

BASE = plugin_contract.BASE
Change = Callable[[dict[str, Any]], object]


def test_no_plugin_for_a_released_version_breaks():
    assert plugin_contract.broken() == []


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


# -- records -------------------------------------------------------------------


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Release the current version into an empty directory of records."""
    monkeypatch.setattr(plugin_contract, "RECORDS", tmp_path / "contract")
    assert plugin_contract.recorded() == {}
    assert plugin_contract.main(["--record"]) == 0


def test_a_released_version_that_is_changed_is_noticed(records, monkeypatch):
    assert plugin_contract.broken() == []
    monkeypatch.setattr(base.PluginBase, "is_fallback", True)
    (found,) = plugin_contract.broken()
    assert found.startswith(f"1.0: {BASE}.PluginBase.is_fallback")


def test_a_new_major_version_may_change_everything(records, monkeypatch):
    monkeypatch.setattr(base, "CONTRACT_VERSION", (2, 0))
    monkeypatch.setattr(base.PluginBase, "is_fallback", True)
    assert plugin_contract.broken() == []
    assert plugin_contract.main(["--record"]) == 0
    assert sorted(plugin_contract.recorded()) == [(1, 0), (2, 0)]


def test_a_record_that_exists_is_not_replaced(records, monkeypatch, capsys):
    before = plugin_contract.recorded()
    monkeypatch.setattr(plugin_contract, "describe", lambda: {"new": {}})
    assert plugin_contract.main(["--record"]) == 1
    assert "raise CONTRACT_VERSION" in capsys.readouterr().err
    assert plugin_contract.recorded() == before


# -- the comparison itself ---------------------------------------------------


class Small:
    """A description with one part of each kind."""

    def __init__(self) -> None:
        parameter = ["region", "POSITIONAL_OR_KEYWORD", "Region", "required"]
        method = {"parameters": [parameter], "returns": "None", "abstract": False}
        self.description: dict[str, Any] = {
            f"{BASE}.Region": {
                "bases": [],
                "fields": [["card", "PciAddress", "POSITIONAL_OR_KEYWORD", "required"]],
                "is_frozen": True,
                "is_ordered": True,
                "has_str": True,
                "methods": {"key": {"property": "str"}},
            },
            f"{BASE}.RejectReason": {
                "bases": [],
                "members": ["MANAGEMENT"],
                "attributes": {},
            },
            f"{BASE}.DeviceInUse": {
                "bases": ["HostError"],
                "attributes": {
                    "errors": ["", ""],
                    "holders": ["tuple", ""],
                    "retryable": ["bool", "True"],
                },
                "is_ordered": False,
                "has_str": True,
                "methods": {},
            },
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
        """Return the breaks that a change of one part causes."""
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
        ("Region", lambda part: part["fields"].append([*NEW[:3], "required"])),
        ("Region", lambda part: part.update(is_frozen=False)),
        ("Region", lambda part: part["methods"].clear()),
        ("Region", lambda part: part["methods"].update(key={"property": "int"})),
        ("Region", lambda part: part.pop("fields")),
        ("RejectReason", lambda part: part["members"].clear()),
        ("DeviceInUse", lambda part: part["attributes"].pop("errors")),
        ("DeviceInUse", lambda part: part["attributes"].update(holders=["int", ""])),
        (
            "DeviceInUse",
            lambda part: part["attributes"].update(retryable=["bool", "False"]),
        ),
        ("PluginBase", lambda part: part["bases"].append("ABC")),
        (
            "PluginBase",
            lambda part: part["attributes"].update(new=["ClassVar[str]", "'required'"]),
        ),
        ("PluginBase", lambda part: method(part, "program")["parameters"].append(NEW)),
        ("PluginBase", lambda part: method(part, "program").update(returns="int")),
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
    ],
)
def test_a_change_that_breaks_plugins_is_reported(name, change):
    (found,) = Small().changed(name, change)[:1]
    assert found.startswith(f"{BASE}.{name}")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Region", lambda part: part["fields"].append(NEW)),
        ("DeviceInUse", lambda part: part.update(is_ordered=True)),
        ("DeviceInUse", lambda part: part["attributes"].update(new=["", ""])),
        ("DeviceInUse", lambda part: part["attributes"].update(errors=["tuple", ""])),
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
    """The description follows the code, such as a renamed parameter of a method."""

    def program(self, region, bitstream, privileged_steps): ...

    before = plugin_contract.describe()
    monkeypatch.setattr(base.PluginBase, "program", program)
    monkeypatch.setattr(base.PluginBase, "is_fallback", True)
    monkeypatch.delattr(base.PciAddress, "same_slot")
    monkeypatch.setattr(base.DeviceChanged, "reason", base.ChangeReason.UNSETTLED)
    monkeypatch.setattr(base.ChangeReason.UNSETTLED, "retryable", False)
    found = plugin_contract.breaks(before, plugin_contract.describe())
    text = "\n".join(found)
    assert "PluginBase.program()" in text
    assert "PluginBase.is_fallback" in text
    assert "PciAddress.same_slot() was removed" in text
    assert "DeviceChanged.reason is" in text
    assert "ChangeReason.UNSETTLED retryable was removed" in text


# -- the description -------------------------------------------------------------


def described(name: str) -> Any:
    return plugin_contract.describe()[name]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("OsAccError", {"message": "str", "hint": "str"}),
        ("HostError", {"address": "str", "errno": "int", "message": "str"}),
        ("DeviceInUse", {"holders": "tuple[tuple[int, str], ...]", "errno": "int"}),
        ("ProgrammingFailed", {"errors": "tuple[str, ...]", "address": "str"}),
        ("ErrorReason", {"hint": "str", "retryable": "bool"}),
    ],
)
def test_attributes_of_instances_are_described(name, attributes):
    found = described(f"{BASE}.{name}")["attributes"]
    assert {key: found[key][0] for key in attributes} == attributes


def test_an_attribute_that_an_error_no_longer_sets_is_reported(monkeypatch):
    def __init__(self, message, *, holders=(), **rest):
        super(exception.DeviceInUse, self).__init__(message, **rest)

    before = plugin_contract.describe()
    monkeypatch.setattr(exception.DeviceInUse, "__init__", __init__)
    found = plugin_contract.breaks(before, plugin_contract.describe())
    assert f"{BASE}.DeviceInUse.holders was removed" in found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fault", exception.Fault.SERVICE),
        ("retryable", False),
        ("elsewhere", False),
    ],
)
def test_the_properties_of_an_error_are_described(monkeypatch, name, value):
    before = plugin_contract.describe()
    monkeypatch.setattr(exception.DeviceInUse, name, value)
    found = plugin_contract.breaks(before, plugin_contract.describe())
    assert [each.split(" is ")[0] for each in found] == [f"{BASE}.DeviceInUse.{name}"]


def test_the_hint_of_an_error_may_be_worded_differently(monkeypatch):
    before = plugin_contract.describe()
    monkeypatch.setattr(exception.DeviceInUse, "default_hint", "wait")
    assert plugin_contract.describe() == before


@pytest.mark.parametrize(
    ("name", "is_ordered", "has_str"),
    [("PciAddress", True, True), ("Region", False, True), ("Header", False, False)],
)
def test_the_abilities_of_values_are_described(name, is_ordered, has_str):
    found = described(f"{BASE}.{name}")
    abilities = found["is_frozen"], found["is_ordered"], found["has_str"]
    assert abilities == (True, is_ordered, has_str)


def test_the_kind_of_a_parameter_of_a_data_class_is_described():
    @dataclasses.dataclass
    class Value:
        first: int
        second: int = dataclasses.field(default=0, kw_only=True)
        third: int = dataclasses.field(default=0, init=False)

    found = plugin_contract.describe_class(Value)
    assert [each[2:] for each in found["fields"]] == [
        ["POSITIONAL_OR_KEYWORD", "required"],
        ["KEYWORD_ONLY", "0"],
        ["NO_PARAMETER", "0"],
    ]
    assert not found["is_frozen"]


def test_defaults_of_what_serves_tests_may_change(monkeypatch):
    """The defaults describe simulated hardware, or are values of other modules."""
    before = plugin_contract.describe()
    for field in dataclasses.fields(HostSpec):
        monkeypatch.setattr(field, "default", 7)
    defaults = TestHost.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "xrt_tools", "/usr")
    assert plugin_contract.describe() == before
    monkeypatch.delitem(defaults, "xrt_tools")
    found = plugin_contract.breaks(before, plugin_contract.describe())
    assert len(found) == 1
    assert found[0].startswith("os_acc.testing.TestHost.__init__()")


def test_every_member_that_is_promised_is_described():
    for (module, name), members in plugin_contract.OTHERS.items():
        found = described(f"{module}.{name}")
        names = found["methods"].keys() | found.get("attributes", {}).keys()
        assert names == set(members)


# -- the manual ------------------------------------------------------------------

MANUAL = Path(__file__).parents[3] / "doc/source/contributor/plugins.rst"


def directives() -> dict[str, str]:
    """Return the options of each autodoc directive of the manual, by its name."""
    found = re.findall(
        r"^\.\. auto\w+:: (\S+)\n((?: +.+\n)*)", MANUAL.read_text(), re.MULTILINE
    )
    assert len(found) == len(dict(found))
    return dict(found)


def names_of(options: str, option: str) -> set[str]:
    found = re.search(rf":{option}:((?: .+\n)+)", options)
    return set(re.findall(r"\w+", found[1])) if found else set()


def test_the_manual_promises_what_is_recorded():
    manual = directives()
    documented = {name for name in manual if not name.startswith(BASE)}
    assert documented == {".".join(key) for key in plugin_contract.OTHERS}
    for key, members in plugin_contract.OTHERS.items():
        public = {each for each in members if not each.startswith("__")}
        assert names_of(manual[".".join(key)], "members") == public


def test_the_manual_has_each_name_of_the_contract_once():
    manual = directives()
    assert ":members:\n" in manual[BASE]
    alone = {name.removeprefix(f"{BASE}.") for name in manual if f"{BASE}." in name}
    assert alone == names_of(manual[BASE], "exclude-members") <= set(base.__all__)
