# SPDX-License-Identifier: Apache-2.0

"""A serving helper cannot gain privileges beyond those of its context."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_privsep import capabilities, comm

from os_acc import privsep
from os_acc.privsep import root_process
from os_acc.testing import FakeKernel, hosts
from tests.stress.hostile_client import REFUSED, RETURNED, HostileClient, connected

VENDOR = "tests.unit.privsep.vendor"
PING = (1,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return the path of the file that a started program would create."""
    return tmp_path / "started"


@pytest.fixture
def environment(tmp_path: Path, marker: Path) -> dict[str, str]:
    """Return an environment in which ``import antigravity`` starts a program."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    program = binaries / "browser"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "BROWSER": str(program),
        "LC_MESSAGES": "C",
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture
def helper(
    tmp_path: Path, environment: dict[str, str]
) -> Iterator[Callable[[str], HostileClient]]:
    """Return ``helper(context)``, which starts a helper and returns its client."""
    fake = FakeKernel.build(tmp_path / "host", hosts.two_socket_host())
    clients = []

    def start(context: str) -> HostileClient:
        client = connected(context, fake.root, environment)
        clients.append(client)
        return client.__enter__()

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def status(text: str) -> dict[str, str]:
    """Return the fields of proc(5), ``status``."""
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def may_confine() -> bool:
    """Return whether this user may change its bounding set (CAP_SETPCAP)."""
    own = status(Path("/proc/self/status").read_text())
    return bool(int(own["CapEff"], 16) >> capabilities.CAP_SETPCAP & 1)


@pytest.mark.parametrize("context", ["base", "inspect", "image"])
def test_a_module_that_is_not_loaded_is_not_imported(helper, marker, context):
    client = helper(context)
    for name in ("antigravity.x", "this.s", "idlelib.run.main", "no_such_module.x"):
        kind, error, arguments, *_ = client.call(name)
        assert client.ask(PING) == (2,)
        assert (kind, error) == (REFUSED, "builtins.ImportError"), name
        assert "is not loaded" in arguments[0], name
    client.end()
    assert not marker.exists()


def test_a_step_of_a_vendor_has_what_its_context_preloads(helper):
    assert helper(f"{VENDOR}.context").call(f"{VENDOR}.hue")[0] == RETURNED


def test_a_step_of_a_vendor_cannot_import_anything_else(helper, marker):
    client = helper(f"{VENDOR}.context")
    kind, error, arguments, *_ = client.call(f"{VENDOR}.undeclared")
    assert (kind, error) == (REFUSED, "builtins.ImportError")
    assert "preload" in arguments[0]
    client.end()
    assert not marker.exists()


def test_the_environment_is_cleaned(helper):
    kind, found = helper(f"{VENDOR}.context").call(f"{VENDOR}.environment")
    assert kind == RETURNED
    assert found["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
    assert found["LC_MESSAGES"] == "C"
    others = {"BROWSER", "LD_LIBRARY_PATH", "PYTHONWARNINGS"}
    assert not others & found.keys()


@pytest.mark.parametrize("context", ["base", "inspect", "image"])
def test_the_kernel_gives_no_privileges_any_more(helper, context):
    found = status(Path(f"/proc/{helper(context).pid}/status").read_text())
    # A helper in tests keeps no capability; see os_acc.testing.helper.
    expected = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), 0)
    if may_confine():
        expected["CapBnd"] = 0
    assert {name: int(found[name], 16) for name in expected} == expected
    assert found["NoNewPrivs"] == "1"


def test_a_program_that_a_helper_starts_has_no_privileges_either(helper):
    kind, text = helper(f"{VENDOR}.context").call(f"{VENDOR}.status_of_a_program")
    assert kind == RETURNED
    found = status(text)
    assert int(found["CapEff"], 16) == int(found["CapPrm"], 16) == 0
    assert found["NoNewPrivs"] == "1"


@pytest.fixture
def configured() -> Iterator[None]:
    """Configure a capability beyond those of the context."""
    wanted = [capabilities.CAP_SYS_ADMIN, capabilities.CAP_SYS_PTRACE]
    cfg.CONF.set_override("capabilities", wanted, group="os_acc_inspect")
    yield
    cfg.CONF.clear_override("capabilities", group="os_acc_inspect")


def test_a_configuration_takes_capabilities_away_and_adds_none(configured):
    reading, writing = socket.socketpair()
    with reading, writing:
        daemon = root_process.Daemon(comm.ServerChannel(reading), privsep.inspect)
    # CAP_SETPCAP is dropped once the bounding set has been reduced.
    own = {capabilities.CAP_SETPCAP} if may_confine() else set()
    assert daemon.caps == {capabilities.CAP_SYS_PTRACE} | own


@pytest.mark.parametrize("context", ["base", "inspect", "image"])
def test_no_key_of_a_terminal_stops_a_helper(helper, context):
    """A stopped helper would keep the locks of its devices."""
    pid = helper(context).pid
    assert os.getsid(pid) == pid
