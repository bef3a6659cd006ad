# SPDX-License-Identifier: Apache-2.0

"""``os-acc check`` reports each fault with a remedy."""

import dataclasses
import io
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import privsep
from os_acc.cmd import environment
from os_acc.cmd.main import OsAcc
from os_acc.plugins.pci import PciPlugin
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.mdevs import mtty
from tests.functional.host.attach import test_variant_drivers
from tests.unit import vendor_steps
from tests.unit.cmd.console import Console, Terminal
from tests.unit.store.store_files import execute, file_in

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"


@pytest.fixture
def console_on(
    make_bench: Callable[..., TestHost], tmp_path: Path
) -> Callable[[HostSpec], Console]:
    """Return a function that opens a shell on the host of a spec."""
    return lambda spec: Console(make_bench(spec), tmp_path)


def test_a_host_that_is_ready_passes(console):
    console.configure(f'{{"address": "{GPU}"}}', f'{{"address": "{FPGA}"}}')
    ran = console.run("check", "-f", "value", "-c", "Result")
    assert ran.status == 0
    assert "failed" not in ran.out
    assert console.results("devices") == {"ok"}


def test_without_an_iommu_there_is_nothing_to_give(console_on):
    checks = console_on(hosts.without_iommu()).checks()
    (iommu,), (isolation, *_others) = checks["iommu"], checks["isolation"]
    assert iommu["Result"] == "failed"
    assert isolation["Result"] == "warning"
    assert "in no IOMMU group" in isolation["What"]
    for found in (iommu, isolation):
        assert "intel_iommu=on" in found["Hint"]
    assert "slot" not in isolation["Hint"]


def test_vfio_pci_may_be_missing_where_no_accelerator_needs_it(console_on):
    spec = HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),), vfio=False)
    console = console_on(spec)
    mediated = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'
    console.configure(mediated)
    (vfio,) = console.checks()["vfio-pci"]
    assert vfio["Result"] == "ok"
    assert "no accelerator that is offered or in use needs it" in vfio["What"]
    console.configure(mediated, f'{{"address": "{GPU}"}}')
    (vfio,) = console.checks()["vfio-pci"]
    assert vfio["Result"] == "failed"
    assert "modprobe vfio-pci" in vfio["Hint"]


@pytest.mark.parametrize(
    ("tag", "result"), [("auto", "ok"), ("vfio-pci", "failed")], ids=["variant", "not"]
)
def test_a_variant_of_vfio_pci_is_enough_for_its_functions(console_on, tag, result):
    spec = dataclasses.replace(test_variant_drivers.SPEC, vfio=False)
    console = console_on(spec)
    console.configure(test_variant_drivers.AUTO.replace("auto", tag))
    assert console.results("vfio-pci") == {result}


def test_vfio_pci_is_missing_for_a_guest_that_has_a_function(console_on):
    spec = HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),))
    console = console_on(spec)
    console.bench.restart(device_spec=[f'{{"address": "{GPU}"}}'])
    console.bench.plug(1, GPU)
    console.bench.kernel.reboot()
    shutil.rmtree(console.bench.kernel.path("sys/bus/pci/drivers/vfio-pci"))
    # It is not named any more.
    console.configure('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}')
    assert console.results("vfio-pci") == {"failed"}


def test_what_vfio_pci_denies_is_a_warning(console_on):
    (found,) = console_on(hosts.denylist_host()).checks()["denylist"]
    assert found["Result"] == "warning"
    assert "0000:3d:00.0" in found["What"]
    assert "modprobe vfio-pci disable_denylist=1" in found["Hint"]


@pytest.mark.parametrize(
    ("spec", "address", "what", "hint"),
    [
        (hosts.shared_group_host(), "0000:01:00.0", "shares its group", "another slot"),
        (hosts.mapped_by_firmware(), "0000:05:00.0", "tied to memory by the", "RMRR"),
    ],
    ids=["group", "firmware"],
)
def test_a_group_that_cannot_be_isolated_is_a_warning(
    console_on, spec, address, what, hint
):
    console = console_on(spec)
    console.configure(f'{{"address": "{address}"}}')
    (found,) = console.checks()["isolation"]
    assert found["Result"] == "warning"
    assert address in found["What"]
    assert what in found["What"]
    assert hint in found["Hint"]
    assert ("ACS" in found["Hint"]) is ("slot" in hint)


def test_the_no_iommu_mode_of_vfio_is_told_to_be_left(console):
    console.configure(f'{{"address": "{FPGA}"}}')
    device = Path(console.bench.root, "sys/bus/pci/devices", FPGA)
    (device / "iommu_group/name").write_text("vfio-noiommu\n")
    (found,) = console.checks()["isolation"]
    assert found["Result"] == "warning"
    assert "enable_unsafe_noiommu_mode" in found["Hint"]


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "tmpfs"])
def test_a_file_system_that_forgets_or_does_not_lock_fails(console_on, kind, tmp_path):
    mounts = ("/dev/sda1 / ext4 rw 0 0", f"else {tmp_path} {kind} rw 0 0")
    spec = dataclasses.replace(hosts.two_socket_host(), mounts=mounts)
    (found,) = console_on(spec).checks()["state file system"]
    assert found["Result"] == "failed"
    assert kind in found["What"]


def test_a_missing_state_directory_fails_once(console):
    os.rmdir(console.bench.state_path)
    checks = console.checks()
    (directory,) = checks["state directory"]
    assert directory["Result"] == "failed"
    assert f"-m 0750 {console.bench.state_path}" in directory["Hint"]
    assert not os.path.exists(console.bench.state_path)
    for name in (
        "state file system",
        "state files",
        "records",
        "image cache",
        "image files",
    ):
        (found,) = checks[name]
        assert found["Result"] == "warning"
        assert found["What"] == "skipped: see the failed check above"
    gone = [row["What"] for rows in checks.values() for row in rows]
    assert sum("does not exist" in what for what in gone) == 2


def test_another_users_state_directory_fails(console, monkeypatch):
    monkeypatch.setattr(environment, "owner_of", lambda _path: (64055, 64055))
    monkeypatch.setattr(os, "geteuid", lambda: 64000)
    found = console.checks()["state directory"][0]
    assert found["Result"] == "failed"
    assert "belongs to 64055, but this user is 64000" in found["What"]


def test_files_of_others_below_the_state_directory_fail(console, monkeypatch):
    console.bench.plug(1, GPU)
    monkeypatch.setattr(environment, "owner_of", lambda _path: (64055, 64055))
    monkeypatch.setattr(os, "geteuid", lambda: 64055)
    (found,) = console.checks()["state files"]
    assert found["Result"] == "failed"
    assert "chown -R --reference=" in found["Hint"]


@pytest.fixture
def theirs(console: Console, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the owners of files, by path; nova-compute owns all files not in it."""
    owners: dict[str, int] = {}
    lstat = os.lstat

    def owned(path: str, **options: int) -> os.stat_result:
        found = lstat(path, **options)
        fields = list(found)
        fields[stat.ST_UID] = owners.get(str(path), 64055)
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", owned)
    monkeypatch.setattr(environment, "owner_of", lambda _path: (64055, 64055))
    monkeypatch.setattr(os, "geteuid", lambda: 64055)
    return owners


@pytest.mark.parametrize("below", ["", "bitstreams"])
def test_a_mount_point_of_its_own_has_roots_lost_and_found(console, theirs, below):
    lost = Path(console.bench.state_path, below, "lost+found")
    (lost / "#12").mkdir(parents=True)
    theirs |= {str(lost): 0, str(lost / "#12"): 0}
    assert console.results("state files") == {"ok"}
    assert console.results("image files") == {"ok"}
    # Another owner is a finding, as for every other file.
    theirs[str(lost)] = 64000
    assert console.results("state files") == {"failed"}


@pytest.mark.parametrize("place", ["lost+found", "locks/lost+found", "bitstreams/lost"])
def test_what_is_not_roots_lost_and_found_stays_a_finding(console, theirs, place):
    path = Path(console.bench.state_path, place)
    path.parent.mkdir(exist_ok=True)
    if place == "lost+found":
        path.touch()
    else:
        path.mkdir()
    theirs[str(path)] = 0
    (found,) = console.checks()["state files"]
    assert found["Result"] == "failed"
    assert str(path) in found["What"]


def test_a_state_directory_that_cannot_be_written_fails(console, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_arguments, **_keywords: False)
    assert "failed" in console.results("state directory")


def test_a_damaged_store_fails_and_is_left_where_it_is(console):
    path = Path(console.bench.state_path) / "os_acc.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    before = path.read_bytes()
    (found,) = console.checks()["records"]
    assert found["Result"] == "failed"
    assert "restart nova-compute" in found["Hint"]
    assert path.read_bytes() == before


def test_what_waits_in_the_records_is_a_warning(console):
    console.bench.plug(1, GPU)
    state = Path(console.bench.state_path)
    execute(file_in(str(state)), "UPDATE leases SET payload = ''")
    (state / "os_acc.sqlite.damaged-20260101T000000.000000Z").touch()
    found = [row["What"] for row in console.checks()["records"]]
    assert any("was set aside" in what for what in found)
    assert any(f"the lease of {GPU} is damaged" in what for what in found)
    assert console.results("unknown devices") == {"warning"}


def test_an_entry_that_names_nothing_is_a_warning(console):
    console.configure(f'{{"address": "{GPU}"}}', '{"vendor_id": "1234"}')
    (found,) = console.checks()["device_spec"]
    assert found["Result"] == "warning"
    assert "entry 2 of 2" in found["What"]


def test_an_empty_device_spec_is_a_warning(console):
    text = console.config_file.read_text()
    console.config_file.write_text(text.replace("\ndevice_spec", "\n#"))
    assert console.results("device_spec") == {"warning"}
    assert console.run("check").status == 0


def test_a_helper_that_does_not_start_fails_with_its_command(console, monkeypatch):
    monkeypatch.setattr(privsep.base, "client_mode", True)
    cfg.CONF.set_override("helper_command", "false --now", group="os_acc_base")
    try:
        checks = console.checks()
    finally:
        cfg.CONF.clear_override("helper_command", group="os_acc_base")
    (base,), (inspect,) = checks["helper base"], checks["helper inspect"]
    assert base["Result"] == "failed"
    assert "false --now --privsep_context os_acc.privsep.base" in base["What"]
    assert "[os_acc_base] helper_command" in base["Hint"]
    assert inspect["Result"] == "ok"


def test_a_plugin_that_is_not_installed_fails(console):
    console.configure(more="enabled_plugins = none_such")
    (found,) = console.checks()["plugins"]
    assert found["Result"] == "failed"
    assert "none_such" in found["What"]


def test_a_plugin_that_fails_to_discover_fails(console, monkeypatch):
    def discover(self: PciPlugin, candidates: object) -> None:
        raise ValueError("no firmware")

    monkeypatch.setattr(PciPlugin, "discover", discover)
    found = [row for row in console.checks()["devices"] if row["Result"] == "failed"]
    assert "no firmware" in found[0]["What"]


def test_several_faults_at_once_are_each_told_once(console_on):
    console = console_on(dataclasses.replace(hosts.without_iommu(), vfio=False))
    console.configure("{")
    os.rmdir(console.bench.state_path)
    checks = console.checks()
    failed = [
        name
        for name, rows in checks.items()
        if any(row["Result"] == "failed" for row in rows)
    ]
    assert failed == [
        "iommu",
        "vfio-pci",
        "state directory",
        "device_spec",
    ]


def test_a_configuration_that_is_missing_is_named(console):
    console.config_file.unlink()
    (found,) = console.checks()["configuration"]
    assert found["Result"] == "failed"
    assert str(console.config_file) in found["What"]
    assert "--config-file /etc/nova/nova.conf" in found["Hint"]


def test_without_a_configuration_the_host_is_still_checked(console):
    console.config_file.write_text("no section\n")
    checks = console.checks()
    assert console.results("configuration") == {"failed"}
    assert console.results("iommu") == {"ok"}
    assert {row["Result"] for row in checks["devices"]} == {"warning"}


def test_networks_are_shown_at_the_numa_nodes_by_which_they_leave(console):
    console.configure(
        more="[neutron]\nphysnets = foo,bar\n[neutron_physnet_foo]\nnuma_nodes = 0\n"
        "[neutron_physnet_bar]\nnuma_nodes = 0,1\n[neutron_tunnel]\nnuma_nodes = 1"
    )
    (found,) = console.checks()["networks"]
    assert found["Result"] == "ok"
    assert found["What"] == "NUMA node 0: bar, foo; NUMA node 1: bar, tunnels"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[neutron_tunnel]\nnuma_nodes = 2", "[neutron_tunnel] numa_nodes has 2"),
        ("[neutron_tunnel]\nnuma_nodes = x", "[neutron_tunnel] numa_nodes cannot"),
        ("[neutron]\nphysnets = foo", "[neutron] physnets has 'foo'"),
    ],
)
def test_a_network_whose_nodes_are_told_wrongly_fails(console, more, said):
    console.configure(more=more)
    ran = console.run("check", "-f", "json")
    assert ran.status == 1
    (found,) = (row for row in json.loads(ran.out) if row["Check"] == "networks")
    assert found["Result"] == "failed"
    assert found["What"].startswith(said)
    assert found["Hint"]


def test_a_section_of_a_network_that_is_not_listed_is_a_warning(console):
    console.configure(more="[neutron_physnet_foo]\nnuma_nodes = 0")
    (found,) = console.checks()["networks"]
    assert found["Result"] == "warning"
    assert "[neutron_physnet_foo]" in found["What"]
    assert "[neutron] physnets" in found["Hint"]


def test_nodes_that_cannot_be_read_fail(console):
    nodes = Path(console.bench.root, "sys/devices/system/node")
    (nodes / "online").unlink()
    (nodes / "online").write_text("dragons\n")
    (found,) = console.checks()["networks"]
    assert found["Result"] == "failed"
    assert "dragons" in found["What"]


def test_the_helper_of_a_plugin_that_does_not_start_fails_with_its_command(
    console, monkeypatch, install_plugins
):
    install_plugins(acme="tests.unit.vendor_steps:Stepping")
    assert console.results("plugin helpers") == {"ok"}
    monkeypatch.setattr(vendor_steps.context, "client_mode", True)
    cfg.CONF.set_override("helper_command", "false --now", group="vendor_steps")
    try:
        (found,) = console.checks()["plugin helpers"]
    finally:
        cfg.CONF.clear_override("helper_command", group="vendor_steps")
    assert found["Result"] == "failed"
    assert found["What"].startswith("plugin acme: cannot start")
    assert "false --now --privsep_context tests.unit.vendor_steps" in found["What"]
    assert "[vendor_steps] helper_command" in found["Hint"]


# -- the table -----------------------------------------------------------------


def test_the_table_fits_100_columns(console):
    console.configure(more=f'[pci]\ndevice_spec = {{"address": "{GPU}"}}')
    head, _columns, rule, *lines = console.run("check").out.splitlines()
    texts = [line.split("|")[3].strip() for line in lines if line.startswith("|")]
    assert head == rule
    assert len(head) == 100
    assert all(len(text) <= 66 for text in texts)
    assert any(text.startswith("hint: give each device to one") for text in texts)


def test_a_long_path_is_broken_at_its_directories(console):
    names = ["long-name-of-a-directory"] * 5
    path = os.path.join(console.bench.state_path, *names)
    os.makedirs(path)
    console.configure(
        more=f"[os_acc_bitstreams]\nsource = directory\ndirectory = {path}x"
    )
    lines = console.run("check").out.splitlines()
    assert {len(line) for line in lines} == {100}
    texts = [line.split("|")[3].strip() for line in lines if line.startswith("|")]
    assert f"{names[0]}/{names[0]}/" in texts
    # The other formats have it whole, to be copied.
    assert f"{path}x" in console.run("check", "-f", "json").out


def test_columns_of_the_table_can_be_chosen(console):
    ran = console.run("check", "-c", "Check", "-c", "Hint")
    head = ran.out.splitlines()[1]
    assert [each.strip() for each in head.split("|")[1:-1]] == ["Check", "Hint"]


def test_on_a_terminal_the_running_check_is_shown(console):
    errors = Terminal()
    app = OsAcc(
        root=console.bench.root,
        config=cfg.ConfigOpts(),
        stdout=io.StringIO(),
        stderr=errors,
    )
    app.run(["--config-file", str(console.config_file), "check"])
    shown = errors.getvalue()
    assert "/27 unknown devices ..." in shown
    assert shown.endswith("\r\033[K")


def test_an_entry_for_a_virtual_parent_matches_it(console_on):
    console = console_on(HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),)))
    console.configure('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}')
    assert console.results("device_spec") == {"ok"}
    console.configure('{"mdev_parent": "other", "mdev_types": "mtty-1"}')
    assert console.results("device_spec") == {"warning"}
