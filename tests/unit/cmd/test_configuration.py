# SPDX-License-Identifier: Apache-2.0

"""The command reads the named files, its own ones, or those of nova-compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc.cmd import configuration
from os_acc.conf import Settings
from tests.unit.cmd.console import Console


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes oslo.config find these files, and no directory."""

    def find(*paths: Path) -> None:
        monkeypatch.setattr(cfg, "find_config_dirs", lambda *_: [])
        monkeypatch.setattr(cfg, "find_config_files", lambda *_: list(map(str, paths)))

    return find


def load(root: Path, *files: Path) -> cfg.ConfigOpts:
    config = cfg.ConfigOpts()
    configuration.load(config, list(map(str, files)), [], str(root))
    return config


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_its_own_are_read_once(
    tmp_path: Path, found: Callable[..., None]
) -> None:
    own = write(tmp_path / "os-acc.conf", '[os_acc]\ndevice_spec = {"address": "*"}\n')
    write(tmp_path / "etc/nova/nova.conf", "[os_acc]\nnode_name = of-nova\n")
    found(own, own)
    config = load(tmp_path)
    assert configuration.read_files(config) == (str(own),)
    assert len(Settings.load(config).device_spec) == 1


def test_without_its_own_those_of_nova_compute_are_read(
    tmp_path: Path, found: Callable[..., None]
) -> None:
    nova = write(tmp_path / "etc/nova/nova.conf", "[os_acc]\nnode_name = one\n")
    compute = write(tmp_path / "etc/nova/nova-compute.conf", "[libvirt]\n")
    directory = tmp_path / "etc/nova/nova.conf.d"
    write(directory / "a.conf", "[os_acc]\nnode_name = two\n")
    found()
    config = load(tmp_path)
    assert configuration.read_files(config) == (
        *(str(nova), str(compute)),
        str(directory),
    )
    assert Settings.load(config).node_name == "two"


def test_files_that_are_named_are_all_that_is_read(
    tmp_path: Path, found: Callable[..., None]
) -> None:
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
def test_what_nova_claims_is_seen_without_nova(console: Console, options: str) -> None:
    console.configure(more=options)
    row = console.device("0000:17:00.0")
    assert row["State"] == "refused"
    assert row["Reason"] == "claimed by Nova's own options"


@pytest.mark.parametrize("name", ["enabled_mdev_types", "enabled_vgpu_types"])
def test_a_type_that_nova_may_put_anywhere_is_seen_without_nova(
    console: Console, name: str
) -> None:
    card = Path(console.bench.root, "sys/bus/pci/devices/0000:17:00.0")
    (card / "mdev_supported_types/nvidia-558").mkdir(parents=True)
    console.configure(more=f"[devices]\n{name} = nvidia-558")
    reason = console.device("0000:17:00.0")["Reason"]
    assert reason == "claimed by Nova's own options: it offers nvidia-558"
    assert console.results("claims") == {"failed"}
