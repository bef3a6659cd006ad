# SPDX-License-Identifier: Apache-2.0

"""A configured device is offered only if a guest can safely have it."""

import dataclasses
import pathlib
import shutil

import pytest

from os_acc import conf, exception
from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.objects.device import RejectReason
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, hosts, instance, request
from os_acc.testing.test_host import EVERYTHING

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"


@pytest.mark.parametrize(
    ("address", "reason", "detail"),
    [
        ("0000:03:00.0", RejectReason.NO_RESET, ""),
        ("0000:04:00.0", RejectReason.HOST_USES, "nvme0n1p1 is mounted at /"),
        ("0000:16:00.0", RejectReason.BRIDGE, ""),
        ("0000:af:00.0", RejectReason.HOST_USES, "ens2f0 is up"),
    ],
)
def test_what_the_host_needs_is_refused(bench, address, reason, detail):
    refused = bench.rejected(address)
    assert refused.reason is reason
    assert detail in refused.detail
    assert reason.value in str(refused)


@pytest.mark.parametrize(
    ("spec", "address", "reason"),
    [
        (hosts.without_iommu(), GPU, RejectReason.NO_IOMMU),
        (hosts.denylist_host(), "0000:3d:00.0", RejectReason.DENYLISTED),
        (hosts.mapped_by_firmware(), "0000:05:00.0", RejectReason.RESERVED_REGION),
    ],
)
def test_what_vfio_will_not_take_is_refused(make_bench, spec, address, reason):
    bench = make_bench(spec)
    assert bench.rejected(address).reason is reason
    assert bench.manager.providers() == ()


def test_only_direct_regions_prevent_an_assignment(make_bench):
    """Types: Documentation/ABI/testing/sysfs-kernel-iommu_groups."""
    (card,) = hosts.mapped_by_firmware().functions
    others = ("0x1000 0x1fff direct-relaxable", "0x2000 0x2fff reserved")
    bench = make_bench(HostSpec((dataclasses.replace(card, reserved=others),)))
    assert len(bench.manager.providers()) == 1


def test_the_denylist_can_be_switched_off(make_bench):
    spec = dataclasses.replace(hosts.denylist_host(), disable_denylist=True)
    bench = make_bench(spec)
    bench.plug(1, "0000:3d:00.0")
    assert bench.drivers("0000:3d:00.0") == ["vfio-pci"]


def test_a_group_with_a_sibling_that_vfio_pci_denies_is_not_offered(make_bench):
    card = hosts.fpga("0000:05")
    denied = dataclasses.replace(hosts.qat("0000:06"), group_of=card.address)
    refused = make_bench(HostSpec((card, denied))).rejected(card.address)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert f"{denied.address}: {RejectReason.DENYLISTED.value}" in refused.detail


@pytest.mark.parametrize("named", ["0000:01:00.0", "0000:04:00.0"])
def test_a_shared_group_is_refused_with_the_neighbour_named(make_bench, named):
    bench = make_bench(
        hosts.shared_group_host(), device_spec=[f'{{"address": "{named}"}}']
    )
    refused = bench.rejected(named)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert "0000:0" in refused.detail
    assert "shares its group" in refused.detail
    assert bench.manager.providers() == ()


def test_a_neighbour_that_the_host_uses_keeps_a_group_that_is_named_whole(make_bench):
    bench = make_bench(hosts.shared_group_host())
    refused = bench.rejected("0000:01:00.0")
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert "0000:02:00.0: network interface eno1 is up" in refused.detail


def test_an_interface_that_is_renamed_after_the_scan_keeps_its_function(
    make_bench, monkeypatch
):
    bench = make_bench()
    scan, interface = pci.scan, pathlib.Path(bench.root, "sys/class/net/ens2f0")

    def then_renamed(root):
        nonlocal interface
        found = scan(root)
        interface = interface.rename(f"{interface}x")
        return found

    monkeypatch.setattr(pci, "scan", then_renamed)
    assert f"{interface.name}x" in bench.rejected("0000:af:00.0").detail


def test_a_pf_that_is_named_for_its_vfs_keeps_its_group_while_it_has_none(make_bench):
    """The privileged helper does not bind it either."""
    pf, other = "0000:3b:00.0", "0000:3b:00.1"
    first = hosts.nic("0000:3b", name="ens1f0", vfs=8)
    second = hosts.nic("0000:3b", name="ens1f1")
    second = dataclasses.replace(second, address=other, group_of=pf)
    bench = make_bench(
        HostSpec((hosts.root_port("0000:3a:00.0"), first, second)),
        device_spec=[
            f'{{"address": "{pf}", "num_vfs": 4}}',
            f'{{"address": "{other}"}}',
        ],
    )
    # Other programs than os_acc can remove the VFs.
    numvfs = bench.kernel.path("sys/bus/pci/devices", pf, "sriov_numvfs")
    bench.kernel.write(numvfs, "0")
    refused = bench.rejected(other)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert f"{pf}: a PF with VFs" in refused.detail


def test_a_disk_below_a_vmd_is_refused_with_the_vmd_named(make_bench):
    bench = make_bench(hosts.vmd_host(), device_spec=['{"address": "10000:01:00.0"}'])
    refused = bench.rejected("10000:01:00.0")
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert "0000:00:0e.0 (vmd)" in refused.detail


def test_a_neighbour_without_a_driver_does_not_stand_in_the_way(make_bench):
    card = hosts.fpga("0000:05")
    other = dataclasses.replace(hosts.fpga("0000:06"), group_of=card.address)
    bench = make_bench(
        HostSpec((card, other)), device_spec=['{"address": "0000:05:00.0"}']
    )
    bench.plug(1, card.address)
    assert bench.drivers(card.address, other.address) == ["vfio-pci", None]


def test_a_device_that_a_guest_keeps_from_leaving_is_unknown(bench):
    """The device has no driver any more, but its last driver waits for the guest."""
    kernel = bench.kernel
    bench.bind(FPGA, "vfio-pci")
    kernel.hold(FPGA)
    kernel.hot_unplug(FPGA)
    assert bench.drivers(FPGA) == [None]
    assert bench.rejected(FPGA).reason is RejectReason.UNKNOWN_STATE
    kernel.let_go(FPGA)
    with pytest.raises(LookupError):
        bench.rejected(FPGA)


# -- devices that Nova claims ------------------------------------------------


def with_nova(bench, *device_spec: str):
    """Start a manager that reads Nova's own options as well."""
    from oslo_config import cfg

    config = bench.config()
    config.register_opts([cfg.MultiStrOpt("device_spec", default=[])], group="pci")
    config.set_override("device_spec", list(device_spec), group="pci")
    assert conf.Settings.load(config).nova_device_spec == device_spec
    return bench.start(config)


def reasons(manager) -> dict[str, RejectReason]:
    return {str(each.address): each.reason for each in manager.discover().refused}


def test_what_nova_claims_is_refused(bench):
    manager = with_nova(bench, '{"vendor_id": "10ee"}')
    found = reasons(manager)
    assert found["0000:5e:00.0"] is RejectReason.NOVA_CLAIMS
    assert found["0000:e3:00.0"] is RejectReason.NOVA_CLAIMS
    assert GPU not in found


def test_vfs_are_refused_where_nova_may_give_their_pf_to_a_guest(make_bench):
    bench = make_bench(HostSpec((hosts.nic("0000:3b", name="ens1f0", boot_vfs=2),)))
    manager = with_nova(bench, '{"vendor_id": "8086", "product_id": "1592"}')
    vfs = {"0000:3b:02.0", "0000:3b:02.1"}
    refused = {str(each.address): each for each in manager.discover().refused}
    for vf in vfs:
        assert refused[vf].reason is RejectReason.NOVA_CLAIMS
        assert refused[vf].detail == "its PF 0000:3b:00.0"


@pytest.mark.parametrize("named", [EVERYTHING, f'{{"address": "{AUDIO}"}}'])
def test_a_sibling_never_takes_along_what_nova_claims(make_bench, named):
    bench = make_bench(device_spec=[named])
    manager = with_nova(bench, f'{{"address": "{GPU}"}}')
    members = {
        str(address)
        for provider in manager.providers()
        for handle in provider.device.handles
        for address in handle.members
    }
    assert GPU not in members
    assert AUDIO not in members
    assert reasons(manager)[AUDIO] in (RejectReason.NOT_ISOLATED, RejectReason.NO_RESET)


def test_a_card_is_refused_beside_a_vf_whose_pf_nova_may_give_to_a_guest(
    make_bench, monkeypatch
):
    """They share a group behind a bridge without ACS."""
    nic = hosts.nic("0000:3b", name="ens1f0", boot_vfs=1)
    bench = make_bench(HostSpec((nic, hosts.fpga("0000:5e"))))
    vf, card = (PciAddress.parse(each) for each in ("0000:3b:02.0", FPGA))
    scan = pci.scan

    def in_one_group(root: str) -> Host:
        host = scan(root)
        group = dataclasses.replace(
            host.group_of(host.function(card)), members=(vf, card)
        )
        moved = dataclasses.replace(host.functions[vf], iommu_group=group.number)
        return dataclasses.replace(
            host,
            functions={**host.functions, vf: moved},
            groups={**host.groups, group.number: group},
        )

    monkeypatch.setattr(pci, "scan", in_one_group)
    manager = with_nova(bench, '{"vendor_id": "8086", "product_id": "1592"}')
    assert reasons(manager)[FPGA] is RejectReason.NOT_ISOLATED


def test_a_card_is_refused_where_nova_claims_a_part_of_it(make_bench):
    bench = make_bench(device_spec=[f'{{"address": "{GPU}"}}'])
    manager = with_nova(bench, f'{{"address": "{AUDIO}"}}')
    (refused,) = manager.discover().refused
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert AUDIO in refused.detail
    assert "Nova" in refused.detail


def of_nova_s_mdevs(bench, **addresses: list[str]):
    """Return a configuration with Nova's mdev types and their addresses."""
    from oslo_config import cfg

    config = bench.config()
    config.register_opts([cfg.ListOpt("enabled_mdev_types")], group="devices")
    config.set_override("enabled_mdev_types", list(addresses), group="devices")
    for name, places in addresses.items():
        option = cfg.ListOpt("device_addresses", default=places)
        config.register_opts([option], group=f"mdev_{name}")
    return config


@pytest.mark.parametrize(
    ("addresses", "everywhere"),
    [
        ({}, ()),
        ({"a": [GPU], "b": [AUDIO]}, ()),
        ({"a": []}, ("a",)),
        ({"a": [], "b": [], "c": [GPU]}, ("a", "b")),
        # Nova then uses the first type alone, and for every device.
        ({"a": [GPU], "b": []}, ("a", "b")),
    ],
)
def test_a_type_without_addresses_is_nova_s_wherever_it_is(
    bench, addresses, everywhere
):
    config = of_nova_s_mdevs(bench, **addresses)
    assert conf.Settings.load(config).nova_mdev_types == everywhere


@pytest.fixture
def catalog(make_bench):
    """Return a function that builds a host with a card that offers mediated devices."""
    types = "mdev_supported_types/{}/available_instances"
    attributes = tuple((types.format(name), "4\n") for name in ("t-1", "t-2"))
    card = dataclasses.replace(hosts.fpga("0000:05"), attributes=attributes)
    other = hosts.fpga("0000:06")
    return lambda *beside: make_bench(HostSpec((card, other, *beside)))


def test_a_type_with_addresses_is_nova_s_only_there(catalog):
    bench = catalog()
    config = of_nova_s_mdevs(bench, **{"t-1": ["0000:06:00.0"]})
    manager = bench.start(config)
    assert reasons(manager) == {"0000:06:00.0": RejectReason.NOVA_CLAIMS}


def test_a_neighbour_that_offers_such_a_type_is_never_taken_along(catalog):
    beside = dataclasses.replace(hosts.fpga("0000:07"), group_of="0000:05:00.0")
    bench = catalog(beside)
    config = of_nova_s_mdevs(bench, **{"t-2": []})
    manager = bench.start(config)
    assert reasons(manager) == {
        "0000:05:00.0": RejectReason.NOVA_CLAIMS,
        "0000:07:00.0": RejectReason.NOT_ISOLATED,
    }


def offer(bench, address, *types):
    """Let the function's driver offer only these types of mediated devices."""
    place = pathlib.Path(bench.root, "sys/bus/pci/devices", address)
    shutil.rmtree(place / "mdev_supported_types", ignore_errors=True)
    for name in types:
        (place / "mdev_supported_types" / name).mkdir(parents=True)


CARDS = {"0000:05:00.0", "0000:06:00.0"}


def offered(manager):
    return {str(each.device.address) for each in manager.providers()}


def test_types_of_mediated_devices_come_and_go_without_a_restart(catalog):
    bench = catalog()
    config = of_nova_s_mdevs(bench, **{"t-9": []})
    manager = bench.start(config)
    for types, left in (
        ((), CARDS),
        (("t-8", "t-9"), {"0000:05:00.0"}),
        (("t-8",), CARDS),
        (("t-9",), {"0000:05:00.0"}),
        ((), CARDS),
    ):
        offer(bench, "0000:06:00.0", *types)
        assert offered(manager) == left


def test_a_guest_keeps_a_card_whose_driver_offers_novas_types_since(catalog):
    bench = catalog()
    config = of_nova_s_mdevs(bench, **{"t-9": []})
    manager = bench.start(config)
    (provider,) = (
        each
        for each in manager.providers()
        if str(each.device.address) == "0000:06:00.0"
    )
    before = manager.plug(instance(1), *request(provider))
    offer(bench, "0000:06:00.0", "t-9")
    assert offered(manager) == CARDS - {"0000:06:00.0"}
    assert manager.plug(instance(1), *request(provider)) == before
    with pytest.raises(exception.OsAccError):
        manager.plug(instance(2), *request(provider))
    assert manager.unplug(instance(1)) == 1


# -- changes at run time -----------------------------------------------------


def test_one_function_that_cannot_be_read_keeps_no_other_from_being_offered(bench):
    from pathlib import Path

    modalias = Path(bench.root, "sys/bus/pci/devices/0000:5e:00.0/modalias")
    text = "what nobody understands\n"
    modalias.unlink()
    modalias.write_text(text)
    inventory = bench.manager.discover()
    assert "0000:5e:00.0" in inventory.host.unreadable
    assert bench.provider(GPU)


def test_a_vmd_is_a_bridge_whatever_its_class_says(make_bench):
    bench = make_bench(hosts.vmd_host())
    assert bench.rejected("0000:00:0e.0").reason is RejectReason.BRIDGE
