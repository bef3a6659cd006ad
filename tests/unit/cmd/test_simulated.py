# SPDX-License-Identifier: Apache-2.0

"""``os-acc --simulated DIR`` runs every command on the simulated host in DIR."""

import contextlib
import getpass
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import privsep
from os_acc.cmd import environment
from os_acc.cmd.main import OsAcc
from os_acc.testing import FakeKernel, uuid_of
from os_acc.testing.demo.host import DemoHost
from os_acc.testing.helper import privileged_here
from tests.unit.cmd import console
from tests.unit.cmd.console import Ran
from tests.unit.cmd.test_help import COMMANDS

GPU, FPGA = "0000:17:00.0", "0000:b3:00.0"
#: Arguments of each command that needs some; those of the demo's host.
ARGUMENTS = {
    "bitstream fetch": ("gzip.gbs",),
    "conformance": ("--device", GPU, "--yes", "--check", "unplug_restores_the_host"),
    "device adopt": (GPU, "--consumer", uuid_of(1)),
    "device migration": (GPU,),
    "device release": (GPU,),
    "device show": (GPU,),
    "profile apply": ("gzip", "fpga.small"),
    "profile show": ("gzip",),
    "plug": ("--instance", uuid_of(1)),
    "plugin new": ("tutorial",),
    "privileges": ("sudoers",),
    "region program": (FPGA, "--image", "gzip.gbs"),
    "region verify": (FPGA,),
    "request notify": (uuid_of(1),),
    "request show": ("--property", "resources:CUSTOM_ACCELERATOR_GPU=1"),
    "setup": ("--write", "--user", getpass.getuser()),
    "unplug": (uuid_of(1),),
}
#: Errors of the commands that the demo's host, as it is, cannot serve.
ERRORS = {
    "demo": "makes a simulated host of its own",
    "device adopt": f"{GPU} is not prepared for a guest",
    "device release": f"{GPU} is not prepared for a guest",
    "plug": f"no accelerators are recorded for instance {uuid_of(1)}",
    "provider sync": "[os_acc_placement]",
    "region verify": "its hardware accepts bitstreams without a signature",
    "request notify": "no accelerator request",
}
#: Places of the real host that no command may read.
REAL = ("/sys/", "/dev/vfio", "/etc/nova", "/etc/os", "/run/os_acc", "/var/lib/os")
_watching: list[list[str]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0]
        if isinstance(path, str | os.PathLike):
            _watching[-1].append(os.fspath(path))


# A hook cannot be removed.
sys.addaudithook(_note)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Collect the paths that this process opens or lists."""
    _watching.append([])
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


def run(*arguments: str) -> Ran:
    """Run the command as on a real host: its root is ``/``."""
    return console.run("/", *arguments)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of a host as ``demo --keep`` leaves it."""
    directory = tmp_path / "kept"
    directory.mkdir()
    host = DemoHost(str(directory))
    os.makedirs(host.state_path)
    with host.installed(), privileged_here():
        yield directory


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs_on_the_simulated_host(kept, command, monkeypatch):
    # One of them writes to the current directory.
    monkeypatch.chdir(kept)
    with watched() as paths:
        ran = run(
            "--simulated", str(kept), *command.split(), *ARGUMENTS.get(command, ())
        )
    if command in ERRORS:
        assert ran.status == 1
        assert ERRORS[command] in ran.err
    else:
        assert ran.status == 0, ran.err
    assert [each for each in paths if each.startswith(REAL)] == []


def test_no_helper_reaches_the_real_kernel(kept, monkeypatch):
    commands: dict[str, str] = {}

    def note(self: OsAcc, argv: list[str]) -> int:
        self.configure()
        # As the import of a plugin with privileged steps does.
        privsep.Context("vendor.privsep.context", "vendor_helper", [])
        for each in privsep.contexts():
            commands[each.cfg_section] = each.conf.helper_command or ""
        return 0

    monkeypatch.setattr(OsAcc, "run_subcommand", note)
    monkeypatch.setattr(privsep, "_contexts", [*privsep.contexts()])
    assert run("--simulated", str(kept), "device", "list").status == 0
    assert {"os_acc_base", "os_acc_nvme_helper", "vendor_helper"} <= commands.keys()
    assert [name for name, text in commands.items() if "--fake-root" not in text] == []
    assert not any(each.conf.helper_command for each in privsep.contexts())


def test_a_device_goes_to_an_instance_and_comes_back(kept):
    def shown(*arguments: str) -> list[dict[str, str]]:
        ran = run("--simulated", str(kept), *arguments, "-f", "json")
        assert ran.status == 0, ran.err
        found: list[dict[str, str]] = json.loads(ran.out)
        return found

    (provider, *_) = shown("provider", "list")
    (entry,) = shown(
        "plug", f"--instance={uuid_of(1)}", f"--provider={provider['UUID']}"
    )
    assert entry["PCI ID"] == GPU
    driver = kept / "host/sys/bus/pci/devices" / GPU / "driver"
    assert driver.resolve().name == "vfio-pci"
    assert [each["PCI ID"] for each in shown("attached")] == [GPU]
    assert run("--simulated", str(kept), "unplug", uuid_of(1)).status == 0
    assert driver.resolve().name == "nouveau"
    assert shown("attached") == []


def test_without_a_simulated_host_the_error_shows_how_to_make_one(tmp_path):
    ran = run("--simulated", str(tmp_path), "device", "list")
    assert ran.status == 1
    assert ran.err.splitlines() == [
        f"os-acc: {tmp_path} has no simulated host",
        "hint: make a host in a new directory: os-acc demo --keep DIR",
    ]


def test_a_copied_host_is_refused_and_left_alone(kept, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(kept, copy, symlinks=True)
    ran = run("--simulated", str(copy), "device", "list")
    assert ran.status == 1
    assert f"{copy}/os-acc.conf is of another simulated host" in ran.err
    assert f"its state_path is {kept}/state" in ran.err


@pytest.mark.parametrize("kind", ["file", "dir"])
def test_a_simulated_host_has_its_own_configuration(kept, kind, capsys):
    with pytest.raises(SystemExit) as ended:
        run("--simulated", str(kept), f"--config-{kind}", str(kept), "device", "list")
    assert ended.value.code == 2
    assert "omit --config-file and --config-dir" in capsys.readouterr().err


def test_root_becomes_the_owner_before_it_reads_the_configuration(kept, monkeypatch):
    become: list[str] = []

    def note(directory: str) -> None:
        become.append(directory)
        # An error in the configuration shows that it is read later.
        (kept / "os-acc.conf").write_text("no section\n")

    monkeypatch.setattr(environment, "become_owner", note)
    ran = run("--simulated", str(kept), "device", "list")
    assert ran.status == 1
    assert "os-acc.conf" in ran.err
    assert become == [str(kept)]


def test_a_change_that_a_kill_left_half_way_is_completed(kept, monkeypatch):
    opened: list[str] = []
    complete = FakeKernel.complete

    def noted(self: FakeKernel) -> None:
        opened.append(self.root)
        complete(self)

    monkeypatch.setattr(FakeKernel, "complete", noted)
    assert run("--simulated", str(kept), "device", "list").status == 0
    assert opened == [str((kept / "host").resolve())]
