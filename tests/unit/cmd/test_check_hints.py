# SPDX-License-Identifier: Apache-2.0

"""``os-acc check`` names what to do, and doing exactly that helps."""

import contextlib
import errno
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from os_acc.cmd.checks import state
from os_acc.testing import HostSpec, hosts, uuid_of
from tests.functional.host.attach.test_erasure import CARD, use
from tests.functional.host.attach.test_erasure import host as erasing_host  # a fixture
from tests.unit.cmd.console import Console
from tests.unit.placement.placement_double import Double
from tests.unit.store.store_files import file_in

GPU, AUDIO, QAT = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0"
__all__ = ["erasing_host"]


def problems(console: Console, check: str) -> list[str]:
    """Return the hints of a check that is not content."""
    return [e["Hint"] for e in console.checks()[check] if e["Result"] != "ok"]


def follow(console: Console, hint: str, **values: str) -> None:
    """Run the first command in a hint, with the values that it leaves open."""
    found = re.search(r"os-acc ([^,;\']+)", hint)
    assert found, hint
    words = [values.get(word, word) for word in shlex.split(found[1])]
    ran = console.run(*words)
    assert ran.status == 0, ran.err


@pytest.fixture
def leased(console: Console) -> Console:
    """Return a shell on a host with one lease."""
    console.configure(f'{{"address": "{GPU}"}}')
    console.bench.plug(1, GPU)
    return console


@pytest.fixture
def placement() -> Iterator[Callable[[], Double]]:
    """Return a function that starts a double of Placement."""
    with contextlib.ExitStack() as running:

        def start() -> Double:
            made = Double()
            running.callback(made.end)
            return made

        yield start


@pytest.mark.parametrize("has_guest", [True, False], ids=["guest", "no guest"])
def test_a_lost_store(leased, has_guest):
    for file in Path(leased.bench.state_path).glob("os_acc.sqlite*"):
        file.unlink()
    (hint,) = problems(leased, "unknown devices")
    if has_guest:
        follow(leased, hint, UUID=uuid_of(1))
    else:
        follow(leased, hint[hint.index("; else") :])
    assert problems(leased, "unknown devices") == []
    assert problems(leased, "records") == []
    assert leased.state(GPU) == ("leased" if has_guest else "free")


def test_a_damaged_store(leased):
    file_in(leased.bench.state_path).write_bytes(b"rubbish" * 4096)
    (hint,) = problems(leased, "records")
    assert hint.startswith("restart nova-compute")
    leased.bench.restart()
    (hint,) = problems(leased, "unknown devices")
    follow(leased, hint, UUID=uuid_of(1))
    assert problems(leased, "unknown devices") == []
    assert leased.state(GPU) == "leased"


def test_an_erasure_without_a_service(erasing_host, tmp_path, monkeypatch):
    console = Console(erasing_host, tmp_path)
    console.configure(f'{{"address": "{CARD}"}}')
    use(erasing_host)
    monkeypatch.setattr(state, "_IDLE_SECONDS", -1)
    (hint,) = problems(console, "records")
    follow(console, hint)
    assert problems(console, "records") == []
    assert console.state(CARD) == "free"


def test_vfs_that_nothing_has_made(make_bench, tmp_path):
    console = Console(make_bench(HostSpec((hosts.qat_gen4("0000:3b"),))), tmp_path)
    console.configure(f'{{"address": "{QAT}", "num_vfs": 16}}')
    (hint,) = problems(console, "vfs")
    follow(console, hint)
    assert problems(console, "vfs") == []


def use_placement(console: Console, url: str) -> None:
    console.configure(
        f'{{"address": "{GPU}"}}',
        more="[os_acc_placement]\nauth_type = none\nconnect_retries = 0\n"
        f"endpoint_override = {url}",
    )


def test_a_server_that_is_no_placement(leased, placement):
    other = placement()
    other.trouble("GET", "/", 404, times=99)
    use_placement(leased, other.url)
    (hint,) = problems(leased, "placement")
    assert "endpoint_override in [os_acc_placement]" in hint


def test_a_placement_that_cannot_be_reached(leased, placement):
    stopped, running = placement(), placement()
    stopped.end()
    use_placement(leased, stopped.url)
    (hint,) = problems(leased, "placement")
    assert hint.startswith("check that Keystone and Placement run")
    use_placement(leased, running.url)
    (hint,) = problems(leased, "placement")
    follow(leased, hint)
    assert problems(leased, "placement") == []


def test_a_section_without_credentials_is_no_section_that_is_not_set(leased):
    more = "[os_acc_placement]\nauth_section = placement"
    leased.configure(f'{{"address": "{GPU}"}}', more=more)
    (hint,) = problems(leased, "placement")
    assert hint.startswith("set it and the other credentials")


def limit(console: Console, device_spec: str) -> None:
    """Write root's configuration."""
    path = Path(console.bench.root, "etc/os-acc/privileged.conf")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[os_acc]\ndevice_spec = {device_spec}\n")


def test_a_device_that_root_does_not_allow(console):
    console.configure(f'{{"address": "{GPU}"}}')
    limit(console, '{"address": "0000:b1:00.0"}')
    (hint,) = problems(console, "privileged.conf")
    assert hint.startswith("name them in [os_acc] device_spec in ")
    # It goes with the function of its slot.
    limit(console, f'{{"address": "{AUDIO}"}}')
    assert problems(console, "privileged.conf") == []


def test_the_rest_of_a_group_that_was_given_up(leased):
    leased.bench.kernel.fail(GPU, "drivers_probe", errno.EBUSY, times=99)
    assert leased.run("unplug", uuid_of(1)).status == 1
    assert leased.run("device", "release", GPU, "--force").status == 0
    leased.bench.kernel.lift()
    (hint,) = problems(leased, "isolation")
    follow(leased, hint)
    assert problems(leased, "isolation") == []
    assert leased.state(GPU) == "free"


def test_a_device_that_does_not_answer_has_nothing_to_release(leased):
    assert leased.run("unplug", uuid_of(1)).status == 0
    leased.bench.kernel.set_power(GPU, on=False)
    (hint,) = problems(leased, "health")
    assert hint.startswith("repair or replace the device")
    assert "os-acc" not in hint


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        (7, 0, "remove files"),
        (8, os.ST_RDONLY, "see the kernel's log for an error of the disk"),
    ],
    ids=["no inode", "read-only"],
)
def test_a_file_system_on_which_nothing_can_be_written(leased, field, value, remedy):
    fields = list(os.statvfs(leased.bench.state_path))
    fields[field] = value
    with mock.patch("os.statvfs", return_value=os.statvfs_result(fields)):
        *_, hint = problems(leased, "state directory")
    assert hint.startswith(remedy)
