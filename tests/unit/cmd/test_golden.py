# SPDX-License-Identifier: Apache-2.0

"""The manual shows the output that the command really prints."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_utils import uuidutils

from os_acc.cmd import device, environment, tables
from os_acc.conf import PRIVSEP_GROUPS
from os_acc.privsep import privileged_conf
from os_acc.testing import hosts, uuid_of
from tests.unit.cmd.console import Console
from tests.unit.cmd.golden_files import GOLDEN, expect

NAMED = (
    '{"vendor_id": "10de"}',
    '{"address": "0000:3b:00.0", "num_vfs": 2}',
    '{"address": "0000:04:00.0"}',
)
GPU, AUDIO, VF = "0000:17:00.0", "0000:17:00.1", "0000:3b:02.0"
NOVA = 64055


@pytest.fixture
def golden(console: Console) -> Callable[..., None]:
    """Return a function that compares a command's output with the manual's."""
    hosts.install_model_names(console.bench.root)

    def compare(name: str, *arguments: str) -> None:
        ran = console.run(*arguments)
        expect(f"{name}.txt", ran.out + ran.err)

    return compare


@pytest.fixture
def helper_of_nova() -> Iterator[None]:
    for group in PRIVSEP_GROUPS:
        command = "sudo privsep-helper --config-file /etc/nova/nova.conf"
        cfg.CONF.set_override("helper_command", command, group=group)
    yield
    for group in PRIVSEP_GROUPS:
        cfg.CONF.clear_override("helper_command", group=group)


def test_what_the_manual_shows_of_a_plug(console, golden, monkeypatch):
    numbers = itertools.count(1)
    monkeypatch.setattr(
        uuidutils, "generate_uuid", lambda: f"{next(numbers):08x}" + uuid_of(0)[8:]
    )
    console.configure(*NAMED)
    # Without this file, the helper's warning is a part of the output.
    limit = Path(console.bench.root, *privileged_conf.PATH)
    limit.parent.mkdir(parents=True)
    limit.write_text("\n".join(["[os_acc]", *(f"device_spec = {e}" for e in NAMED)]))
    provider = console.bench.provider(GPU).uuid
    golden("provider-list", "provider", "list")
    golden("plug", "plug", f"--instance={uuid_of(1)}", f"--provider={provider}")
    golden("attached", "attached")
    golden("device-list", "device", "list")
    golden("device-show", "device", "show", GPU)
    console.bench.kernel.hold(GPU, pid=4711, command="qemu-kvm")
    golden("unplug-in-use", "unplug", uuid_of(1))
    console.bench.kernel.let_go(GPU)
    golden("unplug", "unplug", uuid_of(1))
    times = (f"2027-01-15T08:{minute:02}:00.000+00:00" for minute in itertools.count())
    monkeypatch.setattr(device, "_moment", lambda _when: next(times))
    golden("device-history", "device", "history", GPU)


def test_what_the_manual_shows_of_unknown_devices(console, golden):
    console.configure(*NAMED)
    manager = console.bench.restart(device_spec=list(NAMED))
    console.bench.plug(1, GPU)
    console.bench.plug(2, VF)
    manager.store.delete(manager.store.leases())
    console.bench.remove_records()
    golden("unknown", "device", "list", "--state", "unknown")
    golden(
        "release",
        *("device", "release", GPU, "--driver", "nouveau"),
        *("--sibling", f"{AUDIO}=snd_hda_intel"),
    )
    golden("adopt", "device", "adopt", VF, "--consumer", uuid_of(2), "--driver", "")


def test_what_the_manual_shows_of_networks(console):
    console.configure(
        more="[neutron]\nphysnets = physnet0, physnet1\n"
        "[neutron_physnet_physnet0]\nnuma_nodes = 0\n"
        "[neutron_physnet_physnet1]\nnuma_nodes = 0,1\n"
        "[neutron_tunnel]\nnuma_nodes = 1"
    )
    out = console.run("check", "-f", "value", "-c", "What").out
    lines = [line for line in out.splitlines(keepends=True) if "NUMA node" in line]
    expect("check-networks.txt", "".join(lines))


def test_what_the_manual_shows_of_bitstreams(console, images, golden):
    golden("bitstream-fetch", "bitstream", "fetch", "loopback1")
    place = Path(console.bench.state_path, "bitstreams")
    for file in place.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    golden("bitstream-list", "bitstream", "list")
    golden("bitstream-verify", "bitstream", "verify")


def test_what_the_manual_shows_of_a_request(golden):
    properties = (
        "resources1:CUSTOM_ACCELERATOR_FPGA=1",
        "trait1:CUSTOM_PROGRAMMABLE=required",
        "accel1:function_name=gzip",
        "resources2:CUSTOM_ACCELERATOR_GPU=1",
        "trait2:CUSTOM_PCI_10DE_2235=forbidden",
        "group_policy=isolate",
    )
    given = [word for each in properties for word in ("--property", each)]
    golden("request-show", "request", "show", *given)


def test_what_the_manual_shows_of_profiles(console, tmp_path, golden):
    file = tmp_path / "profiles.yaml"
    file.write_text((GOLDEN / "profiles.yaml").read_text())
    console.configure(more=f"[os_acc_profiles]\ncatalogue = {file}")
    golden("profile-list", "profile", "list")
    golden("profile-show", "profile", "show", "fpga-dp1")
    golden("profile-apply", "profile", "apply", "fpga-dp1", "fpga.small")


def test_what_the_manual_shows_of_the_setup(console, monkeypatch):
    console.configure(f'{{"address": "{GPU}"}}')
    bench = console.bench
    os.rmdir(bench.state_path)

    def as_installed(text: str) -> str:
        text = str(text or "-").replace(bench.state_path, "/var/lib/os_acc")
        return text.replace(bench.root, "")

    monkeypatch.setattr(tables, "_text", as_installed)
    expect("setup.txt", as_installed(console.run("setup").out))


@pytest.mark.usefixtures("helper_of_nova")
def test_what_the_manual_shows_of_a_check(console, golden, monkeypatch):
    state_path = console.bench.state_path

    def expanded(text: str) -> str:
        text = text.replace(str(console.config_file), "/etc/nova/nova.conf")
        text = text.replace(f"{console.bench.root}/etc", "/etc")
        return text.replace(state_path, "/var/lib/os_acc")

    monkeypatch.setattr(tables, "_text", expanded)
    monkeypatch.setattr(environment, "name_of", lambda _uid: "nova")
    monkeypatch.setattr(environment, "owner_of", lambda _path: (NOVA, NOVA))
    monkeypatch.setattr(os, "geteuid", lambda: NOVA)
    monkeypatch.setattr(os, "access", lambda *_arguments, **_keywords: True)
    console.configure(*NAMED, more='[pci]\ndevice_spec = {"address": "0000:b1:00.0"}')
    # A helper warns once, in its log.
    privileged_conf.current()
    golden("check", "check")
    lines = (GOLDEN / "check.txt").read_text().splitlines()
    assert max(map(len, lines)) <= 100
