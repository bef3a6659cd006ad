# SPDX-License-Identifier: Apache-2.0

"""The page for man has each command with its options, and groff reads it."""

from __future__ import annotations

import io
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from os_acc.cmd.main import OsAcc
from tests.functional.manual.extensions import configuration

COMMANDS = sorted(
    each.name.replace("_", " ") for each in metadata.entry_points(group="os_acc.cli")
)


@pytest.fixture(scope="module")
def page(built: Path) -> str:
    return (built / "os-acc.1").read_text(encoding="utf-8")


#: The options that the page describes for all commands at once.
COMMON = set(configuration().autoprogram_cliff_ignored)


def plain(page: str) -> str:
    """Return the page with its dashes and quotes."""
    return page.replace("\\-", "-").replace("\\(aq", "'")


def sections(page: str) -> dict[str, str]:
    """Return the text of each command on the page."""
    _before, *found = plain(page).split("\n.SS ")
    pairs = (each.partition("\n") for each in found)
    return {title.strip('"'): text for title, _, text in pairs}


def warnings(page: str) -> str:
    """Return what groff prints about a page."""
    ran = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z"],
        input=page.encode(),
        capture_output=True,
        check=True,
    )
    return ran.stderr.decode()


def test_groff_has_no_warning_of_the_page(page: str) -> None:
    assert warnings(page) == ""
    assert "warning" in warnings(f"{page}\n.TL\n")


def test_the_page_has_each_command(page: str) -> None:
    assert sorted(sections(page)) == COMMANDS


def test_the_page_has_the_options_of_all_commands(page: str) -> None:
    options = plain(page).partition(".SH COMMANDS")[0]
    for each in ("--config-file PATH", "--simulated DIR", "--debug"):
        assert f"\n.B {each}\n" in options


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_each_option_of_a_command(page: str, command: str) -> None:
    app = OsAcc(stdout=io.StringIO(), stderr=io.StringIO())
    factory, name, _ = app.command_manager.find_command(command.split())
    parser = factory(app, None).get_parser(name)
    text = sections(page)[command]
    for action in parser._actions:
        if COMMON.isdisjoint(action.option_strings):
            assert " ".join(action.help.split()[:2]) in " ".join(text.split())
            for option in action.option_strings:
                assert option in text


def test_the_page_has_the_use_of_the_command_but_no_address(page: str) -> None:
    assert "As the user that nova-compute runs as" in plain(page)
    assert "<>" not in page
