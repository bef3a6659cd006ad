# SPDX-License-Identifier: Apache-2.0

"""The VFs that ``num_vfs`` requests: an operator finds out how to get them."""

import dataclasses
import errno
from pathlib import Path

import pytest

from os_acc.testing import HostSpec, TestHost, hosts
from tests.unit.cmd.console import Console

PF = "0000:3b:00.0"
REQUESTED = f'{{"address": "{PF}", "num_vfs": 16}}'
VFS = '{"vendor_id": "8086", "product_id": "4941"}'
PREPARE = "os-acc device prepare --write"
INSTANCE = "7e6f2a52-4d0c-4cda-a1a3-000000000001"


@pytest.fixture
def qat(make_bench, tmp_path: Path) -> Console:
    """Return a shell on a host with a QAT card without VFs."""
    console = Console(make_bench(HostSpec((hosts.qat_gen4("0000:3b"),))), tmp_path)
    console.configure(REQUESTED)
    return console


def vfs(bench: TestHost) -> int:
    function = bench.manager.discover().host.functions
    return sum(each.physfn is not None for each in function.values())


def row_of(console: Console) -> dict[str, object]:
    (row,) = console.json("device", "prepare")
    return row


def check(console: Console, name: str) -> tuple[str, str]:
    (row,) = [each for each in console.json("check") if each["Check"] == name]
    return row["What"], row["Hint"]


def files(console: Console) -> int:
    return len(console.bench.kernel.writes())


def test_a_dry_run_changes_nothing_and_names_the_next_command(qat):
    ran = qat.run("device", "prepare", "-f", "value")
    assert (ran.status, ran.out) == (0, f"{PF} 16 0 16 None\n")
    assert PREPARE in ran.err
    assert files(qat) == 0


def test_the_vfs_are_made_and_offered(qat):
    assert qat.json("provider", "list") == []
    ran = qat.run("device", "prepare", "--write", "-f", "value")
    assert (ran.status, ran.out) == (0, f"{PF} 16 16 0 None\n")
    assert "nothing was changed" not in ran.err
    assert sum(each["Total"] for each in qat.json("provider", "list")) == 16
    again = qat.run("device", "prepare", "--write", "-f", "value")
    assert (again.status, again.out) == (0, f"{PF} 16 16 0 None\n")


def test_it_says_why_they_cannot_be_made(qat):
    qat.configure(f'{{"address": "{PF}", "num_vfs": 4}}')
    for arguments in ((), ("--write",)):
        ran = qat.run("device", "prepare", *arguments, "-f", "value")
        assert ran.status == 1
        assert "creates all 16 VFs at once, not 4" in ran.out
    assert files(qat) == 0


def test_commands_that_release_make_none(qat):
    assert qat.run("unplug", INSTANCE).status == 0
    assert files(qat) == 0


def test_check_and_the_list_of_providers_name_the_command(qat):
    what, hint = check(qat, "vfs")
    assert what.startswith(PF)
    assert PREPARE in hint
    assert PREPARE in qat.run("provider", "list").err
    assert qat.run(*PREPARE.split()[1:]).status == 0
    assert check(qat, "vfs")[0] == "each PF has the VFs that num_vfs requests"
    assert qat.run("provider", "list").err == ""


@pytest.mark.parametrize("entry", [VFS, '{"address": "0000:3b:01.*"}'])
def test_check_names_the_pf_of_vfs_that_do_not_exist(qat, entry):
    qat.configure(entry)
    what, hint = check(qat, "device_spec")
    assert what == f"entry 1 of 1 matches no device of this host: {entry}"
    assert f"{PF} can make 16 such VFs" in hint
    qat.configure('{"vendor_id": "8086", "product_id": "1234"}')
    assert check(qat, "device_spec")[1] == "compare the entry with 'lspci -nn -D'"


def test_after_a_reboot_a_leased_vf_is_said_to_wait_for_its_pf(qat):
    qat.run("device", "prepare", "--write")
    (uuid, *_) = [each["UUID"] for each in qat.json("provider", "list")]
    plugged = qat.json("plug", "--instance", INSTANCE, "--provider", uuid)
    (address,) = [each["PCI ID"] for each in plugged]
    qat.bench.kernel.reboot()
    device = qat.device(address)
    assert device["Reason"] == f"its PF {PF} has no VFs: {PREPARE} makes them"
    assert qat.run(*PREPARE.split()[1:]).status == 0
    assert qat.device(address)["Reason"] is None


def test_more_vfs_than_the_card_can_have(make_bench, tmp_path):
    console = Console(
        make_bench(HostSpec((hosts.nic("0000:3b", name="eno1", vfs=8),))), tmp_path
    )
    console.configure(f'{{"address": "{PF}", "num_vfs": 9}}')
    ran = console.run("device", "prepare", "-f", "value")
    assert ran.status == 1
    assert "it can have 8 VFs, not 9 (lower num_vfs)" in ran.out


def test_another_number_of_vfs_is_not_made(make_bench, tmp_path):
    card = hosts.nic("0000:3b", name="eno1", vfs=8, boot_vfs=2)
    console = Console(make_bench(HostSpec((card,))), tmp_path)
    console.configure(f'{{"address": "{PF}", "num_vfs": 4}}')
    assert console.run("device", "prepare", "--write").status == 1
    listed = console.run("device", "list").err
    assert "2 of 4; remove all VFs while no guest has one" in listed
    assert PREPARE not in listed


def test_without_addresses_for_the_vfs_the_firmware_is_named(qat):
    qat.bench.kernel.fail(PF, "sriov_numvfs", errno.ENOMEM, times=9)
    ran = qat.run("device", "prepare", "--write", "-f", "value")
    assert ran.status == 1
    assert "Above 4G Decoding" in ran.out
    assert "LimitNOFILE" not in ran.out


@pytest.fixture
def without_sriov(make_bench, tmp_path: Path) -> Console:
    """Return a shell on a host whose firmware has switched SR-IOV off."""
    card = dataclasses.replace(hosts.nic("0000:3b", name="eno1"), sriov=None)
    console = Console(make_bench(HostSpec((card,))), tmp_path)
    console.configure(REQUESTED)
    return console


def test_a_card_without_sr_iov_is_not_offered_instead_of_its_vfs(without_sriov):
    assert without_sriov.state(PF) == "refused"
    assert without_sriov.json("provider", "list") == []
    what, hint = check(without_sriov, "vfs")
    assert what.endswith("0 of 16; it has no SR-IOV")
    assert hint == "enable SR-IOV in the firmware of the card and of the host"
    for arguments in ((), ("--write",)):
        ran = without_sriov.run("device", "prepare", *arguments, "-f", "value")
        assert ran.status == 1
        assert "it has no SR-IOV (enable SR-IOV in the firmware" in ran.out
