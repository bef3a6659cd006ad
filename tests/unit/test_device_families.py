# SPDX-License-Identifier: Apache-2.0

"""The page of device families agrees with the plugins and the tests."""

import ast
import configparser
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.objects.device import Erasure
from os_acc.plugins import pci
from tests.unit.family_hosts import FAMILIES
from tests.unit.plugins.conforming_hosts import HOSTS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "doc/source/reference/device-families.rst"
_TEST = re.compile(r"``(tests/[^`:\s]+\.py)(?:::(\w+))?``")
_SEEN = re.compile(r"\*([a-z ]+)\*: ((?:``tests/\S+?``(?:, |; )?)+)")
#: The first words of the column "Forgets by".
FORGETS = {
    "a reset": Erasure.RESET,
    "its removal": Erasure.REMOVAL,
    "an erasure": Erasure.PLUGIN,
    "nothing": Erasure.NONE,
}
#: Where the tests of each lane are.
LANES = {
    "fake": ("tests/unit/", "tests/functional/host/"),
    "real kernel": ("tests/functional/kernel/",),
}


def tables() -> list[list[list[str]]]:
    """Return the cells of the page's tables, by table and row, without heads."""
    found = []
    for part in PAGE.read_text(encoding="utf-8").split(".. list-table::")[1:]:
        body = re.split(r"\n(?=\S)", part.partition("\n\n")[2])[0]
        rows = re.split(r"^   \* - ", body, flags=re.MULTILINE)[1:]
        cells = [re.split(r"^     - ", row, flags=re.MULTILINE) for row in rows]
        found.append([[" ".join(cell.split()) for cell in row] for row in cells[1:]])
    return found


def own_plugins() -> set[str]:
    """Return the names of the plugins that os_acc installs."""
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    lines = config["entry_points"]["os_acc"].split("\n")
    return {line.partition("=")[0].strip() for line in lines if line.strip()}


def seen_by(row: list[str], lane: str) -> set[str]:
    """Return the tests of a lane that a row names."""
    found = [tests for name, tests in _SEEN.findall(row[5]) if name == lane]
    return {path for tests in found for path, _name in _TEST.findall(tests)}


def marked(path: Path) -> Iterator[str]:
    """Yield the families that a file of the kernel lane marks as its own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="family"), args=[ast.Constant(value=str(name))]
            ):
                yield name


def names_in(path: Path) -> set[str]:
    """Return the names that a file uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.ImportFrom(module=str(module)):
                found |= {module, *(each.name for each in node.names)}
    return found


@functools.cache
def seen_on_the_real_kernel() -> dict[str, set[str]]:
    """Return the families that the kernel lane marks, with the files of its tests."""
    found: dict[str, set[str]] = {}
    for path in sorted((CHECKOUT / LANES["real kernel"][0]).glob("test_*.py")):
        for name in marked(path):
            found.setdefault(name, set()).add(str(path.relative_to(CHECKOUT)))
    return found


def errors_in(rows: list[list[str]]) -> set[str]:
    """Return the families of the table whose rows contradict the tests."""
    real = seen_on_the_real_kernel()
    wrong = {row[0] for row in rows} ^ FAMILIES.keys()
    for row in rows:
        name, fake = row[0], seen_by(row, "fake")
        sources = [
            (CHECKOUT / path).read_text(encoding="utf-8")
            for path in fake
            if path.startswith(LANES["fake"]) and (CHECKOUT / path).is_file()
        ]
        if (
            name in wrong
            or _SEEN.sub("", row[5])
            or not fake
            or len(sources) != len(fake)
            or not all(re.search(FAMILIES[name].fake, each) for each in sources)
            or seen_by(row, "real kernel") != real.get(name, set())
        ):
            wrong.add(name)
    return wrong


def test_each_plugin_has_a_family_and_each_family_a_plugin():
    assert {row[1].strip("`") for row in tables()[0]} == own_plugins()


def test_each_plugin_has_a_host_in_the_suite_of_conformance():
    assert {plugin for plugin, _make in HOSTS.values()} == own_plugins()


def test_each_family_was_seen_by_the_tests_that_its_row_names_and_no_others():
    assert errors_in(tables()[0]) == set()


@pytest.mark.parametrize("row", tables()[0], ids=lambda row: row[0])
def test_the_plugin_of_a_row_offers_its_family_and_declares_how_it_forgets(
    tmp_path, row
):
    with FAMILIES[row[0]].make(tmp_path) as host:
        devices = [each.device for each in host.manager.providers()]
    assert {each.plugin for each in devices} == {row[1].strip("`")}
    (stated,) = (way for way in FORGETS if re.match(rf"{way}\b", row[4]))
    assert {each.erasure for each in devices} == {FORGETS[stated]}


def test_a_test_of_the_kernel_lane_uses_the_device_of_its_family():
    for name, paths in seen_on_the_real_kernel().items():
        for path in paths:
            device = FAMILIES[name].real
            assert device, f"{path}: no machine has {name}"
            assert device in names_in(CHECKOUT / path), f"{path}: {name}"


def _another_test(row: list[str]) -> None:
    row[5] = "*fake*: ``tests/unit/rest/test_limits.py``"


def _too_much(row: list[str]) -> None:
    row[5] += "; *real kernel*: ``tests/functional/kernel/test_power.py``"


def _too_little(row: list[str]) -> None:
    row[5] = row[5].partition("; *real kernel*")[0]


def _the_other_lane(row: list[str]) -> None:
    row[5] = row[5].replace("*fake*", "*hardware*")


def _gone(row: list[str]) -> None:
    row[0] = "Another family"


@pytest.mark.parametrize(
    "falsify", [_another_test, _too_much, _too_little, _the_other_lane, _gone]
)
def test_a_false_row_is_found(falsify):
    for number in range(len(tables()[0])):
        rows = tables()[0]
        name, before = rows[number][0], list(rows[number])
        falsify(rows[number])
        if rows[number] != before:
            assert name in errors_in(rows), name


def test_each_id_of_a_family_with_traits_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for (vendor, product), family in pci.BY_ID.items():
        if family.traits:
            assert f"{vendor:04x}" in text
            assert f"{product:04x}" in text, f"{vendor:04x}:{product:04x}"


def test_each_weakness_has_a_test_with_its_number_or_a_reason():
    rows = tables()[1]
    numbers = [13, *range(19, 30), 34]
    assert [row[0] for row in rows] == [str(number) for number in numbers]
    for number, _weakness, shown in rows:
        if re.match(r"\*Not applicable\*: \S+(?: \S+){3,}", shown):
            continue
        tests = _TEST.findall(shown)
        assert not _TEST.sub("", shown).strip(", "), number
        assert any(carries(path, name, number) for path, name in tests), number


def carries(path: str, name: str, number: str) -> bool:
    """Return whether a test has a number in its name or its docstring."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    (test,) = (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and each.name == name
    )
    text = f"{name} {ast.get_docstring(test) or ''}"
    return bool(re.search(rf"(?<!\d){number}(?!\d)", text))
