# SPDX-License-Identifier: Apache-2.0

"""``os-acc check`` finds misspelt options, also in root's own configuration."""

import json
import os
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import conf
from os_acc.cmd import environment
from os_acc.cmd.checks import sections
from os_acc.cmd.checks.configuration import unknown_names
from tests.unit.cmd.console import Console

ROOTS = '[os_acc]\ndevice_spec = {"address": "0000:17:00.0"}'


def write_roots(console: Console, text: str) -> Path:
    path = Path(console.bench.root, "etc/os-acc/privileged.conf")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def unknown(place: Path, text: str) -> list[tuple[str, str | None]]:
    """Return each unknown name in a configuration file, and its suggestion."""
    path = place / "nova.conf"
    path.write_text(f"[os_acc]\n{text}\n")
    config = cfg.ConfigOpts()
    environment.load_configuration(config, [str(path)], [], str(place))
    conf.register(config)
    found = []
    for each in unknown_names(sections([str(path)]), config):
        name = each.what.removeprefix(f"{path} has ")
        near = each.hint.removeprefix("did you mean ").removesuffix("?")
        is_near = near != each.hint
        found.append(
            (name.removesuffix(", which is ignored"), near if is_near else None)
        )
    return found


@pytest.mark.parametrize(
    ("more", "name", "near"),
    [
        ("device_specs = []", "[os_acc] device_specs", "device_spec"),
        (
            "[os_acc_bitstream]\nsource = glance",
            "[os_acc_bitstream]",
            "[os_acc_bitstreams]",
        ),
        ("[os-acc]\nnode_name = a", "[os-acc]", "[os_acc]"),
        (
            "[os_acc_base]\nhelper_comand = a",
            "[os_acc_base] helper_comand",
            "helper_command",
        ),
        (
            "[os_acc_placement]\nauth-url = http://a",
            "[os_acc_placement] auth-url",
            "auth_url",
        ),
        ("zzz = 1", "[os_acc] zzz", None),
        # Options that Nova shares.
        ("[neutron]\nphysnetz = a", "[neutron] physnetz", "physnets"),
        ("[neutron_tunel]\nnuma_nodes = 0", "[neutron_tunel]", "[neutron_tunnel]"),
        ("[neutron-tunnel]\nnuma_nodes = 0", "[neutron-tunnel]", "[neutron_tunnel]"),
        (
            "[neutron_tunnel]\nnuma_node = 0",
            "[neutron_tunnel] numa_node",
            "numa_nodes",
        ),
        ("[neutron_tunnel]\nzzz = 0", "[neutron_tunnel] zzz", None),
        ("[pci]\ndevice_specs = {}", "[pci] device_specs", "device_spec"),
        (
            "[devices]\nenabled_mdev_type = a",
            "[devices] enabled_mdev_type",
            "enabled_mdev_types",
        ),
    ],
)
def test_an_unknown_name_gets_a_suggestion(tmp_path, more, name, near):
    assert unknown(tmp_path, more) == [(name, near)]


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ("plug_timeot = 3", "did you mean plug_timeout?"),
        ("zzz = 3", "remove it, or see the reference of the options"),
    ],
)
def test_an_unknown_name_in_a_directory_of_files_is_a_warning(
    console, tmp_path, more, hint
):
    directory = tmp_path / "nova.conf.d"
    directory.mkdir()
    (directory / "10-os-acc.conf").write_text(f"[os_acc]\n{more}\n")
    ran = console.run("--config-dir", str(directory), "check", "-f", "json")
    (found,) = (row for row in json.loads(ran.out) if row["Check"] == "options")
    name = more.split()[0]
    path = f"{directory}/10-os-acc.conf"
    assert found["Result"] == "warning"
    assert found["What"] == f"{path} has [os_acc] {name}, which is ignored"
    assert found["Hint"] == hint


@pytest.mark.parametrize(
    "more",
    [
        "[os_acc_glance]\nauth_type = v3applicationcredential\n"
        "application_credential_id = 1\napplication_credential_secret = 2",
        "[os_acc_glance]\nauth_section = os_acc_auth\n[os_acc_auth]\ntoken = 1",
        "[os_acc_glance]\nauth_type = password\nuser-name = a\ntenant_name = b",
        "[os_acc_glance]\nauth_type = none_such",
        "[os_acc_xrt]\ntools = /opt/xilinx",
        "[os_acc_driver]\nreconcile_age = 60.0",
        "[DEFAULT]\ndebugg = true\n[osprofiler]\nenabledd = true",
        # Sections of Nova.
        "[neutron]\nphysnets =\nurl = a\novs_bridge = b\nhttp_retries = 3",
        "[neutron]\npassword = a\nusername = b\ndefault_floating_pool = c\ncafile = d",
        "[pci]\nreport_in_placement = true\npassthrough_whitelist = {}",
        "[devices]\nenabled_vgpu_types =",
        "[neutron_tunnel]\nnuma_nodes = 0",
        "[neutron_physnet_a]\nnuma_nodes = 0",
    ],
)
def test_names_of_known_options_and_of_others_sections_are_accepted(tmp_path, more):
    assert unknown(tmp_path, more) == []


@pytest.mark.parametrize(
    ("text", "mode", "result", "expected"),
    [
        (None, 0o644, "warning", "does not exist"),
        (f"{ROOTS}\n", 0o644, "ok", "limits what"),
        ("[os_acc]\n", 0o644, "warning", "device_spec is empty"),
        (f"{ROOTS}\n", 0o666, "warning", "ignores"),
        ("[os_acc]\ndevice_spec = {\n", 0o644, "failed", "cannot use"),
    ],
)
def test_the_limit_of_the_helper_is_a_finding(console, text, mode, result, expected):
    console.configure('{"address": "0000:17:00.0"}')
    if text is not None:
        write_roots(console, text).chmod(mode)
    (found,) = console.checks()["privileged.conf"]
    assert found["Result"] == result
    assert expected in found["What"].replace("\n", " ")


def test_a_misspelt_option_in_root_s_configuration_gets_a_suggestion(console):
    path = write_roots(console, ROOTS.replace("device_spec", "device_specs"))
    empty, misspelt = console.checks()["privileged.conf"]
    assert (empty["Result"], misspelt["Result"]) == ("warning", "warning")
    assert "device_spec is empty" in empty["What"]
    assert str(path) in empty["Hint"]
    assert misspelt["What"] == f"{path} has [os_acc] device_specs, which is ignored"
    assert misspelt["Hint"] == "did you mean device_spec?"


def test_a_configuration_that_only_root_can_read_is_not_judged(console, monkeypatch):
    path = write_roots(console, ROOTS)
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda each, *more, **named: each != str(path) and access(each, *more, **named),
    )
    (found,) = console.checks()["privileged.conf"]
    assert found["Result"] == "ok"
    assert "cannot read it" in found["What"]
