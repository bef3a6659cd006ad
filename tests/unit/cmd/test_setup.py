# SPDX-License-Identifier: Apache-2.0

"""``os-acc setup`` shows or makes what the page on the installation asks for."""

import getpass
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from os_acc.cmd import setup
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.demo.host import DemoHost
from tests.unit.cmd.console import Console, run

GPU = "0000:17:00.0"
ME = getpass.getuser()
PARTS = ("state", "os-acc", "vfio-pci.conf", "privileged.conf", "vfio-pci")


def console_on(bench: TestHost, place: Path) -> Console:
    """Return a shell on a host that has the empty directories of its system."""
    made = Console(bench, place)
    made.configure(f'{{"address": "{GPU}"}}')
    for name in ("sudoers.d", "modules-load.d"):
        os.makedirs(f"{bench.root}/etc/{name}")
    os.rmdir(bench.state_path)
    return made


@pytest.fixture
def console(make_bench: Any, tmp_path: Path) -> Console:
    """Return a shell on a host to set up, which has the module already."""
    return console_on(make_bench(HostSpec(hosts.gpu("0000:17"))), tmp_path)


def rows(console: Console, *arguments: str, status: int) -> list[dict[str, Any]]:
    ran = console.run("setup", "--user", ME, *arguments, "-f", "json")
    assert ran.status == status, ran.err
    return list(json.loads(ran.out))


def states(console: Console, *arguments: str, status: int) -> dict[str, str]:
    found = rows(console, *arguments, status=status)
    return {os.path.basename(row["Part"]): row["State"] for row in found}


def test_it_shows_what_is_missing_and_changes_nothing(console):
    found = states(console, status=1)
    assert list(found) == list(PARTS)
    assert [*found.values()] == ["missing"] * 4 + ["loaded"]
    assert not os.path.exists(console.bench.state_path)
    assert os.listdir(f"{console.bench.root}/etc/sudoers.d") == []


def test_it_makes_what_is_missing_once(console):
    assert [*states(console, "--write", status=0).values()] == ["made"] * 4 + ["loaded"]
    rules = Path(console.bench.root, "etc/sudoers.d/os-acc")
    assert stat.S_IMODE(rules.stat().st_mode) == 0o440
    assert os.listdir(rules.parent) == ["os-acc"]
    assert f"{ME} ALL = (root) NOPASSWD: " in rules.read_text()
    assert stat.S_IMODE(os.stat(console.bench.state_path).st_mode) == 0o750
    limit = Path(console.bench.root, "etc/os-acc/privileged.conf").read_text()
    assert f'device_spec = {{"address": "{GPU}"}}' in limit.splitlines()
    again = states(console, "--write", status=0)
    assert set(again.values()) == {"present", "loaded"}


def test_the_commands_make_the_same(console):
    for row in rows(console, status=1):
        run_in_a_shell(console, row["Command"] or "true")
    assert set(states(console, status=0).values()) == {"present", "loaded"}


def run_in_a_shell(console: Console, command: str) -> None:
    printed = ""
    if command.startswith("os-acc "):
        words, _, command = command.removeprefix("os-acc ").partition(" | ")
        ran = console.run(*words.split())
        assert ran.status == 0, ran.err
        printed = ran.out
    subprocess.run(["bash", "-ec", command], input=printed, text=True, check=True)


def test_a_file_that_differs_is_left_as_it_is(console):
    states(console, "--write", status=0)
    rules = Path(console.bench.root, "etc/sudoers.d/os-acc")
    rules.chmod(0o640)
    older = [line for line in rules.read_text().splitlines() if "inspect" not in line]
    rules.write_text("\n".join(older))
    assert states(console, "--write", status=1)["os-acc"] == "differs"
    assert "inspect" not in rules.read_text()


def test_rules_of_vendors_may_be_there_as_well(console):
    states(console, "--write", status=0)
    rules = Path(console.bench.root, "etc/sudoers.d/os-acc")
    rules.chmod(0o640)
    rules.write_text(rules.read_text() + "nova ALL = (root) NOPASSWD: /usr/bin/acme\n")
    assert states(console, status=0)["os-acc"] == "present"


def test_a_nova_with_rootwrap_gets_the_filters(console):
    os.makedirs(f"{console.bench.root}/etc/nova/rootwrap.d")
    assert states(console, "--write", status=0)["os-acc.filters"] == "made"
    assert os.listdir(f"{console.bench.root}/etc/sudoers.d") == []


def test_a_value_of_several_lines_stays_one_option(console):
    console.configure('{"address":\n "0000:17:00.0"}')
    states(console, "--write", status=0)
    path = Path(console.bench.root, "etc/os-acc/privileged.conf")
    lines = path.read_text().splitlines()
    assert [each.split(" = ")[0] for each in lines] == [
        "[os_acc]",
        "device_spec",
        "state_path",
    ]


def test_a_user_that_does_not_exist_is_named(console):
    ran = console.run("setup", "--write", "--user", "absent")
    assert ran.status == 1
    assert "the user absent does not exist" in ran.err
    assert not os.path.exists(console.bench.state_path)


def test_a_module_that_is_missing_is_loaded(make_bench, tmp_path, monkeypatch):
    spec = HostSpec(hosts.gpu("0000:17"), vfio=False)
    console = console_on(make_bench(spec), tmp_path)
    loaded: list[str] = []

    def load(name: str) -> bool:
        loaded.append(name)
        return True

    monkeypatch.setattr(setup, "_load", load)
    assert states(console, status=1)["vfio-pci"] == "not loaded"
    assert loaded == []
    assert states(console, "--write", status=0)["vfio-pci"] == "loaded"
    assert loaded == ["vfio-pci"]


@pytest.mark.parametrize("part", ["os-acc", "state"])
def test_a_part_that_others_can_change_differs(console, part):
    states(console, "--write", status=0)
    path = Path(console.bench.state_path)
    if part == "os-acc":
        path = Path(console.bench.root, "etc/sudoers.d/os-acc")
    path.chmod(0o777)
    assert states(console, "--write", status=1)[part] == "differs"
    assert stat.S_IMODE(path.stat().st_mode) == 0o777


def test_an_empty_list_of_modules_differs(console):
    Path(console.bench.root, "etc/modules-load.d/vfio-pci.conf").touch()
    assert states(console, status=1)["vfio-pci.conf"] == "differs"


def test_a_nova_without_rootwrap_gets_the_rules_of_sudo(console):
    os.makedirs(f"{console.bench.root}/etc/nova/rootwrap.d")
    console.configure(
        f'{{"address": "{GPU}"}}', more="[workarounds]\ndisable_rootwrap = true"
    )
    assert "os-acc" in states(console, status=1)


def test_rules_that_may_not_match_are_named(console):
    ran = console.run("setup", "--user", ME)
    assert "the rules are for" in ran.err
    assert "/etc/nova/nova.conf" in ran.err


def test_no_module_is_loaded_for_a_simulated_host(tmp_path, monkeypatch):
    directory = str(tmp_path)
    host = DemoHost(directory)
    os.makedirs(host.state_path)
    loaded: list[str] = []
    monkeypatch.setattr(setup, "_load", loaded.append)
    monkeypatch.setattr(setup.vfio, "has_driver", lambda *_: False)
    with host.installed():
        ran = run("/", "--simulated", directory, "setup", "--write", "--user", ME)
    assert "not loaded" in ran.out
    assert loaded == []


def test_a_host_without_modprobe_has_the_other_parts(console, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup.vfio, "has_driver", lambda *_: False)
    found = states(console, "--write", status=1)
    assert found["vfio-pci"] == "not loaded"
    assert found["state"] == "made"


def test_an_invalid_device_spec_does_not_become_roots(console):
    console.configure(f'{{"adress": "{GPU}"}}')
    assert console.run("setup", "--user", ME, "--write").status == 1
    assert not os.path.exists(f"{console.bench.root}/etc/os-acc")
