# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a helper can do for a hostile client that runs as the service's user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_privsep import capabilities

pytest.register_assert_rewrite("tests.behaviour", "tests.stress.hostile_client")

from tests.behaviour.ordinary import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.stress.hostile_client import (  # noqa: E402
    REFUSED,
    RETURNED,
    HostileClient,
    serving,
)

from . import lane, privileges  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

VENDOR = "tests.unit.privsep.vendor"
BROWSER = Path("/usr/local/bin/browser")
STARTED = Path("/run/started-by-the-helper")
#: All but KEEP_CAPS, and all locks (capabilities(7)).
SECUREBITS = 0xEF


@pytest.fixture
def browser() -> Iterator[None]:
    """The program that ``import antigravity`` starts; it shows who ran it."""
    BROWSER.parent.mkdir(parents=True, exist_ok=True)
    BROWSER.write_text(f"#!/bin/sh\ncat /proc/self/status > {STARTED}\n")
    BROWSER.chmod(0o755)
    yield
    BROWSER.unlink()
    STARTED.unlink(missing_ok=True)


def attack() -> list[str]:
    """A command for a helper with all that a lax sudoers file would let through."""
    binary = Path(sys.executable).parent / "privsep-helper"
    settings = [f"PYTHONPATH={lane.CHECKOUT}", f"BROWSER={BROWSER}"]
    return ["sudo", "-n", "env", *settings, str(binary)]


def refuse(client: HostileClient, name: str, *args: object) -> None:
    """Ask for a call that a helper must refuse."""
    kind, error, *_ = client.call(name, *args)
    assert kind == REFUSED
    assert error in ("builtins.ImportError", "builtins.NameError")


def nothing_is_imported_or_run(host: RealHost) -> None:
    assert os.getuid() != 0
    for context in privileges.CONTEXTS:
        with serving(context, attack()) as client:
            assert os.stat(f"/proc/{client.pid}").st_uid == 0
            refuse(client, "antigravity.x")
            refuse(client, "os.system", f"touch {STARTED}")
            refuse(client, "os.popen", f"touch {STARTED}")
            refuse(client, "subprocess.run", ["touch", str(STARTED)])
            refuse(client, "pty.spawn", ["touch", str(STARTED)])
            refuse(client, f"{VENDOR}.status_of_a_program")
            client.end()
        assert not STARTED.exists()


def a_program_gains_nothing(host: RealHost) -> None:
    assert os.getuid() != 0
    with serving(f"{VENDOR}.context", attack()) as client:
        refuse(client, "antigravity.x")
        kind, flags = client.call(f"{VENDOR}.securebits")
        assert (kind, flags) == (RETURNED, SECUREBITS)
        found = host.root_side.look_at(client.pid)[0]
        kept = 1 << capabilities.CAP_DAC_READ_SEARCH
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        masks = [int(found[name], 16) for name in sets]
        assert masks == [0, kept, kept, kept, 0]
        kind, text = client.call(f"{VENDOR}.status_of_a_program")
        assert kind == RETURNED
        program = dict(line.split(":\t", 1) for line in text.splitlines())
        assert program["Uid"].split() == ["0"] * 4
        assert [int(program[name], 16) for name in sets] == [0, 0, 0, kept, 0]
        assert program["NoNewPrivs"] == "1"
        assert client.call(f"{VENDOR}.hue")[0] == RETURNED
    assert not STARTED.exists()


@pytest.fixture
def run(
    the_machine: Machine, vm_user: OrdinaryUser, ordinary_user: OrdinaryUser
) -> Callable[[Job], None]:
    """``run(job)`` runs a job in a process of the service's user."""

    def run(job: Job) -> None:
        process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), [job])
        try:
            process.run(job)
        finally:
            process.close()

    return run


def test_a_hostile_client_has_nothing_imported_or_run(
    run: Callable[[Job], None], browser: None
) -> None:
    run(nothing_is_imported_or_run)


def test_a_program_that_a_helper_starts_has_no_privileges(
    run: Callable[[Job], None], browser: None
) -> None:
    run(a_program_gains_nothing)
