# SPDX-License-Identifier: Apache-2.0

"""The table of the virt driver has each operation, and each row its tests."""

import ast
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "doc/source/admin/nova-server-operations.rst"
_ROW = re.compile(
    r"^   \* - (?P<operation>.+(?:\n       .+)*)\n"
    r"     - (?P<effect>.+(?:\n       .+)*)\n"
    r"     - (?P<methods>.+(?:\n       .+)*)\n"
    r"     - (?P<shown>.+(?:\n       .+)*)",
    re.MULTILINE,
)
_TEST = re.compile(r"``(tests/functional/nova/\w+\.py)::(\w+)``")
#: The operations that the specification names, as commands of ``openstack``.
SPECIFIED = {
    "start": "server create",
    "terminate": "server delete",
    "stop": "server stop",
    "pause": "server pause",
    "unpause": "server unpause",
    "suspend": "server suspend",
    "resume": "server resume",
    "lock": "server lock",
    "unlock": "server unlock",
    "shelve": "server shelve",
    "unshelve": "server unshelve",
    "delete": "server delete",
    "restore": "server restore",
    "reboot": "server reboot",
    "rebuild": "server rebuild",
    "resize": "server resize",
    "cold migration": "server migrate",
    "evacuate": "server evacuate",
    "set administrator password": "server set --root-password",
    "trigger crash dump": "server dump create",
    "boot from a snapshot": "server create --image",
    "live migration": "server migrate --live",
}
#: A test with one of these fixtures runs with one group, and with several.
_EITHER = {"server", "specs", "check"}


def rows() -> list[re.Match[str]]:
    _head, *found = _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return found


def arguments(place: str, test: str) -> set[str]:
    """Return the names of the parameters of a test."""
    module = ast.parse((CHECKOUT / place).read_text(encoding="utf-8"))
    (found,) = (
        each
        for each in module.body
        if isinstance(each, ast.FunctionDef) and each.name == test
    )
    return {each.arg for each in found.args.args}


def test_each_row_is_read():
    text = PAGE.read_text(encoding="utf-8")
    assert len(rows()) == len(re.findall(r"^   \* - ", text, re.MULTILINE)) - 1


def test_each_operation_of_the_specification_has_a_row():
    commands = {
        command
        for row in rows()
        for command in re.findall(r"``([^`]+)``", row["operation"])
    }
    assert commands >= {*SPECIFIED.values()}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["operation"])
def test_each_row_states_the_effect_and_has_tests_with_one_group_and_with_several(row):
    assert row["effect"].split()[0].strip(",;:") in {
        "Attach",
        "Keep",
        "Release",
        "Refuse",
    }
    found = _TEST.findall(row["shown"])
    assert found
    assert not _TEST.sub("", row["shown"]).strip(", \n")
    for place, test in found:
        assert arguments(place, test) & _EITHER, test
