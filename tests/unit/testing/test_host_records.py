# SPDX-License-Identifier: Apache-2.0

"""A recorded host, simulated from its record, shows the same devices."""

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.host import numa, pci
from os_acc.host.usage import read_usage
from os_acc.inventory.discovery import Inventory
from os_acc.objects.pci import PciAddress
from os_acc.testing import (
    AttributeSpec,
    FakeKernel,
    FunctionSpec,
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    SimulatedFunction,
    SriovSpec,
    TestHost,
    host_recorder,
    hosts,
    load_host,
)
from os_acc.testing.mdevs import mtty
from os_acc.testing.records import as_json
from tests.unit.cmd.console import run

#: The PCI tree of a virtual machine on Linux 6.1 with virtio devices, as recorded.
VIRTUAL_MACHINE = Path(__file__).with_name("recorded_virtual_machine.json")
GPU, CARD, VF = "0000:17:00.0", "0000:5e:00.0", "0000:5e:02.0"
_TYPES = (
    MdevTypeSpec("a-1", description="max_instance=6"),
    MdevTypeSpec("a-2", cost=2),
)


def vgpus() -> HostSpec:
    """Return a host with parents of mediated devices: a GPU and a virtual one."""
    display, audio = hosts.gpu("0000:17", 0)
    parent = MdevParentSpec(GPU, 6, _TYPES)
    return HostSpec(
        (dataclasses.replace(display, mdevs=parent), audio), mdev_parents=(mtty(),)
    )


def vfs_at_boot() -> HostSpec:
    return HostSpec((hosts.nic("0000:3b", 1, name="ens1f0", vfs=8, boot_vfs=3),))


def keep(function: SimulatedFunction, text: str) -> None:
    function.write("acme/mode", text.strip())


def card(**changes: Any) -> FunctionSpec:
    """Return a card whose driver and VFs have attributes."""
    spec = FunctionSpec(
        CARD,
        0xACE0,
        0x0E10,
        0x120000,
        "acme",
        attributes=(("serial_number", "00-11\n"), ("current_link_width", "16\n")),
        driver_attributes=(
            AttributeSpec("acme/mode", "host", keep),
            AttributeSpec("acme/board_serial", "A17"),
            AttributeSpec("temperature", "41\nC"),
        ),
        sriov=SriovSpec(
            2,
            0x0E11,
            "acmevf",
            boot_vfs=1,
            vf_attributes=(AttributeSpec("acme/mode", "guest", keep),),
        ),
    )
    return dataclasses.replace(spec, **changes)


def recorded(
    root: str | os.PathLike[str],
    file: Path,
    with_drivers: Collection[str] = (),
    **options: Any,
) -> HostSpec:
    """Record a host, write the record, and load that."""
    named = [PciAddress.parse(each) for each in with_drivers]
    host = host_recorder.record_host(os.fspath(root), named, **options)
    file.write_text(as_json(host), encoding="utf-8")
    return load_host(file)


def inventory(directory: Path, spec: HostSpec) -> Inventory:
    mdev_types = '{"mdev_parent": "mtty", "mdev_types": "mtty-2"}'
    gpu_types = f'{{"address": "{GPU}", "mdev_types": "a-1, a-2"}}'
    named = [gpu_types, mdev_types] if spec.mdev_parents else []
    everything = '{"address": "*:*:*.*"}'
    with TestHost(directory, spec, device_spec=[*named, everything]) as host:
        return host.manager.discover()


@pytest.mark.parametrize(
    "make",
    [
        hosts.two_socket_host,
        hosts.shared_group_host,
        hosts.vmd_host,
        hosts.denylist_host,
        hosts.mapped_by_firmware,
        hosts.without_iommu,
        hosts.without_vfio,
        vfs_at_boot,
        vgpus,
    ],
)
def test_discovery_finds_the_same_devices(make, tmp_path):
    source = inventory(tmp_path / "source", make())
    # A drive is known by its serial number.
    file = tmp_path / "host.json"
    spec = recorded(tmp_path / "source/host", file, identifying=True)
    found = inventory(tmp_path / "copy", spec)

    assert found.providers == source.providers
    assert found.host == source.host
    # The words for a use differ: the record has no mount points.
    reasons = [
        [(each.address, each.reason) for each in one.refused] for one in (found, source)
    ]
    assert reasons[0] == reasons[1]
    assert found.providers or found.refused


def test_nodes_are_recorded(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", hosts.two_socket_host())
    spec = recorded(kernel.root, tmp_path / "host.json")
    copy = FakeKernel.build(tmp_path / "copy", spec)
    assert numa.read_topology(copy.root) == numa.read_topology(kernel.root)


def test_an_interface_in_a_bond_is_used_on_the_simulated_host(tmp_path):
    nic = hosts.nic("0000:3b", name="ens1f0")
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((nic,)))
    interface = Path(kernel.path("sys/class/net/ens1f0"))
    (interface / "master").symlink_to("/sys/devices/virtual/net/bond0")
    spec = recorded(kernel.root, tmp_path / "host.json")
    copy = FakeKernel.build(tmp_path / "copy", spec)
    host = pci.scan(copy.root)
    usage = read_usage(copy.root, host.functions, host.netdevs)
    assert usage.get(PciAddress.parse(nic.address)) == "network interface ens1f0 is up"


def test_a_function_of_a_guest_is_recorded_without_a_driver(tmp_path):
    with TestHost(tmp_path / "source", HostSpec((card(sriov=None),))) as host:
        host.plug(1, CARD)
        assert host.drivers(CARD) == ["vfio-pci"]
        (function,) = recorded(host.root, tmp_path / "host.json").functions
    assert function.driver == ""


def test_a_vf_without_a_driver_keeps_its_attributes(tmp_path):
    mode = AttributeSpec("acme/mode", "host", stays=True)
    sriov = SriovSpec(1, 0x0E11, boot_vfs=1, vf_attributes=(mode,))
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(sriov=sriov),)))
    (function,) = recorded(kernel.root, tmp_path / "host.json", [CARD]).functions
    assert function.sriov is not None
    assert function.sriov.vf_attributes == (mode,)


def test_each_vf_keeps_its_own_attributes(tmp_path):
    alike = AttributeSpec("acme/mode", "guest", keep)
    own = tuple((AttributeSpec("acme/unit", text, keep),) for text in "AB")
    sriov = SriovSpec(
        2, 0x0E11, "acmevf", boot_vfs=2, vf_attributes=(alike,), own_vf_attributes=own
    )
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(sriov=sriov),)))
    recorded(kernel.root, tmp_path / "host.json", [CARD])
    stores = {alike.name: keep, "acme/unit": keep}
    (function,) = load_host(tmp_path / "host.json", stores).functions
    assert function.sriov is not None
    for index in range(2):
        assert function.sriov.attributes_of(index) == (alike, *own[index])


def test_a_recorded_parent_has_the_capacity_that_is_free(tmp_path):
    with TestHost(
        tmp_path / "source",
        vgpus(),
        device_spec=[f'{{"address": "{GPU}", "mdev_types": "a-1, a-2"}}'],
    ) as host:
        host.plug(1, f"{GPU}/a-2/0")
        spec = recorded(host.root, tmp_path / "host.json")
    parent = spec.functions[0].mdevs
    assert parent is not None
    assert [parent.capacity // each.cost for each in parent.types] == [4, 2]


def test_attributes_of_a_driver_are_read_only_if_it_is_named(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(),)))
    (function,) = recorded(kernel.root, tmp_path / "host.json").functions
    assert function.driver_attributes == ()

    named = recorded(kernel.root, tmp_path / "host.json", [CARD])
    (function,) = named.functions
    texts = {each.name: each.text for each in function.driver_attributes}
    assert texts == {"acme/mode": "host", "temperature": "41\nC"}
    assert function.sriov is not None
    assert function.sriov.vf_attributes == (AttributeSpec("acme/mode", "guest"),)
    assert ("current_link_width", "16\n") in function.attributes
    copy = FakeKernel.build(tmp_path / "copy", named)
    place = f"sys/bus/pci/devices/{VF}/acme/mode"
    assert copy.read(copy.path(place)) == "guest\n"


def test_serial_numbers_are_recorded_on_request_alone(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(),)))
    file = tmp_path / "host.json"
    recorded(kernel.root, file, [CARD])
    assert not re.search("00-11|A17|serial", file.read_text())
    (function,) = recorded(kernel.root, file, [CARD], identifying=True).functions
    assert ("serial_number", "00-11\n") in function.attributes
    assert AttributeSpec("acme/board_serial", "A17") in function.driver_attributes


def test_a_recorded_attribute_gets_its_effect_when_it_is_loaded(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(),)))
    recorded(kernel.root, tmp_path / "host.json", [CARD])
    spec = load_host(tmp_path / "host.json", {"acme/mode": keep})
    copy = FakeKernel.build(tmp_path / "copy", spec)
    for address in (CARD, VF):
        path = copy.path("sys/bus/pci/devices", address, "acme/mode")
        copy.write(path, "other")
        assert copy.read(path) == "other\n"


def test_no_attribute_is_read_whose_read_has_an_effect(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(),)))
    names = "config rom resource0 resource vpd uevent driver_override"
    for name in names.split():
        path = Path(kernel.path("sys/bus/pci/devices", CARD, name))
        path.unlink(missing_ok=True)
        # A reader of this file would wait for ever.
        os.mkfifo(path)
    ended = threading.Event()

    def run() -> None:
        recorded(kernel.root, tmp_path / "host.json", [CARD])
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(60)


def test_an_attribute_that_only_root_may_write_is_not_read(tmp_path):
    kernel = FakeKernel.build(tmp_path / "source", HostSpec((card(),)))
    path = Path(kernel.path("sys/bus/pci/devices", CARD, "acme/start"))
    path.write_text("never read\n")
    path.chmod(0o200)
    recorded(kernel.root, tmp_path / "host.json", [CARD])
    assert "never read" not in (tmp_path / "host.json").read_text()


def test_the_tree_of_a_virtual_machine_is_simulated(tmp_path):
    spec = load_host(VIRTUAL_MACHINE)
    copy = FakeKernel.build(tmp_path, spec)
    found = pci.scan(copy.root)
    assert not found.unreadable
    drivers = [each.driver for each in found.functions.values()]
    assert drivers == [None, *["virtio-pci"] * 5]
    assert found.netdevs == {"eth0": PciAddress.parse("0000:00:03.0")}
    again = host_recorder.record_host(copy.root)
    assert again == spec


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "in format 1"),
        ('{"format": 2, "host": {}}', "in format 1"),
        ('{"format": 1}', "'host'"),
        ('{"format": 1, "host": {"functions": [{"address": "x"}]}}', "vendor"),
        ('{"format": 1, "host": {"functions": 7}}', "7 is no list"),
        ('{"format": 1, "host": {"vfio": "yes"}}', "'yes' is no bool"),
        ('{"format": 1, "host": {"nodes": ["0-7"]}}', "no mapping"),
    ],
)
def test_another_file_is_rejected(text, why, tmp_path):
    file = tmp_path / "host.json"
    file.write_text(text)
    with pytest.raises(exception.InvalidInput, match="no record of a host") as caught:
        load_host(file)
    assert why in str(caught.value)


def test_a_missing_file_is_rejected(tmp_path):
    with pytest.raises(exception.InvalidInput, match="No such file"):
        load_host(tmp_path / "host.json")


def test_a_record_with_code_is_rejected_and_imports_nothing(tmp_path):
    host = json.loads(as_json(HostSpec((card(sriov=None, driver_attributes=()),))))
    attribute = {"name": "mode", "store": "antigravity:open"}
    host["host"]["functions"][0]["driver_attributes"] = [attribute]
    file = tmp_path / "host.json"
    file.write_text(json.dumps(host))
    with pytest.raises(exception.InvalidInput, match="a record has no code"):
        load_host(file)
    assert "antigravity" not in sys.modules


def test_a_key_of_a_later_version_is_ignored(tmp_path):
    host = json.loads(VIRTUAL_MACHINE.read_text())
    host["host"]["functions"][0]["later"] = 1
    file = tmp_path / "host.json"
    file.write_text(json.dumps(host))
    assert load_host(file) == load_host(VIRTUAL_MACHINE)


def test_the_command_records_a_simulated_host(tmp_path):
    kernel = FakeKernel.build(tmp_path / "host", HostSpec((card(),)))

    # No configuration: the host of a vendor has none.
    ran = run(kernel.root, "host", "record", "--device", CARD)
    assert (ran.status, ran.err) == (0, "")
    file = tmp_path / "host.json"
    file.write_text(ran.out)
    assert load_host(file) == recorded(kernel.root, tmp_path / "other.json", [CARD])
    ran = run(kernel.root, "host", "record", "--device", "0000:ff:00.0")
    assert (ran.status, ran.out) == (1, "")
    assert "0000:ff:00.0 is not on this host\nhint: " in ran.err
