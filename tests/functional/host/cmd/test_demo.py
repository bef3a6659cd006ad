# SPDX-License-Identifier: Apache-2.0

"""``os-acc demo`` shows a plug, a crash and a recovery, and leaves no trace."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from os_acc.testing.demo.story import hostdev

_RUN = "from os_acc.cmd.main import main; import sys; sys.exit(main(sys.argv[1:]))"


# The lowest oslo.utils imports eventlet, whose present release warns of itself.
_WARNINGS = "ignore:::oslo_utils.importutils"


def start(*args: str, scratch: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, *args],
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": _WARNINGS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args: str, scratch: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return main("demo", *args, scratch=scratch)


def main(*args: str, scratch: pathlib.Path) -> subprocess.CompletedProcess[str]:
    process = start(*args, scratch=scratch)
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, output, errors)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def demo(scratch: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return run(scratch=scratch)


@pytest.fixture(scope="module")
def steps(demo: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the text of each step, by its number."""
    parts = re.split(r"^(\d)\. ", demo.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.share(4)
def test_it_ends_well_and_is_silent_on_stderr(demo):
    assert (demo.returncode, demo.stderr) == (0, "")


def test_it_fits_a_terminal(demo):
    lines = demo.stdout.splitlines()
    assert 60 <= len(lines) <= 120
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in demo.stdout


def test_it_leaves_no_trace(demo, scratch):
    assert demo.returncode == 0
    assert list(scratch.iterdir()) == []


def test_ended_in_the_middle_it_leaves_no_trace_either(tmp_path):
    process = start("demo", scratch=tmp_path)
    assert process.stdout is not None
    assert any(line.startswith("5. ") for line in process.stdout)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_it_says_what_is_offered_and_what_is_not(steps):
    assert "CUSTOM_ACCELERATOR_FPGA" in steps["1"]
    assert "0000:04:00.0  used by the host" in steps["1"]


def test_its_xml_is_of_the_entries_it_shows(steps):
    shown = re.findall(r'"pci_id":\s+"0000:(..):(..)\.(.)"', steps["2"])
    addresses = re.findall(r'bus="0x(..)" slot="0x(..)" function="0x(.)"', steps["3"])
    assert addresses == shown
    assert len(shown) == 2


def test_the_crash_leaves_a_half_way_host_and_an_intent(steps):
    assert "SIGKILL" in steps["5"]
    assert re.search(r"b1:00\.0  driver vfio-pci +override vfio-pci", steps["5"])
    assert re.search(r"b1:00\.1  driver - +override vfio-pci", steps["5"])
    assert re.search(r"lease preparing +guest-2", steps["5"])


def test_recovery_goes_back_before_the_plug_succeeds(steps):
    assert re.search(r"b1:00\.1  driver snd_hda_intel +override -", steps["6"])
    assert re.search(r"delete +releasing +guest-2", steps["6"])
    assert re.search(r'"pci_id":\s+"0000:b1:00\.0"', steps["6"])


def test_an_fpga_is_programmed_with_what_a_flavor_names(steps):
    before, after = steps["7"].split("os_acc.plug() returns")
    function = "CUSTOM_FPGA_INTEL_FUNCTION_"
    assert f"{function}D8424DC4" in before
    assert "CUSTOM_PROGRAMMABLE\n" in before.partition("flavor:")[0]
    assert re.search(r'"pci_id":\s+"0000:b3:00\.0"', after)
    assert "the card holds 3a7ab2f4" in after
    assert function not in after
    assert "CUSTOM_PROGRAMMABLE" not in after


def test_the_host_is_compared_at_the_end(steps):
    assert "guest-1: 2 released" in steps["8"]
    assert "guest-3: 1 released" in steps["8"]
    assert re.search(r"\d+ functions compared .*: 0 differ", steps["9"])


def documented():
    """Return the directories that the page names for the host."""
    page = pathlib.Path(__file__).resolve().parents[4] / "doc/source/user/demo.rst"
    (row,) = re.findall(r"^``host``.*", page.read_text("utf-8"), re.MULTILINE)
    return set(re.findall(r"``(/\w+)``", row))


@pytest.mark.share(6)
def test_what_is_kept_can_be_used(tmp_path):
    place = tmp_path / "the host's $1 copy"
    kept = run("--keep", str(place), scratch=tmp_path)
    assert kept.returncode == 0
    assert {"host", "os-acc.conf", "os-acc.log", "state"} <= {
        each.name for each in place.iterdir()
    }
    made = {each.name for each in (place / "host").iterdir()}
    # .kernel is the memory of the simulation.
    assert {f"/{name}" for name in made - {".kernel"}} == documented()
    again = run("--keep", str(place), scratch=tmp_path)
    assert again.returncode != 0
    assert "is not empty" in again.stderr
    # The last line is the command that uses it.
    *_, line = kept.stdout.splitlines()
    assert line == f"os-acc --simulated {shlex.quote(str(place))} device list"
    listed = main(*shlex.split(line)[1:], "--state", "free", scratch=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "0000:b3:00.0" in listed.stdout
    # The privileged helpers read the configuration of the host, too.
    checked = main("--simulated", str(place), "check", scratch=tmp_path)
    assert "helper base" in checked.stdout
    assert "cannot start" not in checked.stdout


def test_the_hostdev_is_what_nova_writes():
    info = {"domain": "0000", "bus": "3b", "device": "02", "function": "1"}
    element = ElementTree.fromstring(hostdev({"attach_handle_info": info}))
    assert element.tag == "hostdev"
    assert element.attrib == {"mode": "subsystem", "type": "pci", "managed": "yes"}
    address = element.find("source/address")
    assert address is not None
    assert address.attrib == {
        "domain": "0x0000",
        "bus": "0x3b",
        "slot": "0x02",
        "function": "0x1",
    }
