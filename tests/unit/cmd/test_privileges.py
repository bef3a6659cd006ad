# SPDX-License-Identifier: Apache-2.0

"""``os-acc privileges`` prints exactly the rules that start the helpers."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oslo_rootwrap import filters, wrapper

from os_acc import privsep
from os_acc.cmd import privileges
from os_acc.conf import PRIVSEP_GROUPS
from tests.unit import vendor_steps
from tests.unit.cmd.console import Console, run
from tests.unit.helper_commands import as_started

ETC = Path(__file__).parents[3] / "etc/os-acc"
SHIPPED = {
    "sudoers": ETC / "sudoers.d/os-acc",
    "rootwrap": ETC / "rootwrap.d/os-acc.filters",
}
VENDOR = "tests.unit.vendor_steps:Stepping"


@pytest.fixture(autouse=True)
def helper_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install the helpers as a package does; return a function to move them."""

    def move(program: str) -> None:
        monkeypatch.setattr(privsep, "helper_program", lambda: program)

    move("privsep-helper")
    return move


def rules(console: Console, *arguments: str) -> str:
    ran = console.run("privileges", *arguments)
    assert (ran.status, ran.err) == (0, "")
    return ran.out


def allowed_by_sudo(text: str, command: list[str]) -> bool:
    """Return whether a line has the program, and a pattern of its arguments."""
    lines = [each for each in text.splitlines() if not each.startswith("#")]
    program, *arguments = command
    return any(
        line.partition("^")[0].split()[-1] == f"/usr/bin/{program}"
        and re.search("^" + line.partition("^")[2], " ".join(arguments))
        for line in lines
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_file_has_the_rules_for_the_helpers_of_os_acc(
    console, install_plugins, name
):
    install_plugins(nvme="os_acc.plugins.nvme:NvmePlugin")
    assert rules(console, name) == SHIPPED[name].read_text()


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o757])
def test_in_a_virtual_environment_sudo_is_told_where_the_helper_is(
    console, helper_program, monkeypatch, mode
):
    """Only if root alone can replace it there."""
    program = "/opt/nova/bin/privsep-helper"
    real = os.stat

    def stat(path: Any, *more: Any, **keywords: Any) -> Any:
        if str(path) in program and str(path).startswith("/"):
            is_environment = str(path) == "/opt/nova"
            return os.stat_result((mode if is_environment else 0o755, *[0] * 9))
        return real(path, *more, **keywords)

    monkeypatch.setattr(privileges.os, "stat", stat)
    helper_program(program)
    text = rules(console, "sudoers")
    assert (f"NOPASSWD: {program} ^" in text) is (mode == 0o755)
    assert ("NOPASSWD: /usr/bin/privsep-helper ^" in text) is (mode != 0o755)


def test_the_helpers_of_os_acc_are_those_that_are_configured():
    assert [each.cfg_section for each in privileges.own_contexts()] == [*PRIVSEP_GROUPS]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_helper_of_a_vendor_is_added_to_the_shipped_file(
    console, install_plugins, name
):
    install_plugins(acme=VENDOR, twin=VENDOR)
    shipped = SHIPPED[name].read_text()
    found = rules(console, name)
    assert found.startswith(shipped)
    added = found.removeprefix(shipped).splitlines()
    assert len(added) == 2
    own = r"tests\.unit\.vendor_steps\.context"
    assert all(own in line or line == "# [vendor_steps]" for line in added)


def test_a_plugin_that_is_not_enabled_gets_no_rule(console, install_plugins):
    install_plugins(acme=VENDOR)
    console.configure(more="enabled_plugins = pci")
    assert rules(console, "sudoers") == SHIPPED["sudoers"].read_text()


@pytest.mark.parametrize("context", [*privileges.own_contexts(), vendor_steps.context])
def test_sudo_starts_each_helper_and_no_other_one(
    console, install_plugins, monkeypatch, context
):
    install_plugins(acme=VENDOR)
    text = rules(console, "sudoers")
    command = as_started(monkeypatch, context, "/etc/nova/nova.conf")
    assert allowed_by_sudo(text, command)
    assert not allowed_by_sudo(text, [*command, "--config-file", "/tmp/x"])
    renamed = [f"x{each}" if each == context.pypath else each for each in command]
    assert not allowed_by_sudo(text, renamed)


def test_rootwrap_starts_the_helper_of_a_vendor(
    console, install_plugins, monkeypatch, tmp_path
):
    install_plugins(acme=VENDOR)
    place = tmp_path / "filters"
    place.mkdir()
    (place / "os-acc.filters").write_text(rules(console, "rootwrap"))
    # The filter that oslo.rootwrap adds, which allows any helper, is left out.
    loaded = [
        each
        for each in wrapper.load_filters([str(place)])
        if isinstance(each, filters.RegExpFilter)
    ]
    assert len(loaded) == 2 * (len(PRIVSEP_GROUPS) + 1)
    for each in loaded:
        each.real_exec = sys.executable
    files = ["/etc/nova/nova.conf", "/etc/nova/nova-compute.conf"]
    for given in (files[:1], files):
        command = as_started(monkeypatch, vendor_steps.context, *given)
        assert wrapper.match_filter(loaded, command)
        with pytest.raises(wrapper.NoFilterMatched):
            wrapper.match_filter(loaded, [*command, "--config-file", "/etc/x"])


def test_user_and_paths_of_sudoers_can_be_given(console, install_plugins, monkeypatch):
    install_plugins()
    files = ("/etc/nova/nova.conf", "/etc/nova/nova-compute.conf")
    text = rules(
        console,
        *("sudoers", "--user", "stack", "--helper", "/opt/nova/bin/privsep-helper"),
        *(word for each in files for word in ("--configuration", each)),
    )
    assert "\nnova " not in text
    start = "stack ALL = (root) NOPASSWD: /opt/nova/bin/privsep-helper ^"
    assert text.count(f"\n{start}") == len(PRIVSEP_GROUPS)
    command = as_started(monkeypatch, privileges.own_contexts()[0], *files)
    adapted = text.replace("/opt/nova/bin/", "/usr/bin/")
    assert allowed_by_sudo(adapted, command)
    assert not allowed_by_sudo(adapted, as_started(monkeypatch, vendor_steps.context))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--user", "ALL"),
        ("--user", "nova, root"),
        ("--user", "%nova"),
        ("--helper", "privsep-helper"),
        ("--helper", "/usr/bin/privsep-helper *"),
        ("--helper", "/usr/bin/*"),
        ("--configuration", "/home/nova/nova.conf"),
        ("--configuration", "/etc/../tmp/nova.conf"),
        ("--configuration", "/etc/nova/nova.conf\nnova ALL = ALL"),
        ("--configuration", "/etc/nova/.*"),
        ("--configuration", "/etc/./nova.conf"),
        ("--configuration", "/etcetera/nova.conf"),
    ],
    ids=" ".join,
)
def test_nothing_else_can_be_written_into_a_rule(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        run("/", "privileges", "sudoers", *arguments)
    assert ended.value.code == 2
    assert f"{arguments[1]!r} is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("pypath", "acme.privsep.context$\nnova ALL = ALL"),
        ("pypath", "acme.*"),
        ("pypath", "context"),
        ("cfg_section", "acme\nnova ALL = ALL"),
    ],
)
def test_a_context_without_a_plain_name_is_rejected(
    console, install_plugins, monkeypatch, attribute, text
):
    install_plugins(acme=VENDOR)
    monkeypatch.setattr(vendor_steps.context, attribute, text)
    ran = console.run("privileges", "sudoers")
    assert (ran.status, ran.out) == (1, "")
    assert "plugin acme: the context" in ran.err


def test_a_plugin_that_cannot_be_loaded_is_reported(console, install_plugins):
    install_plugins(acme="tests.unit.missing:Acme")
    ran = console.run("privileges", "rootwrap")
    assert ran.status == 1
    assert ran.out == SHIPPED["rootwrap"].read_text()
    assert "plugin acme is left out: cannot be imported" in ran.err
