# SPDX-License-Identifier: Apache-2.0

"""Each command has help of its own, which needs no configuration."""

import io
from importlib import metadata

import pytest

from os_acc.cmd.main import OsAcc
from tests.unit.cmd.console import run

COMMANDS = {
    "attached": ("UUID",),
    "bitstream fetch": ("IMAGE", "--timeout", "--long"),
    "bitstream list": ("--names",),
    "bitstream prune": ("--size",),
    "bitstream verify": ("--format",),
    "check": ("--format",),
    "complete": ("line",),
    "conformance": (
        *("--device", "--plugin", "--check", "--kills", "--report", "--serial"),
        "--yes",
    ),
    "demo": ("--keep",),
    "device adopt": ("ADDRESS", "--consumer", "--driver", "--sibling"),
    "device erase": ("ADDRESS", "--wait"),
    "device history": ("ADDRESS", "--consumer", "--limit"),
    "device list": ("--long", "--state", "--class", "--consumer", "--numa-node"),
    "device migration": ("ADDRESS",),
    "device prepare": ("--write",),
    "device release": ("ADDRESS", "--driver", "--sibling", "--force"),
    "device show": ("ADDRESS",),
    "host record": ("--device", "--serial"),
    "metrics": (),
    "profile apply": ("PROFILE", "FLAVOR", "--suffix", "--set"),
    "profile check": ("--format",),
    "profile list": ("--format",),
    "profile show": ("PROFILE",),
    "plug": ("--instance", "--provider", "--allocations", "--property", "--image"),
    "plugin list": ("--format",),
    "plugin new": ("NAME", "--directory"),
    "privileges": ("FORMAT", "--user", "--helper", "--configuration"),
    "provider list": ("--format",),
    "provider sync": ("--dry-run",),
    "region list": ("--format",),
    "region program": ("ADDRESS", "--image", "--timeout"),
    "region verify": ("ADDRESS",),
    "request list": ("--instance", "--long"),
    "request notify": ("UUID",),
    "request show": ("--property", "--flavor-file", "--limit"),
    "setup": ("--user", "--write"),
    "topology": ("--long", "--cells", "--svg"),
    "unplug": ("UUID",),
}


INSTALLED = metadata.entry_points(group="os_acc.cli")


def test_every_command_is_tried_for_its_help():
    assert {each.name.replace("_", " ") for each in INSTALLED} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_its_own(tmp_path, command):
    # Help is also for users with a broken configuration.
    asked = (str(tmp_path), f"--config-file={tmp_path / 'missing'}")
    ran = run(*asked, *command.split(), "--help")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"usage: os-acc {command} ")
    for own in COMMANDS[command]:
        assert own in ran.out
    assert ran.out == run(*asked, "help", *command.split()).out


def test_help_is_given_wherever_the_line_asks_for_it():
    asked = ("device", "list", "--long", "--state", "free", "--help")
    assert run("/", *asked).out == run("/", "help", "device", "list").out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_alone_lists_the_commands(flag):
    ran = run("/", "help")
    assert ran.status == 0
    listed = ran.out
    assert listed.startswith("usage: os-acc ")
    for each in INSTALLED:
        about = each.load().__doc__.split("\n")[0].rstrip(".")
        assert f"  {each.name.replace('_', ' '):<13}  {about}\n" in listed
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        OsAcc(stdout=out).run([flag])
    assert not ended.value.code
    assert out.getvalue() == listed
