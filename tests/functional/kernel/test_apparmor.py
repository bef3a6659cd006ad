# SPDX-License-Identifier: Apache-2.0

"""os_acc works in a profile of nova-compute with the rules in ``etc/apparmor.d``."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.behaviour")

from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.real_host import RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402

from . import lane  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402
from .test_library import vfs_go_into_a_guest_and_come_back  # noqa: E402
from .test_nvme_guests import (  # noqa: E402
    a_vf_is_erased_in_the_background_and_its_neighbours_are_not,
)

NAME = "nova-compute-of-the-test"
RULES = lane.CHECKOUT / "etc/apparmor.d/abstractions/os-acc"
#: The site's part: the service reads and runs any file, and writes none.
PROFILE = f"""
profile {NAME} flags=(attach_disconnected) {{
  /{{,**}} r,
  /** mrix,
  /dev/{{null,tty}} rw,
  network inet,
  include "RULES"
}}
"""
SECURITY, CURRENT = Path("/sys/kernel/security"), Path("/proc/self/attr/current")


def is_confined() -> bool:
    return CURRENT.read_text().split() == [NAME, "(enforce)"]


def confined(job: Job) -> Job:
    """Return a job that confines its process first."""

    @functools.wraps(job)
    def run(host: RealHost) -> None:
        if not is_confined():
            CURRENT.write_text(f"changeprofile {NAME}")
        assert is_confined()
        with pytest.raises(PermissionError):
            Path("/tmp/file-of-others").write_text("")
        job(host)

    return run


JOBS = tuple(
    map(
        confined,
        (
            vfs_go_into_a_guest_and_come_back,
            a_vf_is_erased_in_the_background_and_its_neighbours_are_not,
        ),
    )
)


@pytest.fixture
def process(
    the_machine: Machine,
    ordinary_user: OrdinaryUser,
    vm_user: OrdinaryUser,
    tmp_path: Path,
) -> Iterator[OrdinaryProcess]:
    if not (SECURITY / "apparmor").exists():
        subprocess.run(["mount", "-t", "securityfs", "none", SECURITY], check=True)
    # The state directory of the test is another one.
    rules = tmp_path / "os-acc"
    text = RULES.read_text().replace(
        "/var/lib/os_acc/", f"{ordinary_user.home}/os_acc/"
    )
    rules.write_text(text)
    profile = tmp_path / "profile"
    profile.write_text(PROFILE.replace("RULES", str(rules)))
    subprocess.run(["apparmor_parser", "--add", profile], check=True)
    process = OrdinaryProcess(ordinary_user, RootSide(the_machine, vm_user), JOBS)
    yield process
    process.close()
    subprocess.run(["apparmor_parser", "--remove", profile], check=True)


@pytest.mark.usefixtures("vf_drive")
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_os_acc_works_in_a_profile_with_its_rules(
    process: OrdinaryProcess, job: Job
) -> None:
    process.run(job)
