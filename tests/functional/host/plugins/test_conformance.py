# SPDX-License-Identifier: Apache-2.0

"""Plugins of os_acc keep the rules of the contract, and so can a vendor's.

The stress lane has all checks, for all hosts.
"""

import pytest

from os_acc.testing import HostSpec, TestHost, conformance
from tests.unit.plugins import mdev_vendor
from tests.unit.plugins.conforming_hosts import HOSTS


@pytest.mark.parametrize("check", conformance.QUICK, ids=conformance.name_of)
@pytest.mark.parametrize("case", ["pci with VFs", "nvidia"])
def test_the_plugin_conforms(case, check, tmp_path):
    plugin, make = HOSTS[case]
    with make(tmp_path) as host:
        check(host, plugin)


@pytest.mark.parametrize("check", conformance.QUICK, ids=conformance.name_of)
def test_a_vendors_plugin_with_steps_for_mediated_devices_conforms(
    check, tmp_path, install_plugins
):
    install_plugins(vendor=f"{mdev_vendor.HERE}:Stepping", mdev=mdev_vendor.GENERIC)
    spec, named = HostSpec(mdev_vendor.gpu()), [mdev_vendor.NAMED[1]]
    with TestHost(tmp_path, spec, device_spec=named) as host:
        check(host, "vendor")
