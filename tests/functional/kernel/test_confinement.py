# SPDX-License-Identifier: Apache-2.0

"""A hostile client with the service's user gains nothing from a helper."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from os_acc.bitstreams.options import DIRECTORY
from os_acc.objects.bitstream import Digest
from os_acc.privsep import privileged_conf
from os_acc.privsep.outcome import Outcome
from tests.behaviour import interpreter_access
from tests.unit.bitstreams import signing_keys

from . import dfl, hostile, lane, sysfs
from .accounts import OrdinaryUser
from .dfl_card import Card
from .machine import Machine

BROWSER = Path("/usr/local/bin/browser")
STARTED = Path(hostile.STARTED)
PRIVILEGED = Path("/etc/os-acc/privileged.conf")
SIGNER = "5f3a2b11-7c1d-4b0e-9a55-0d6c1b7e8f90"
KIND = "RSA-PSS"
UNSIGNED = ("", "", "", "")
#: The command allows everything that a lax sudoers file would allow.
HELPER = shlex.join(
    [
        *("sudo", "-n", "env", f"PYTHONPATH={lane.CHECKOUT}", f"BROWSER={BROWSER}"),
        str(Path(sys.executable).parent / "privsep-helper"),
    ]
)


@pytest.fixture
def attack(ordinary_user: OrdinaryUser) -> Iterator[Callable[..., None]]:
    """Yield ``attack(job, ...)``, which runs a job of :mod:`.hostile` as the user."""
    interpreter_access.open_the_way()
    BROWSER.parent.mkdir(parents=True, exist_ok=True)
    BROWSER.write_text(f"#!/bin/sh\ncat /proc/self/status > {STARTED}\n")
    BROWSER.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(lane.CHECKOUT)}

    def run(job: Callable[..., None], *arguments: str) -> None:
        program = "tests.functional.kernel.hostile"
        command = [sys.executable, "-m", program, job.__name__, HELPER]
        done = ordinary_user.run(*command, *arguments, env=environment)
        assert done.returncode == 0, done.stderr
        assert not STARTED.exists()

    yield run
    BROWSER.unlink()
    STARTED.unlink(missing_ok=True)


@pytest.fixture
def own(ordinary_user: OrdinaryUser) -> str:
    """Return a configuration that the service's user has written."""
    path = ordinary_user.home / "own.conf"
    path.write_text(
        "[os_acc]\ndevice_spec = {}\n[os_acc_base]\ncapabilities = CAP_SYS_ADMIN\n"
    )
    os.chown(path, ordinary_user.uid, ordinary_user.gid)
    return str(path)


@pytest.fixture
def privileged(the_machine: Machine) -> Iterator[Path]:
    """Write root's configuration: the VFs of one card."""
    PRIVILEGED.parent.mkdir(parents=True)
    entry = f'{{"address": "{the_machine.pf_node1}", "num_vfs": 4}}'
    PRIVILEGED.write_text(f"[os_acc]\ndevice_spec = {entry}\n")
    yield PRIVILEGED
    PRIVILEGED.unlink()
    PRIVILEGED.parent.rmdir()


def test_nothing_is_imported_or_run(attack: Callable[..., None]) -> None:
    attack(hostile.import_and_run)


def test_a_program_that_a_helper_starts_has_no_privileges(
    attack: Callable[..., None],
) -> None:
    attack(hostile.gain_privileges)


def test_roots_configuration_limits_what_is_bound(
    attack: Callable[..., None], own: str, privileged: Path, the_machine: Machine
) -> None:
    others = (the_machine.pf_node0, the_machine.card[1], the_machine.edu_node1)
    try:
        attack(hostile.bind_what_is_not_named, own, the_machine.pf_node1, *others)
    finally:
        sysfs.write(the_machine.pf_node1, "sriov_numvfs", "0")


def test_a_configuration_that_the_client_can_write_limits_nothing(
    attack: Callable[..., None],
    own: str,
    privileged: Path,
    the_machine: Machine,
    ordinary_user: OrdinaryUser,
) -> None:
    os.chown(privileged, ordinary_user.uid, ordinary_user.gid)
    attack(hostile.bind_without_a_limit, own, the_machine.edu_node1)


@pytest.fixture
def image(ordinary_user: OrdinaryUser) -> Path:
    """Return an image that the service's user has put into the cache."""
    content = b"a bitstream" * 64
    digest = Digest("sha512", hashlib.sha512(content).hexdigest())
    path = ordinary_user.home / "state" / DIRECTORY / digest.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.chown(path, ordinary_user.uid, ordinary_user.gid)
    return path


@pytest.fixture
def limit_programming(image: Path) -> Iterator[Callable[[str, str], None]]:
    """Yield ``limit_programming(card, signature)``: it writes root's configuration."""
    certificates = PRIVILEGED.parent / "certificates"
    certificates.mkdir(parents=True)
    pem = signing_keys.certificate(signing_keys.key(KIND, 0)).public_bytes(Encoding.PEM)
    (certificates / f"{SIGNER}.pem").write_bytes(pem)

    def write(card: str, signature: str) -> None:
        PRIVILEGED.write_text(
            f'[os_acc]\ndevice_spec = {{"address": "{card}"}}\n'
            f"state_path = {image.parents[1]}\n"
            f"[os_acc_bitstreams]\nsignature = {signature}\n"
            f"certificates = {certificates}\n"
        )

    yield write
    shutil.rmtree(PRIVILEGED.parent)


def test_roots_configuration_limits_the_card_that_is_programmed(
    attack: Callable[..., None],
    own: str,
    image: Path,
    limit_programming: Callable[[str, str], None],
    the_machine: Machine,
    fpga: Card,
) -> None:
    limit_programming(the_machine.plain_fpga, "off")
    denied = [(UNSIGNED, Outcome.DENIED, privileged_conf.STEP)]
    attack(hostile.program, own, fpga.bdf, str(image), json.dumps(denied))
    assert dfl.state(fpga.bdf) == ("unknown", "")


def test_only_an_image_of_a_trusted_signer_is_programmed(
    attack: Callable[..., None],
    own: str,
    image: Path,
    limit_programming: Callable[[str, str], None],
    fpga: Card,
) -> None:
    limit_programming(fpga.bdf, "required")
    content = image.read_bytes()
    trusted, other = (
        signing_keys.signed_by(signing_keys.key(KIND, each), content) for each in (0, 1)
    )
    attempts = [
        (UNSIGNED, Outcome.REFUSED, "signature"),
        ((other, "SHA-256", KIND, SIGNER), Outcome.REFUSED, "signature"),
        ((trusted, "SHA-256", KIND, SIGNER), Outcome.OK, ""),
    ]
    attack(hostile.program, own, fpga.bdf, str(image), json.dumps(attempts))
    assert fpga.programmed_count() == 1
