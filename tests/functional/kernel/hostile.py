# SPDX-License-Identifier: Apache-2.0

"""Attacks of a compromised service, run as the service's user.

``python -m tests.functional.kernel.hostile <job> <helper> [arguments]`` exits with 0
if a helper has rejected every request that it has to reject.

:param helper: the command that starts a helper, in one word.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from oslo_privsep import capabilities

from os_acc.objects.pci import PciAddress
from os_acc.privsep import pci_functions
from os_acc.privsep.outcome import CallResult, Outcome
from tests.stress.hostile_client import REFUSED, RETURNED, HostileClient, serving

from . import dfl

VENDOR = "tests.unit.privsep.vendor"
CONTEXTS = ("base", "inspect", "image")
STARTED = "/run/started-by-the-helper"
#: All but KEEP_CAPS, and all locks (capabilities(7)).
_SECUREBITS = 0xEF
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
LEASE = "11111111-1111-4111-8111-111111111111"
_MILLISECONDS = 60_000


def status(text: str) -> dict[str, str]:
    """Parse the fields of ``status`` of proc(5)."""
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def sets(pid: int) -> list[int]:
    """Return the capability sets of a process, in the order of the kernel."""
    found = status(Path(f"/proc/{pid}/status").read_text())
    assert found["NoNewPrivs"] == "1"
    return [int(found[name], 16) for name in _SETS]


def refused(client: HostileClient, name: str, *args: object) -> None:
    """Make a call that a helper has to reject."""
    kind, error, *_ = client.call(name, *args)
    assert kind == REFUSED, name
    assert error in ("builtins.ImportError", "builtins.NameError"), error


def import_and_run(helper: list[str]) -> None:
    """Let each helper import modules that run a program, and make such a call."""
    for context in CONTEXTS:
        with serving(context, helper) as client:
            assert os.stat(f"/proc/{client.pid}").st_uid == 0
            refused(client, "antigravity.x")
            refused(client, "os.system", f"touch {STARTED}")
            refused(client, "os.popen", f"touch {STARTED}")
            refused(client, "subprocess.run", ["touch", STARTED])
            refused(client, "pty.spawn", ["touch", STARTED])
            refused(client, f"{VENDOR}.status_of_a_program")
            client.end()


def gain_privileges(helper: list[str]) -> None:
    """Let a vendor's step start a program and import a module."""
    kept = 1 << capabilities.CAP_DAC_READ_SEARCH
    with serving(f"{VENDOR}.context", helper) as client:
        refused(client, "antigravity.x")
        assert client.call(f"{VENDOR}.undeclared")[:2] == (
            REFUSED,
            "builtins.ImportError",
        )
        assert client.call(f"{VENDOR}.hue")[0] == RETURNED
        assert client.call(f"{VENDOR}.securebits") == (RETURNED, _SECUREBITS)
        assert sets(client.pid) == [0, kept, kept, kept, 0]
        kind, text = client.call(f"{VENDOR}.status_of_a_program")
        assert kind == RETURNED, text
        program = status(text)
        assert program["Uid"].split() == ["0"] * 4
        assert [int(program[name], 16) for name in _SETS] == [0, 0, 0, kept, 0]
        assert program["NoNewPrivs"] == "1"


def bind_what_is_not_named(helper: list[str], own: str, pf: str, *others: str) -> None:
    """Request all that root's configuration does not name, and all that it names.

    :param own: a configuration of this user's, which names every device and asks
    for more capabilities.
    :param pf: the card that root's configuration names, with four VFs.
    """
    with serving("base", [*helper, "--config-file", own]) as client:
        assert sets(client.pid) == [0] * 5
        for other in others:
            driver = pci_functions.driver(PciAddress.parse(other))
            assert _take(client, other).outcome == Outcome.DENIED
            assert _give_back(client, other, "pci-stub").outcome == Outcome.DENIED
            assert _set_num_vfs(client, other, 4).outcome == Outcome.DENIED
            assert pci_functions.driver(PciAddress.parse(other)) == driver
        assert _set_num_vfs(client, pf, 3).outcome == Outcome.DENIED
        assert _take(client, pf).outcome == Outcome.DENIED
        assert _set_num_vfs(client, pf, 4).outcome == Outcome.OK
        assert _take(client, pf).outcome == Outcome.DENIED
        vf = os.path.basename(os.readlink(f"/sys/bus/pci/devices/{pf}/virtfn0"))
        assert _take(client, vf).outcome == Outcome.OK
        assert pci_functions.driver(PciAddress.parse(vf)) == "vfio-pci"
    # Another helper also follows the record.
    with serving("base", [*helper, "--config-file", own]) as client:
        assert _give_back(client, vf, "pci-stub").outcome == Outcome.OK
        assert pci_functions.driver(PciAddress.parse(vf)) == ""


def bind_without_a_limit(helper: list[str], own: str, other: str) -> None:
    """Take devices that a user's configuration names and root's does not restrict."""
    with serving("base", [*helper, "--config-file", own]) as client:
        assert _take(client, other).outcome == Outcome.OK
        assert _give_back(client, other, "").outcome == Outcome.OK


def program(helper: list[str], own: str, card: str, image: str, attempts: str) -> None:
    """Request the programming of an FPGA card.

    :param image: a file of the cache, which is named after its digest.
    :param attempts: a list of JSON: the signature of an attempt, as
    ``os_acc.privsep.fpga.program`` takes it, with outcome and step of the answer.
    """
    algorithm, digest = os.path.basename(image).split("-")
    place, (parts, identity), _group = _target(card)
    assert pci_functions.driver(place) == "dfl-pci"
    with serving("image", [*helper, "--config-file", own]) as client:
        for signature, outcome, step in json.loads(attempts):
            answer = client.call(
                "os_acc.privsep.fpga.program",
                *(parts, identity, 0, str(dfl.INTERFACE), (algorithm, digest)),
                *(0, os.path.getsize(image), _epoch(), _MILLISECONDS),
                tuple(signature),
            )
            assert _answer(answer)[::2] == (outcome, step), answer


def _target(address: str) -> tuple[PciAddress, tuple[object, ...], int | None]:
    place = PciAddress.parse(address)
    target = (place.parts, pci_functions.identity(place))
    return place, target, pci_functions.group(place)


def _epoch() -> int:
    return time.time_ns() // 1000


def _answer(answer: tuple[object, ...]) -> CallResult:
    kind, value, *_ = answer
    assert kind == RETURNED, answer
    assert isinstance(value, tuple)
    return CallResult(*(value[0] if isinstance(value[0], tuple) else value))


def _take(client: HostileClient, address: str) -> CallResult:
    _place, target, group = _target(address)
    name = "os_acc.privsep.binding.take"
    return _answer(client.call(name, group, (target,), _epoch(), _MILLISECONDS, LEASE))


def _give_back(client: HostileClient, address: str, driver: str) -> CallResult:
    _place, target, group = _target(address)
    given = ((*target, driver, driver),)
    name = "os_acc.privsep.binding.give_back"
    return _answer(
        client.call(name, group, given, _epoch(), _MILLISECONDS, True, LEASE)
    )


def _set_num_vfs(client: HostileClient, address: str, count: int) -> CallResult:
    _place, target, _group = _target(address)
    name = "os_acc.privsep.sriov.set_num_vfs"
    return _answer(client.call(name, *target, count, _epoch(), _MILLISECONDS))


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        import_and_run,
        gain_privileges,
        bind_what_is_not_named,
        bind_without_a_limit,
        program,
    )
}

if __name__ == "__main__":
    assert os.getuid() != 0
    JOBS[sys.argv[1]](shlex.split(sys.argv[2]), *sys.argv[3:])
