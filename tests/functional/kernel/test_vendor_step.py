# SPDX-License-Identifier: Apache-2.0

"""A vendor's privileged step on the real kernel, with the rules that are generated.

The vendor is that of the example. No device here has its attribute: a copy of
the package drives the device ``edu`` and its ``broken_parity_status`` instead, which
every PCI function has (drivers/pci/pci-sysfs.c) and which changes nothing else. It is
installed into a virtual environment of its own, beside the packages of this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import uuid
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_privsep import priv_context

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import service  # noqa: E402
from os_acc.privsep import privileged_conf  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402

from . import lane, sysfs  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

EXAMPLE = lane.CHECKOUT / "examples/acme-accelerator/acme_accelerator"
ATTRIBUTE = "broken_parity_status"
CONTEXT = "acme_accelerator.privsep.context"
CLASS = "CUSTOM_ACCELERATOR_ACME_M1"
#: The changes of the example, by file.
CHANGES = {
    "m1.py": {"0xACE0, 0x0E10": "0x1234, 0x11E8"},
    "privsep.py": {
        '"acme_mode"': f'"{ATTRIBUTE}"',
        "_ATTRIBUTE, MODES[number]": "_ATTRIBUTE, str(number)",
    },
}

ENVIRONMENT = Path("/opt/acme")
PACKAGES = Path(
    sysconfig.get_path(
        "purelib", "venv", {"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)}
    )
)
HELPER = ENVIRONMENT / "bin/privsep-helper"
PROGRAMS = {
    "privsep-helper": ("oslo_privsep.daemon", "helper_main"),
    "oslo-rootwrap": ("oslo_rootwrap.cmd", "main"),
    "os-acc": ("os_acc.cmd.main", "main"),
}
NOVA = Path("/etc/nova")
NOVA_CONF = NOVA / "nova.conf"
ROOTWRAP_CONF = NOVA / "rootwrap.conf"
SUDOERS = Path("/etc/sudoers.d/os-acc")


@pytest.fixture(scope="module")
def vendor() -> None:
    """Install os_acc and the vendor's package into an environment."""
    venv.create(ENVIRONMENT, symlinks=True)
    (PACKAGES / "os_acc.pth").write_text(
        f"import site; site.addsitedir({str(lane.PACKAGES)!r})\n"
    )
    package = PACKAGES / EXAMPLE.name
    package.mkdir()
    for name in ("__init__.py", "m1.py", "privsep.py"):
        text = (EXAMPLE / name).read_text()
        for old, new in CHANGES.get(name, {}).items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (package / name).write_text(text)
    metadata = PACKAGES / "acme_accelerator-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: acme-accelerator\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[os_acc]\nacme = acme_accelerator.m1:M1Plugin\n"
    )
    for name, (module, function) in PROGRAMS.items():
        program = ENVIRONMENT / "bin" / name
        program.write_text(
            f"#!{ENVIRONMENT}/bin/python3\nimport sys\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        program.chmod(0o755)


@pytest.fixture
def run_as(
    vendor: None, the_machine: Machine, vm_user: OrdinaryUser
) -> Iterator[Callable[[OrdinaryUser, Job], None]]:
    """Yield ``run_as(user, job)``, with a configuration for the user."""
    NOVA.mkdir(exist_ok=True)
    assert not Path("/", *privileged_conf.PATH).exists()

    def run(user: OrdinaryUser, job: Job) -> None:
        process = OrdinaryProcess(user, RootSide(the_machine, vm_user), [job], "")
        try:
            process.run(job)
        finally:
            process.close()

    yield run
    NOVA_CONF.unlink()


def configure(user: OrdinaryUser, device: str, more: str = "") -> None:
    NOVA_CONF.write_text(
        "[os_acc]\n"
        f"state_path = {user.home}/os_acc\n"
        "enabled_plugins = acme\n"
        # Three helpers start one after another in software emulation.
        "initialize_timeout = 300\n"
        "helper_start_timeout = 240\n"
        f'device_spec = {{"address": "{device}"}}\n{more}'
    )


def generated(*arguments: str) -> str:
    """Return the rules that root generates."""
    program = str(ENVIRONMENT / "bin/os-acc")
    command = [program, "--config-file", str(NOVA_CONF), "privileges", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sudo_allows(user: OrdinaryUser, context: str) -> bool:
    """Return whether sudo lets a user start the helper of a context (sudo(8), -l)."""
    own = ["--privsep_context", context, "--privsep_sock_path", "/tmp/x/privsep.sock"]
    command = [str(HELPER), "--config-file", str(NOVA_CONF), *own]
    listed = subprocess.run(
        ["sudo", "-n", "-U", user.name, "-l", *command], check=False
    )
    return listed.returncode == 0


def the_step_runs_before_and_after_a_guest(host: RealHost) -> None:
    # Before the example of another version, which pytest has on its path.
    sys.path.insert(0, str(PACKAGES))
    cfg.CONF(["--config-file", str(NOVA_CONF)], project="nova")
    assert os.getuid() != 0
    device = host.places.single
    before = host.binding(device)
    os_acc.initialize()
    (provider,) = service.get().providers()
    guest = {"uuid": str(uuid.uuid4()), "name": "guest"}
    specs = {f"resources1:{CLASS}": "1"}
    (entry,) = os_acc.plug(guest, {"uuid": provider.uuid}, specs)
    assert entry["pci_id"] == device
    assert host.binding(device) == VFIO
    assert sysfs.read(device, ATTRIBUTE) == "1"
    assert os_acc.unplug(guest) == 1
    assert before == host.binding(device) == Binding(None)
    assert sysfs.read(device, ATTRIBUTE) == "0"
    (helper,) = helpers()
    fields = dict(line.split(":\t", 1) for line in status(helper))
    assert fields["Uid"].split()[0] == "0"
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0


def the_step_runs_through_rootwrap(host: RealHost) -> None:
    # The command of nova.utils.get_root_helper(), except for the program's path.
    program = str(ENVIRONMENT / "bin/oslo-rootwrap")
    priv_context.init(root_helper=["sudo", "-n", program, str(ROOTWRAP_CONF)])
    the_step_runs_before_and_after_a_guest(host)


def helpers() -> list[int]:
    """Return the processes of the vendor's context, without those of sudo."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_text().split("\0")
        except OSError:
            continue
        if CONTEXT in words and words[0].startswith(str(ENVIRONMENT)):
            found.append(int(entry))
    return found


def status(pid: int) -> list[str]:
    return Path("/proc", str(pid), "status").read_text().splitlines()


def test_the_generated_sudoers_lines_are_enough(
    run_as: Callable[[OrdinaryUser, Job], None],
    the_machine: Machine,
    vm_user: OrdinaryUser,
) -> None:
    # The Python of the tests has another helper beside it.
    command = f"helper_command = sudo {HELPER} --config-file {NOVA_CONF}\n"
    configure(vm_user, the_machine.edu_node1, command)
    rules = generated("sudoers", "--user", vm_user.name, "--helper", str(HELPER))
    SUDOERS.write_text(
        f"Defaults:{vm_user.name} secure_path={ENVIRONMENT}/bin\n{rules}"
    )
    SUDOERS.chmod(0o440)
    try:
        assert sudo_allows(vm_user, CONTEXT)
        assert not sudo_allows(vm_user, "os.path.context")
        run_as(vm_user, the_step_runs_before_and_after_a_guest)
    finally:
        SUDOERS.unlink()


def test_the_generated_filters_of_rootwrap_are_enough(
    run_as: Callable[[OrdinaryUser, Job], None],
    the_machine: Machine,
    ordinary_user: OrdinaryUser,
) -> None:
    configure(ordinary_user, the_machine.edu_node1)
    filters = NOVA / "rootwrap.d"
    filters.mkdir(exist_ok=True)
    (filters / "os-acc.filters").write_text(generated("rootwrap"))
    ROOTWRAP_CONF.write_text(
        f"[DEFAULT]\nfilters_path = {filters}\nexec_dirs = {ENVIRONMENT}/bin\n"
    )
    run_as(ordinary_user, the_step_runs_through_rootwrap)
