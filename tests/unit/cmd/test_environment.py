# SPDX-License-Identifier: Apache-2.0

"""The command reads the named files, its own ones, or those of nova-compute.

Root acts as the owner of the state directory.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.cmd import environment
from os_acc.conf import Settings
from os_acc.helper import client
from os_acc.store import state_files
from os_acc.testing import uuid_of


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes oslo.config find these files, and no directory."""

    def find(*paths: Path) -> None:
        monkeypatch.setattr(cfg, "find_config_dirs", lambda *_: [])
        monkeypatch.setattr(cfg, "find_config_files", lambda *_: list(map(str, paths)))

    return find


def load(root: Path, *files: Path) -> cfg.ConfigOpts:
    config = cfg.ConfigOpts()
    environment.load_configuration(config, list(map(str, files)), [], str(root))
    return config


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_its_own_are_read_once(tmp_path, found):
    own = write(tmp_path / "os-acc.conf", '[os_acc]\ndevice_spec = {"address": "*"}\n')
    write(tmp_path / "etc/nova/nova.conf", "[os_acc]\nnode_name = of-nova\n")
    found(own, own)
    config = load(tmp_path)
    assert environment.read_files(config) == (str(own),)
    assert len(Settings.load(config).device_spec) == 1


def test_without_its_own_those_of_nova_compute_are_read(tmp_path, found):
    nova = write(tmp_path / "etc/nova/nova.conf", "[os_acc]\nnode_name = one\n")
    compute = write(tmp_path / "etc/nova/nova-compute.conf", "[libvirt]\n")
    directory = tmp_path / "etc/nova/nova.conf.d"
    write(directory / "a.conf", "[os_acc]\nnode_name = two\n")
    found()
    config = load(tmp_path)
    assert environment.read_files(config) == (
        *(str(nova), str(compute)),
        str(directory),
    )
    assert Settings.load(config).node_name == "two"


def test_files_that_are_named_are_all_that_is_read(tmp_path, found):
    found(write(tmp_path / "os-acc.conf", "[os_acc]\nnode_name = other\n"))
    named = write(tmp_path / "named.conf", "[os_acc]\nnode_name = named\n")
    assert Settings.load(load(tmp_path, named)).node_name == "named"


@pytest.mark.parametrize(
    "options",
    [
        '[pci]\ndevice_spec = {"address": "0000:17:00.0"}',
        '[pci]\npassthrough_whitelist = {"address": "0000:17:00.0"}',
        '[DEFAULT]\npci_passthrough_whitelist = {"address": "0000:17:00.0"}',
        "[devices]\nenabled_mdev_types = a\n[mdev_a]\ndevice_addresses = 0000:17:00.0",
        "[devices]\nenabled_vgpu_types = a\n[vgpu_a]\ndevice_addresses = 0000:17:00.0",
    ],
)
def test_what_nova_claims_is_seen_without_nova(console, options):
    console.configure(more=options)
    row = console.device("0000:17:00.0")
    assert row["State"] == "refused"
    assert row["Reason"] == "claimed by Nova's own options"


@pytest.mark.parametrize("name", ["enabled_mdev_types", "enabled_vgpu_types"])
def test_a_type_that_nova_may_put_anywhere_is_seen_without_nova(console, name):
    card = Path(console.bench.root, "sys/bus/pci/devices/0000:17:00.0")
    (card / "mdev_supported_types/nvidia-558").mkdir(parents=True)
    console.configure(more=f"[devices]\n{name} = nvidia-558")
    reason = console.device("0000:17:00.0")["Reason"]
    assert reason == "claimed by Nova's own options: it offers nvidia-558"
    assert console.results("claims") == {"failed"}


# -- the name of the node ------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the state directory of a service that passed the name ``of-nova``."""
    directory = tmp_path / "state"
    directory.mkdir()
    state_files.record_node_name(str(directory), "of-nova")
    return directory


def name_with(tmp_path: Path, text: str) -> str:
    """Return the name of the node by a configuration file."""
    file = write(tmp_path / "nova.conf", f"[os_acc]\n{text}\n")
    return Settings.load(load(tmp_path, file)).node_name


def test_the_node_has_the_name_that_the_service_passed(tmp_path, state):
    assert name_with(tmp_path, f"state_path = {state}") == "of-nova"


def test_the_option_precedes_the_name_that_the_service_passed(tmp_path, state):
    text = f"state_path = {state}\nnode_name = of-the-operator"
    assert name_with(tmp_path, text) == "of-the-operator"


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("a\nb"),
        lambda path: path.write_text("a" * 10_000),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.rename(f"{path}-2"), path.symlink_to(f"{path}-2")),
    ],
    ids=["lost", "empty", "no text", "lines", "long", "directory", "pipe", "link"],
)
def test_without_a_valid_record_the_node_has_the_name_of_the_host(
    tmp_path, state, damage
):
    damage(state / "node_name")
    assert name_with(tmp_path, f"state_path = {state}") == socket.gethostname()


def test_an_invalid_state_path_is_reported_by_the_command(tmp_path):
    with pytest.raises(exception.InvalidConfiguration, match="state_path"):
        name_with(tmp_path, "state_path = no/absolute/path")


# -- the user ------------------------------------------------------------------

NOVA = (64055, 64056)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulate a process of root; return its changes of identity, in order."""
    done: list[str] = []
    uid = [0]

    def become(*ids: int) -> None:
        done.append(f"user {ids}")
        uid[0] = ids[1]

    monkeypatch.setattr(os, "geteuid", lambda: uid[0])
    monkeypatch.setattr(os, "setgroups", lambda ids: done.append(f"groups {ids}"))
    monkeypatch.setattr(os, "setresgid", lambda *ids: done.append(f"group {ids}"))
    monkeypatch.setattr(os, "setresuid", become)
    return done


@pytest.fixture
def of_nova(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a user without a name own the state directory."""
    monkeypatch.setattr(environment, "owner_of", lambda _path: NOVA)


@pytest.mark.usefixtures("of_nova")
def test_root_becomes_the_owner_for_good(tmp_path, steps):
    environment.become_owner(str(tmp_path))
    environment.become_owner(str(tmp_path))
    assert steps == [
        "groups [64056]",
        "group (64056, 64056, 64056)",
        "user (64055, 64055, 64055)",
    ]


def test_root_gets_the_other_groups_of_the_owner_too(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(environment, "owner_of", lambda _path: (1, 1))
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 107])
    environment.become_owner(str(tmp_path))
    assert steps[0] == "groups [1, 107]"


def test_a_directory_of_roots_keeps_root(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(environment, "owner_of", lambda _path: (0, 0))
    environment.become_owner(str(tmp_path))
    assert steps == []


def test_an_ordinary_user_stays_what_it_is(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    environment.become_owner(str(tmp_path))
    assert steps == []


def test_a_missing_directory_is_not_made_by_root(tmp_path, steps):
    missing = tmp_path / "missing"
    with pytest.raises(exception.StateUnavailable) as raised:
        environment.become_owner(str(missing))
    assert f"install -d -o nova -g nova -m 0750 {missing}" in raised.value.hint
    assert not missing.exists()
    assert steps == []


@pytest.mark.usefixtures("of_nova")
def test_the_helpers_start_while_root_and_the_store_opens_after(
    console, steps, monkeypatch
):
    start = client.Helper.start

    def note(self: client.Helper, *arguments: object) -> None:
        steps.append(f"helper, with {os.listdir(console.bench.state_path)}")
        start(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client.Helper, "start", note)
    assert console.run("unplug", uuid_of(1)).status == 0
    assert steps[0] == "helper, with []"
    assert steps[1:4] == [
        "groups [64056]",
        "group (64056, 64056, 64056)",
        "user (64055, 64055, 64055)",
    ]


@pytest.mark.usefixtures("of_nova")
@pytest.mark.parametrize("arguments", [("device", "list"), ("attached",), ("check",)])
def test_who_only_looks_gives_up_root_too(console, steps, arguments):
    console.run(*arguments)
    assert steps[-1] == "user (64055, 64055, 64055)"


def test_root_follows_no_link_of_another_user(tmp_path, steps, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    state = mock.Mock(st_uid=1000, st_mode=os.lstat(link).st_mode)
    monkeypatch.setattr(os, "lstat", lambda path: state)
    with pytest.raises(exception.StateUnavailable, match="is a link of user"):
        environment.become_owner(str(link / "state"))
    assert steps == []
