# SPDX-License-Identifier: Apache-2.0

"""``os-acc plug``, ``unplug``, ``attached`` and ``provider list``."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from os_acc.host.pci import Host
from os_acc.objects.device import Device
from os_acc.objects.lease import Owner
from os_acc.objects.mdev import parse_address
from os_acc.plugins.pci import PciPlugin
from os_acc.store.leases import Store
from os_acc.testing import HostSpec, hosts, request, uuid_of
from os_acc.testing.mdevs import mtty
from tests.unit.cmd.console import Console
from tests.unit.fpga import CARD, CRYPTO, GZIP, held, upload

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"


def plug(console: Console, number: int, address: str, *more: str) -> Any:
    provider = console.bench.provider(address).uuid
    return console.json(
        "plug", "--instance", uuid_of(number), "--provider", provider, *more
    )


def test_leases_of_the_command_say_so(console):
    plug(console, 1, GPU)
    assert console.bench.manager.store.leases()[0].owner is Owner.COMMAND


def test_plug_takes_the_extra_specs_of_a_flavor(console):
    (entry,) = plug(
        console, 1, GPU, "--property", "resources7:CUSTOM_ACCELERATOR_GPU=1"
    )
    assert entry["Request Group"] == "7"


def test_plug_takes_the_cells_of_the_guest(console):
    far = ("--property", "resources7:CUSTOM_ACCELERATOR_GPU=1", "--numa-cells", "1")
    provider = console.bench.provider(GPU).uuid
    failed = console.run("plug", "--instance", uuid_of(1), "--provider", provider, *far)
    assert failed.status
    assert "legacy" in failed.err
    prefer = ("--property", "accel7:numa_policy=preferred")
    (entry,) = plug(console, 1, GPU, *far, *prefer)
    assert (entry["NUMA Node"], entry["NUMA Affinity"]) == (0, "remote")


def test_a_faulty_device_is_to_be_repaired(console, monkeypatch):
    discover = PciPlugin.discover

    def dead(plugin: PciPlugin, host: Host) -> Iterator[Device]:
        for device in discover(plugin, host):
            faulty = (
                dataclasses.replace(each, fault="has no link")
                for each in device.handles
            )
            yield dataclasses.replace(device, handles=tuple(faulty))

    monkeypatch.setattr(PciPlugin, "discover", dead)
    provider = console.bench.provider(GPU).uuid
    ran = console.run("plug", "--instance", uuid_of(1), "--provider", provider)
    assert ran.status == 1
    assert f"out of order: {GPU} has no link" in ran.err
    assert "hint: repair or replace the device" in ran.err
    command = ran.err.partition("see 'os-acc ")[2].partition("'")[0]
    assert f"| {GPU} |" in console.run(*command.split()).out


def test_plug_takes_the_image_of_the_guest(fpgas, tmp_path):
    console = Console(fpgas, tmp_path)
    source = f"source = directory\ndirectory = {fpgas.images.path}"
    console.configure(more=f"[os_acc_bitstreams]\n{source}")
    unsaid = {"accel:function_name": None, "accel:function_id": None}
    for name, function in (("gzip", GZIP), ("crypto", CRYPTO)):
        upload(fpgas, name, function)
        wanted = {"function_name": name}
        image = upload(fpgas, f"vm-{name}", tags=None, **unsaid | wanted)
        if name == "gzip":
            entries = plug(console, 1, CARD, "--image", image)
        else:
            rebuild = ("plug", "--instance", uuid_of(1), "--image", image)
            assert console.json(*rebuild) == entries
        assert held(fpgas) == function


def test_plug_refuses_two_values_of_one_extra_spec(console):
    key = "resources:CUSTOM_ACCELERATOR_GPU"
    ran = console.run(
        "plug",
        f"--instance={uuid_of(1)}",
        f"--provider={console.bench.provider(GPU).uuid}",
        f"--property={key}=2",
        f"--property={key}=1",
    )
    assert ran.status == 1
    assert f"property '{key}' is given as '2' and as '1'" in ran.err
    assert console.bench.manager.store.leases() == ()


def test_plug_takes_an_allocation_request_from_a_file(console, tmp_path):
    found = [console.bench.provider(address) for address in (GPU, FPGA)]
    selected, specs = request(*found)
    allocations = tmp_path / "allocations.json"
    allocations.write_text(json.dumps(selected))
    properties = [f"--property={key}={value}" for key, value in specs.items()]
    entries = console.json(
        "plug", f"--instance={uuid_of(1)}", f"--allocations={allocations}", *properties
    )
    assert {entry["PCI ID"] for entry in entries} == {GPU, FPGA}


def test_the_instance_alone_makes_its_devices_ready_after_a_reboot(console):
    first = plug(console, 1, GPU)
    console.bench.kernel.reboot()
    assert console.bench.drivers(GPU) == ["nouveau"]
    assert console.json("plug", "--instance", uuid_of(1)) == first
    assert console.bench.drivers(GPU) == ["vfio-pci"]


def test_an_unplug_reports_what_is_quarantined_and_fails(console):
    plug(console, 1, GPU)
    plug(console, 2, FPGA)
    console.bench.kernel.ignore(GPU, "drivers_probe", times=None)
    first = console.run("unplug", uuid_of(1))
    again = console.run("unplug", uuid_of(1), "-f", "json")
    for ran in (again, first):
        assert ran.status == 1
        assert f"{GPU} is bound to no driver after the probe" in ran.err
        assert f"os-acc device release {GPU}" in ran.err
        assert ran.err.count("os-acc: ") == ran.err.count("hint: ") == 1
    assert f"os-acc: quarantined: {GPU} is bound" in again.err
    assert json.loads(again.out) == {"Consumer": uuid_of(1), "Released": 0}
    # A release does not report the devices of other instances.
    assert console.json("unplug", uuid_of(2))["Released"] == 1
    console.bench.kernel.lift()
    console.json("device", "release", GPU)
    assert console.json("unplug", uuid_of(1))["Released"] == 0


def test_attached_lists_everybodys_or_one_instances(console):
    plug(console, 1, GPU)
    plug(console, 2, FPGA)
    everybody = console.json("attached")
    assert {row["Consumer"] for row in everybody} == {uuid_of(1), uuid_of(2)}
    assert [row["PCI ID"] for row in console.json("attached", uuid_of(2))] == [FPGA]
    assert console.json("attached", uuid_of(3)) == []


def test_providers_say_how_much_of_them_is_used(console):
    plug(console, 1, GPU)
    uuid = console.bench.provider(GPU).uuid
    (row,) = (row for row in console.json("provider", "list") if row["UUID"] == uuid)
    assert (row["Total"], row["Used"]) == (1, 1)
    assert row["Resource Class"] == "CUSTOM_ACCELERATOR_GPU"
    assert row["Traits"] == ["CUSTOM_NUMA_CELL_0", "CUSTOM_PCI_10DE_2235"]


def test_the_networks_of_a_guest_are_those_of_its_cells(console):
    console.configure(more="[neutron_tunnel]\nnuma_nodes = 1")
    provider = console.bench.provider(GPU).uuid
    there = ("--provider", provider, "--numa-cells", "0", "--tunneled")
    ran = console.run("plug", "--instance", uuid_of(1), *there)
    assert ran.status == 1
    assert "do not lead to tunnelled networks" in ran.err
    there = (*there[:-1], "--physnet", "physnet0")
    assert console.run("plug", "--instance", uuid_of(1), *there).status == 0


@pytest.mark.parametrize(
    "broken", ["[neutron]\nphysnets = a", "[neutron_tunnel]\nnuma_nodes = 7"]
)
def test_invalid_network_options_keep_no_device_from_its_release(console, broken):
    plug(console, 1, GPU)
    # Another device is prepared for a guest, and has no lease.
    console.bench.bind(FPGA, "vfio-pci")
    console.configure(more=broken)
    assert console.json("unplug", uuid_of(1))["Released"] == 1
    assert console.run("device", "release", FPGA, "--driver", "").status == 0
    assert console.bench.drivers(GPU, FPGA) == ["nouveau", None]
    # A guest with networks needs the options.
    provider = console.bench.provider(GPU).uuid
    guest = ("--instance", uuid_of(1), "--provider", provider, "--numa-cells", "0")
    failed = console.run("plug", *guest, "--physnet", "a", "--tunneled")
    assert failed.status == 1
    assert broken.split("\n")[0] in failed.err
    assert console.run("plug", *guest).status == 0


def test_the_history_has_the_words_of_the_list(console):
    console.bench.plug(1, GPU)
    states = {row["State"] for row in console.json("device", "history")}
    assert "leased" in states
    assert "held" not in states
    assert [row["State"] for row in console.json("attached")] == ["leased"]


def test_functions_and_types_are_listed_together(make_bench, tmp_path):
    host = make_bench(HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),)))
    console = Console(host, tmp_path)
    parent = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'
    console.configure(parent, f'{{"address": "{GPU}"}}')
    listed = [row["Resource Class"] for row in console.json("provider", "list")]
    assert listed == ["CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_MDEV"]


def test_an_unplug_names_lost_leases_of_functions_and_slots(console, monkeypatch):
    lost = {parse_address(each): each for each in ("mtty/mtty-1/0", GPU)}
    read = Store.recorded_state
    monkeypatch.setattr(
        Store,
        "recorded_state",
        lambda store: dataclasses.replace(read(store), helper_claims=lost),
    )
    ran = console.run("unplug", uuid_of(1))
    assert ran.status == 1
    found = [each for each in ran.err.splitlines() if "its lease is lost" in each]
    assert [each.split()[1] for each in found] == [GPU, "mtty/mtty-1/0"]
