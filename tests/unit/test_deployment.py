# SPDX-License-Identifier: Apache-2.0

"""The files for Kolla-Ansible and OpenStack-Ansible set options and paths of os_acc."""

import configparser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from oslo_config import iniparser

from os_acc import conf
from os_acc.bitstreams.options import STATE_PATH
from os_acc.nova import loading
from os_acc.objects import device_spec
from os_acc.privsep import kernel, privileged_conf

ETC = Path(__file__).parents[2] / "etc"
#: Values by group and option.
Configuration = dict[str, dict[str, list[str]]]


class Parser(iniparser.BaseParser):
    """Collects the values of a file as oslo.config does."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Configuration = {}
        self._section: dict[str, list[str]] = {}

    def new_section(self, section: str) -> None:
        self._section = self.found.setdefault(section, {})

    def assignment(self, key: str, value: Sequence[str]) -> None:
        self._section.setdefault(key, []).append("\n".join(value))


def load(path: str) -> Any:
    return yaml.safe_load((ETC / path).read_text())


def of_kolla() -> Configuration:
    parser = Parser()
    text = (ETC / "kolla/config/nova/nova-compute.conf").read_text()
    parser.parse(text.splitlines())
    return parser.found


def of_openstack_ansible() -> Configuration:
    """Return the overrides; a mapping has the values of an option as its keys."""
    variables = load("openstack-ansible/host_vars/compute1.yml")
    return {
        "DEFAULT": {"compute_driver": [variables["nova_compute_driver"]]},
        **{
            group: {
                name: list(value) if isinstance(value, dict) else [str(value)]
                for name, value in options.items()
            }
            for group, options in variables["nova_nova_conf_overrides"].items()
        },
    }


@pytest.mark.parametrize("read", [of_kolla, of_openstack_ansible])
def test_each_option_is_registered_and_each_device_entry_valid(read):
    found = read()
    assert found.pop("DEFAULT") == {"compute_driver": [loading.DRIVER]}
    known = {
        f"{getattr(group, 'name', group)}.{option.dest}"
        for group, options in conf.list_opts()
        for option in options
    }
    names = {f"{group}.{name}" for group, options in found.items() for name in options}
    assert "os_acc.device_spec" in names
    assert names <= known
    assert device_spec.parse(found["os_acc"]["device_spec"]).entries


def test_the_volumes_of_kolla_are_the_directories_of_the_helper():
    variables = load("kolla/globals.d/os-acc.yml")
    inside = [each.split(":")[1] for each in variables["os_acc_volumes"]]
    assert inside == [f"/{kernel.COPIES}", f"/{Path(*privileged_conf.PATH).parent}"]
    (state_path,) = of_kolla()["os_acc"]["state_path"]
    assert Path(state_path).is_relative_to("/var/lib/nova")


def test_the_state_directory_of_openstack_ansible_is_the_default():
    variables = load("openstack-ansible/host_vars/compute1.yml")
    service = variables["nova_compute_init_overrides"]["Service"]
    assert f"/var/lib/{service['StateDirectory']}" == STATE_PATH.default


def test_both_install_this_package():
    project = configparser.ConfigParser()
    project.read(ETC.parent / "setup.cfg")
    name, version = project["metadata"]["name"], project["metadata"]["version"]
    build = configparser.ConfigParser()
    build.read(ETC / "kolla/kolla-build.conf")
    (plugin,) = build.sections()
    assert plugin == f"nova-compute-plugin-{name}"
    archive = f"{name.replace('-', '_')}-{version}.tar.gz"
    assert Path(build[plugin]["location"]).name == archive
    packages = load("openstack-ansible/user_os_acc.yml")["nova_user_pip_packages"]
    assert [each.partition(" @ ")[0] for each in packages] == [name]
    assert packages[0].endswith(f"/{archive}")
