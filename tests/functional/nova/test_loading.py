# SPDX-License-Identifier: Apache-2.0

"""Nova finds the driver by both ways, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: The first lines of nova-compute, up to the driver, without a broker.
_LOAD = """
from nova.tests.fixtures import libvirt
from nova.virt import driver
sys.modules["libvirt"] = libvirt
loaded = driver.load_compute_driver(None)
print(type(loaded).__module__, type(loaded).__name__, sys.argv[0])
"""
_BY_OS_VIF = """
import sys
import nova.cmd.compute
from nova import config
import os_vif
config.parse_args(["nova-compute", "--config-file", sys.argv[1]])
os_vif.initialize()
"""
_BY_SCRIPT = """
import sys
import nova.cmd.compute
from nova import config
from os_acc.nova import loading
file = sys.argv[1]
def main():
    config.parse_args(["nova-compute", "--config-file", file])
nova.cmd.compute.main = main
loading.main()
"""


@pytest.fixture
def nova_conf(tmp_path: Path) -> Path:
    """Return a configuration file that names the driver."""
    file = tmp_path / "nova.conf"
    file.write_text("[DEFAULT]\ncompute_driver = os_acc.LibvirtDriver\n")
    return file


def run(code: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("way", [_BY_OS_VIF, _BY_SCRIPT], ids=["os_vif", "script"])
def test_nova_loads_the_driver(nova_conf, way):
    ran = run(way + _LOAD, nova_conf)
    assert ran.returncode == 0, ran.stderr
    module, name, program = ran.stdout.split()
    assert (module, name) == ("os_acc.nova.driver", "LibvirtDriver")
    assert way is _BY_OS_VIF or program == "nova-compute"


def test_with_another_driver_os_vif_changes_nothing(nova_conf):
    nova_conf.write_text("[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n")
    ran = run(_BY_OS_VIF + "import nova.virt.os_acc", nova_conf)
    assert "No module named 'nova.virt.os_acc'" in ran.stderr


def test_os_vif_lists_the_entry_point_without_a_vif_type(nova_conf):
    code = _BY_OS_VIF + (
        "found = {each.plugin_name: list(each.vif_info)"
        " for each in os_vif.host_info().plugin_info}\n"
        "print(found['os_acc'])"
    )
    ran = run(code, nova_conf)
    assert ran.stdout.strip() == "[]", ran.stderr
