# SPDX-License-Identifier: Apache-2.0

"""Network cards: traits by tags, names of providers, and the network of an entry."""

from __future__ import annotations

import dataclasses

from os_acc.objects.api import AcceleratorEntry
from os_acc.objects.device import RejectReason
from os_acc.plugins import loader
from os_acc.testing import HostSpec, TestHost, hosts, instance, uuid_of
from os_acc.testing.test_host import config_of

PF, VF = "0000:3b:00.0", "0000:3b:02.0"
NIC = hosts.nic("0000:3b", 0, name="ens1f0", boot_vfs=4)


def named(**tags: object) -> list[str]:
    text = "".join(f', "{tag}": "{value}"' for tag, value in tags.items())
    return [f'{{"address": "{PF}"{text}}}']


def attached(host: TestHost) -> list[AcceleratorEntry]:
    return host.manager.attached(instance(1))[uuid_of(1)]


def test_vfs_are_the_capacity_of_their_pf_with_traits_by_tags(make_bench):
    spec = named(physical_network="physnet-1", function="ovs")
    bench = make_bench(HostSpec((NIC,)), device_spec=spec)
    (provider,) = bench.manager.providers()
    assert provider.device.plugin == "nic"
    assert provider.device.resource_class == "CUSTOM_ACCELERATOR_NIC"
    assert len(provider.device.handles) == 4
    assert {"CUSTOM_PHYSNET_1", "CUSTOM_OVS"} < provider.device.traits


def test_an_entry_has_the_network_of_its_card_as_long_as_it_is_held(make_bench):
    spec = named(physical_network="physnet-1")
    bench = make_bench(HostSpec((NIC,)), device_spec=spec)
    (entry,) = bench.plug(1, PF)
    assert entry["attach_handle_info"]["physical_network"] == "physnet-1"
    bench.restart(device_spec=named())
    (entry,) = attached(bench)
    assert entry["attach_handle_info"]["physical_network"] == "physnet-1"


def test_an_entry_without_a_named_network_has_no_such_key(make_bench):
    bench = make_bench(HostSpec((NIC,)), device_spec=named(function="ovs"))
    (entry,) = bench.plug(1, PF)
    assert "physical_network" not in entry["attach_handle_info"]


def test_vfs_on_different_networks_are_different_providers(make_bench):
    spec = [f'{{"address": "{VF}", "physical_network": "red"}}', *named()]
    bench = make_bench(HostSpec((NIC,)), device_spec=spec)
    found = {
        "CUSTOM_RED" in each.device.traits: len(each.device.handles)
        for each in bench.manager.providers()
    }
    assert found == {True: 1, False: 3}


def test_a_provider_stays_with_pci_until_its_lease_has_ended(make_bench):
    """The upgrade, and the downgrade: ``pci`` offered the card before."""
    bench = make_bench(HostSpec((NIC,)), enabled_plugins=["pci"])
    (before,) = bench.manager.providers()
    (entry,) = bench.plug(1, PF)
    for enabled in (["nic", "pci"], ["pci"], ["nic", "pci"]):
        bench.restart(enabled_plugins=enabled)
        (after,) = bench.manager.providers()
        assert after == before
        assert attached(bench) == [entry]
        (pf,) = bench.manager.discover().refused
        assert pf.reason is RejectReason.HAS_VFS
    assert bench.unplug(1) == 1
    assert bench.drivers(entry["pci_id"]) == ["iavf"]
    (after,) = bench.manager.providers()
    assert after.device == dataclasses.replace(before.device, plugin="nic")
    assert (after.uuid, after.name) == (before.uuid, before.name)


def test_a_vendors_plugin_is_asked_before_both():
    """A plugin for cards of one vendor need not precede ``nic`` by its name."""
    loaded = loader.load(config_of(), "/nowhere", []).loaded
    order = [each.name for each in loaded]
    assert order[-1] == "pci"
    assert order.index("nic") > max(
        order.index(each.name) for each in loaded if not each.is_fallback
    )


def test_the_fpga_of_a_vendor_with_network_class_is_no_network_card(make_bench):
    card = dataclasses.replace(hosts.fpga("0000:05"), class_code=0x020000)
    (provider,) = make_bench(HostSpec((card,))).manager.providers()
    assert provider.device.plugin == "pci"
    assert provider.device.resource_class == "CUSTOM_ACCELERATOR_FPGA"
