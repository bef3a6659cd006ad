# SPDX-License-Identifier: Apache-2.0

"""A test host and its copies have only known options, and separate files."""

import os
from pathlib import Path

import pytest
from oslo_config import cfg, types

from os_acc.conf import register
from os_acc.testing import TestHost, hosts
from os_acc.testing.test_host import config_of

CARD = "0000:3b:00.0"


def host(directory: Path, **parameters: object) -> TestHost:
    return TestHost(directory, hosts.two_socket_host(), **parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["separate_helpers", "relaese_timeout"])
def test_a_name_that_is_no_option_is_rejected(tmp_path, name):
    with pytest.raises(cfg.NoSuchOptError, match=name):
        host(tmp_path, **{name: True})


def test_an_option_that_its_group_lacks_is_rejected(tmp_path):
    with pytest.raises(cfg.NoSuchOptError, match="catalog "):
        host(tmp_path, groups={"os_acc_profiles": {"catalog": "/profiles"}})


def test_an_unknown_group_is_rejected(tmp_path):
    with pytest.raises(cfg.NoSuchGroupError, match="os_acc_profile"):
        host(tmp_path, groups={"os_acc_profile": {"catalogue": "/profiles"}})


def test_a_configuration_file_has_no_unknown_option(tmp_path):
    with pytest.raises(cfg.NoSuchOptError, match="plug_timeuot"):
        host(tmp_path).write_config(plug_timeuot=1.0)


#: Options of a vendor, each with a value.
OPTIONS: dict[cfg.Opt, object] = {
    cfg.ListOpt("models"): ["m1", "m2"],
    cfg.ListOpt("pairs"): ("one", "$2"),
    cfg.ListOpt("none", default=["m1"]): [],
    cfg.ListOpt("numbers", item_type=types.Integer(), bounds=True): [1, 2],
    cfg.DictOpt("limits"): {"m1": "1", "m2": "2"},
    cfg.Opt("bounded", type=types.Dict(bounds=True)): {"m1": "1", "m2": "2"},
    cfg.MultiStrOpt("rules"): ['{"model": "m1", "cost": "$5"}', "m2"],
    cfg.MultiOpt("ports", types.Integer()): [1, 2],
    cfg.StrOpt("title"): "an accelerator",
    cfg.StrOpt("unset"): None,
    cfg.BoolOpt("is_fast"): True,
    cfg.FloatOpt("seconds"): 0.5,
}


def with_options_of_a_vendor(*files: str) -> cfg.ConfigOpts:
    config = config_of(*files)
    config.register_opts(list(OPTIONS), group="os_acc_acme")
    return config


def test_a_configuration_file_has_the_values_of_each_kind_of_option(tmp_path):
    values = {option.dest: value for option, value in OPTIONS.items()}
    names = [f'{{"address": "0000:{bus}:00.0"}}' for bus in ("3b", "5e")]
    original = host(
        tmp_path,
        read=with_options_of_a_vendor,
        groups={
            "os_acc_acme": values,
            "os_acc_bitstreams": {"allowed_projects": ["one", "two"]},
        },
        device_spec=names,
        enabled_plugins=["pci", "nic"],
    )

    written = with_options_of_a_vendor(original.write_config())

    of_vendor, expected = written.os_acc_acme, original.config().os_acc_acme
    assert {name: of_vendor[name] for name in values} == {
        name: expected[name] for name in values
    }
    register(written)
    assert written.os_acc.device_spec == names
    assert written.os_acc.enabled_plugins == ["pci", "nic"]


def test_a_copy_has_the_options_of_the_moment(tmp_path):
    original = host(tmp_path / "original", plug_timeout=10.0)
    original.options["plug_timeout"] = 20.0
    original.options["node_name"] = "node2"
    original.groups["os_acc_bitstreams"]["source"] = "glance"
    config = original.copy(tmp_path / "copy").config()
    assert config.os_acc.plug_timeout == 20.0
    assert config.os_acc.node_name == "node2"
    assert config.os_acc_bitstreams.source == "glance"


def test_a_change_of_a_copy_is_its_own(tmp_path):
    original = host(tmp_path / "original")
    copy = original.copy(tmp_path / "copy")
    copy.options["plug_timeout"] = 20.0
    copy.groups["os_acc_bitstreams"]["source"] = "glance"
    config = original.config()
    assert config.os_acc.plug_timeout != 20.0
    assert config.os_acc_bitstreams.source == "directory"


def test_a_copy_uses_its_own_files(tmp_path):
    groups = {
        "os_acc_profiles": {"catalogue": str(tmp_path / "original" / "profiles")},
    }
    original = host(tmp_path / "original", groups=groups)
    copy = original.copy(tmp_path / "copy")
    config = copy.config()
    assert config.os_acc.state_path == copy.state_path
    assert config.os_acc_bitstreams.directory == str(copy.images.path)
    assert config.os_acc_profiles.catalogue == str(tmp_path / "copy" / "profiles")


def test_a_copy_uses_the_files_that_are_not_copied(tmp_path):
    certificates = str(tmp_path / "original" / "certificates")
    groups = {"os_acc_bitstreams": {"certificates": certificates}}
    copy = host(tmp_path / "original", groups=groups).copy(tmp_path / "copy")
    assert copy.config().os_acc_bitstreams.certificates == certificates


def test_a_copy_of_the_current_directory_keeps_what_is_no_path(tmp_path, monkeypatch):
    os.mkdir(tmp_path / "original")
    monkeypatch.chdir(tmp_path / "original")
    copy = host(Path()).copy(tmp_path / "copy")
    assert copy.config().os_acc_bitstreams.source == "directory"


def test_a_lease_is_of_the_host_that_has_plugged(tmp_path):
    original = host(tmp_path / "original")
    copy = original.copy(tmp_path / "copy")
    with copy:
        copy.plug(1, CARD)
    with original:
        assert original.plugged(1) == []
