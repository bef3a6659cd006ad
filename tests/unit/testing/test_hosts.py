# SPDX-License-Identifier: Apache-2.0

"""The simulated hosts match their names, as read by the library."""

import os

import pytest

from os_acc.host import pci as host_pci
from os_acc.host.usage import read_usage
from os_acc.objects.pci import PciAddress
from os_acc.testing import FakeKernel, FunctionSpec, HostSpec, hosts
from tests.unit.testing.conftest import Attributes


def scan(kernel: FakeKernel):
    found = host_pci.scan(kernel.root)
    assert not found.unreadable
    return found


def at(text: str) -> PciAddress:
    return PciAddress.parse(text)


def test_what_the_host_uses_is_seen(kernel):
    host = scan(kernel)
    usage = read_usage(kernel.root, host.functions, host.netdevs)
    assert "mounted" in usage.get(at("0000:04:00.0"))
    assert "up" in usage.get(at("0000:af:00.0"))
    assert usage.get(at("0000:03:00.0"))
    for free in ("0000:d9:00.0", "0000:3b:00.0", "0000:17:00.0", "0000:5e:00.0"):
        assert usage.get(at(free)) is None


def test_vfs_are_seen(kernel):
    Attributes(kernel).set("0000:3b:00.0", "sriov_numvfs", "4")
    host = scan(kernel)
    pf = host.functions[at("0000:3b:00.0")]
    assert pf.total_vfs == 8
    assert pf.vfs == tuple(at(f"0000:3b:02.{n}") for n in range(4))
    assert host.functions[pf.vfs[1]].physfn == pf.address


def test_a_vmd_domain(tmp_path):
    kernel = FakeKernel.build(tmp_path, hosts.vmd_host())
    disk = at("10000:01:00.0")
    assert scan(kernel).functions[disk].driver == "nvme"
    path = os.path.realpath(kernel.path("sys/bus/pci/devices", str(disk)))
    assert path.endswith(
        "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0"
    )


@pytest.mark.parametrize("field", ["parent", "group_of"])
def test_a_function_stands_on_what_was_there_before_it(field):
    with pytest.raises(ValueError, match="must come before"):
        FunctionSpec("0000:01:00.0", 1, 2, 0x120000, **{field: "0000:02:00.0"})


def test_functions_may_be_named_in_any_order(tmp_path):
    display, audio = hosts.gpu("0000:17")
    kernel = FakeKernel.build(tmp_path, HostSpec((audio, display)))
    assert kernel.group(audio.address) == kernel.group(display.address)
