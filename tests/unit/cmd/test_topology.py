# SPDX-License-Identifier: Apache-2.0

"""``os-acc topology`` draws the host, and describes it for programs."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc.cmd.main import OsAcc
from os_acc.testing import HostSpec, TestHost, hosts, uuid_of
from tests.unit.cmd.console import Console, Terminal
from tests.unit.cmd.golden_files import expect
from tests.unit.cmd.gpu_host import gpu_host

GPU, NIC, FPGA = "0000:17:00.0", "0000:3b:00.0", "0000:e3:00.0"
MANUAL = Path(__file__).resolve().parents[3] / "doc/source/admin/topology.rst"
NAMED = (
    '{"vendor_id": "10de"}',
    '{"address": "0000:3b:00.0", "num_vfs": 2}',
    '{"address": "0000:04:00.0"}',
    '{"address": "0000:e3:00.0"}',
)


@pytest.fixture
def small(console: Console) -> Console:
    """Return a shell on two sockets; an instance has a GPU, a card is near no cell."""
    console.configure(*NAMED)
    console.bench.restart(device_spec=list(NAMED))
    console.bench.plug(1, GPU)
    return console


@pytest.fixture
def gpus(make_bench: Callable[..., TestHost], tmp_path: Path) -> Console:
    """Return a shell on 8 GPUs of 32 VFs each; one instance has 4, twelve have one."""
    named = '{"vendor_id": "10de", "resource_class": "CUSTOM_VGPU"}'
    bench = make_bench(gpu_host(), device_spec=[named])
    console = Console(bench, tmp_path)
    console.configure(named)
    bench.plug(1, "0000:13:00.0", amount=4)
    for number in range(2, 14):
        bench.plug(number, "0000:1b:00.0")
    return console


def picture(console: Console, place: Path, *more: str) -> str:
    ran = console.run("topology", "--svg", str(place), *more)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    return place.read_text(encoding="utf-8")


def test_a_host_is_drawn_as_the_manual_shows_it(small, tmp_path):
    ran = small.run("topology")
    expect("topology.txt", ran.out + ran.err)
    ran = small.run("topology", "--cells", "1", "--max-width", "100")
    expect("topology-cells.txt", ran.out + ran.err)
    expect("topology.svg", picture(small, tmp_path / "host.svg"))


def test_the_line_that_the_manual_explains_is_drawn(small):
    text = MANUAL.read_text(encoding="utf-8").partition("\nA line\n======\n")[2]
    explained = text.partition(".. code-block:: text\n\n   ")[2].splitlines()[0]
    explained = explained.replace("(0000...)", f"({uuid_of(1)})")
    ran = small.run("topology", "--max-width", "400")
    assert any(line.endswith(explained) for line in ran.out.splitlines())


def test_a_host_with_hundreds_of_vfs_fits_a_page(gpus, tmp_path):
    ran = gpus.run("topology")
    expect("topology-gpus.txt", ran.out + ran.err)
    assert len(ran.out.splitlines()) < 100
    expect("topology-gpus.svg", picture(gpus, tmp_path / "host.svg"))
    long = gpus.run("topology", "--long")
    for number in range(1, 14):
        assert uuid_of(number) in long.out
    assert len(long.out.splitlines()) > 256


def test_looking_changes_nothing(small, tmp_path):
    before = small.bench.kernel.snapshot()
    written = small.bench.kernel.writes()
    for more in ((), ("--long",), ("--svg", str(tmp_path / "a.svg")), ("-f", "json")):
        assert small.run("topology", *more).status == 0
    assert small.bench.kernel.snapshot() == before
    assert small.bench.kernel.writes() == written


def test_who_names_nothing_sees_the_host_and_is_told_how(console):
    console.config_file.write_text(
        f"[os_acc]\nstate_path = {console.bench.state_path}\n"
    )
    ran = console.run("topology")
    assert ran.status == 0
    assert ran.err.startswith("os-acc: device_spec is empty: ")
    assert "other functions: 7" in ran.out
    assert "No accelerators are offered." in ran.out


NETWORKS = """
[neutron]
physnets = foo, bar
[neutron_physnet_foo]
numa_nodes = 0
[neutron_physnet_bar]
numa_nodes = 0,1
[neutron_tunnel]
numa_nodes = 1
"""


def test_a_cell_says_which_networks_leave_the_host_there(console):
    console.configure(more=NETWORKS)
    shown = console.run("topology", "--max-width", "200").out
    (first, second) = (row for row in shown.splitlines() if "─ cell " in row)
    assert "; networks bar, foo; distance" in first
    assert "; networks bar; tunnels; distance" in second


def test_networks_that_are_not_rightly_told_leave_the_rest_to_be_drawn(console):
    console.configure(more=NETWORKS.replace("0,1", "0,7"))
    ran = console.run("topology")
    assert ran.status == 0
    assert ran.err.startswith("os-acc: [neutron_physnet_bar] numa_nodes has 7")
    assert "cell 1" in ran.out


@pytest.fixture
def without_numa(make_bench: Callable[..., TestHost], tmp_path: Path) -> Console:
    return Console(
        make_bench(HostSpec(tuple(hosts.gpu("0000:17")), nodes=())), tmp_path
    )


def test_a_kernel_without_numa_has_one_cell_and_its_devices_are_in_none(without_numa):
    rows = {row["Name"]: row for row in without_numa.json("topology", "--cells", "0")}
    assert [name for name in rows if name.startswith("cell ")] == ["cell 0"]
    assert (rows[GPU]["NUMA Node"], rows[GPU]["Affinity"]) == (None, "unknown")
    shown = without_numa.run("topology", "--max-width", "200").out
    cell, _, devices = shown.partition("no NUMA node")
    assert "cell 0  CPUs 0; 64 GiB\n" in cell
    assert GPU in devices
    assert without_numa.run("topology", "--cells", "1").status == 1


def test_networks_are_compared_with_that_cell(without_numa):
    without_numa.configure(more=NETWORKS)
    ran = without_numa.run("topology")
    assert ran.err.startswith("os-acc: [neutron_physnet_bar] numa_nodes has 1")
    at_home = NETWORKS.replace("0,1", "0").replace("= 1", "= 0")
    without_numa.configure(more=at_home)
    assert "networks bar, foo; tunnels" in without_numa.run("topology").out


def test_programs_are_told_what_is_where_and_whose(small):
    rows = {row["Name"]: row for row in small.json("topology")}
    assert rows[GPU]["Below"] == "0000:16:00.0"
    assert rows["0000:16:00.0"]["Below"] == "cell 0"
    assert rows["cell 0"]["Below"] == "socket 0"
    assert (rows[GPU]["State"], rows[GPU]["Consumer"]) == ("leased", uuid_of(1))
    assert rows[GPU]["Instance Name"] == "instance-1"
    assert (rows[FPGA]["Below"], rows[FPGA]["NUMA Node"]) == (None, None)
    assert rows["0000:3b:02.1"]["Below"] == NIC
    text = small.run("topology", "-f", "csv").out
    assert {row["Name"] for row in csv.DictReader(io.StringIO(text))} == set(rows)


def test_programs_are_told_for_a_guest_what_it_could_have(small):
    rows = {row["Name"]: row for row in small.json("topology", "--cells", "1")}
    assert rows["0000:b1:00.0"]["Affinity"] == "local"
    assert rows[GPU]["Affinity"] == "remote"
    assert rows[GPU]["Policies"] == ["preferred"]
    assert rows[FPGA]["Affinity"] == "unknown"
    assert rows[FPGA]["Policies"] == ["legacy", "preferred"]


def test_a_picture_takes_the_place_of_what_was_there(small, tmp_path):
    file = tmp_path / "host.svg"
    file.write_text("x" * 1_000_000)
    assert picture(small, file) == picture(small, tmp_path / "other.svg")


def test_what_was_there_stays_where_nothing_can_be_drawn(small, tmp_path):
    file = tmp_path / "host.svg"
    file.write_text("before")
    ran = small.run("topology", "--cells", "5", "--svg", str(file))
    assert ran.status == 1
    assert ran.err.splitlines() == [
        "os-acc: this host has no cell 5",
        "hint: its cells: 0, 1",
    ]
    assert file.read_text() == "before"


def test_a_disk_that_is_full_is_an_error(small):
    ran = small.run("topology", "--svg", "/dev/full")
    assert ran.status == 1
    assert ran.err.startswith("os-acc: cannot write /dev/full: ")


@pytest.fixture
def terminal(small: Console, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def look() -> str:
        out = Terminal()
        app = OsAcc(small.bench.root, cfg.ConfigOpts(), stdout=out)
        assert app.run(["--config-file", str(small.config_file), "topology"]) == 0
        return out.getvalue()

    return look


def test_a_terminal_has_colours_and_a_width_of_its_own(terminal, small):
    shown = terminal()
    assert "\x1b[34mleased\x1b[0m" in shown
    lines = re.sub("\x1b\\[[0-9]*m", "", shown).splitlines()
    assert 50 < max(map(len, lines)) <= 60
    assert "\x1b" not in small.run("topology").out


def test_who_wants_no_colours_gets_none(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in terminal()
