# SPDX-License-Identifier: Apache-2.0

"""The page of device families agrees with the plugins and the tests."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

from os_acc.plugins import families

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "doc/source/reference/device-families.rst"
_TEST = re.compile(r"``(tests/[^`:\s]+\.py)(?:::(\w+))?``")
_SEEN = re.compile(r"\*([a-z ]+)\*: ((?:``tests/\S+?``(?:, |; )?)+)")
#: Where the tests of each lane are.
LANES = {"fake": "tests/unit/", "real kernel": "tests/functional/kernel/"}


def tables() -> list[list[list[str]]]:
    """Return the cells of the page's tables, by table and row, without heads."""
    found = []
    for part in PAGE.read_text(encoding="utf-8").split(".. list-table::")[1:]:
        body = re.split(r"\n(?=\S)", part.partition("\n\n")[2])[0]
        rows = re.split(r"^   \* - ", body, flags=re.MULTILINE)[1:]
        cells = [re.split(r"^     - ", row, flags=re.MULTILINE) for row in rows]
        found.append([[" ".join(cell.split()) for cell in row] for row in cells[1:]])
    return found


def test_each_plugin_has_a_family_and_each_family_a_plugin():
    config = configparser.ConfigParser()
    config.read(CHECKOUT / "setup.cfg")
    lines = config["entry_points"]["os_acc"].split("\n")
    plugins = {line.partition("=")[0].strip() for line in lines if line.strip()}
    named = {row[1].strip("`") for row in tables()[0]}
    assert named == plugins


def test_each_family_was_seen_by_the_lane_of_the_tests_that_it_names():
    for row in tables()[0]:
        seen = _SEEN.findall(row[5])
        assert seen, row[0]
        assert not _SEEN.sub("", row[5]), row[0]
        for lane, tests in seen:
            for path, _name in _TEST.findall(tests):
                assert path.startswith(LANES[lane]), f"{row[0]}: {path}"
                assert (CHECKOUT / path).is_file(), f"{row[0]}: {path}"


def test_each_id_of_a_family_with_traits_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for (vendor, product), family in families.BY_ID.items():
        if family.traits:
            assert f"{vendor:04x}" in text
            assert f"{product:04x}" in text, f"{vendor:04x}:{product:04x}"


def test_each_weakness_has_a_test_with_its_number_or_a_reason():
    rows = tables()[1]
    assert [row[0] for row in rows] == [str(number) for number in range(19, 30)]
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
