# SPDX-License-Identifier: Apache-2.0

"""Types of mediated devices: those that are offered, and their units.

A type of two ports and one of one port share the 24 ports of a virtual parent; two
types of a GPU share four units.
"""

import dataclasses
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.attach import devices
from os_acc.host import mdev, pci
from os_acc.objects.device import Provider, RejectReason
from os_acc.objects.mdev import parse_address
from os_acc.testing import HostSpec, TestHost, hosts, instance, request
from os_acc.testing.mdevs import mtty
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.unit import leases

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"
SMALL, LARGE = MdevTypeSpec("nvidia-558"), MdevTypeSpec("nvidia-559", cost=2)
OF_MTTY = '{"mdev_parent": "mtty", "mdev_types": "mtty-1, mtty-2"}'
OF_GPU = f'{{"address": "{GPU}", "mdev_types": "nvidia-558, nvidia-559"}}'
MTTYS = {"mtty/mtty-1", "mtty/mtty-2"}
VGPUS = {f"{GPU}/nvidia-558", f"{GPU}/nvidia-559"}


def gpu(*types: MdevTypeSpec, capacity: int = 4):
    """Return a graphics card whose driver offers types, and its audio function."""
    display, audio = hosts.gpu("0000:17")
    parent = MdevParentSpec(GPU, capacity, types or (SMALL, LARGE))
    return dataclasses.replace(display, mdevs=parent), audio


@pytest.fixture
def make_host(make_bench):
    """Return a function that builds a host with a GPU and a virtual parent."""

    def make(*types: MdevTypeSpec, **options) -> TestHost:
        spec = HostSpec(gpu(*types), mdev_parents=(mtty(),))
        return make_bench(spec, **{"device_spec": [OF_MTTY, OF_GPU], **options})

    return make


def offered(manager) -> set[str]:
    found = manager.discover(float("inf")).providers.values()
    return {str(each.device.address) for each in found}


def provider(host: TestHost, name: str) -> Provider:
    found = host.manager.discover(float("inf")).providers.values()
    return next(each for each in found if str(each.device.address) == name)


def units(host: TestHost, name: str) -> tuple[int, int]:
    """Return the total and the reserved units of a type, as Placement gets them."""
    uuid = provider(host, name).uuid
    found = host.manager.catalog.snapshots.newest()
    (each,) = next(each for each in found if each.uuid == uuid).units.values()
    return each.total, each.reserved


def plug(host: TestHost, number: int, name: str, amount: int = 1) -> None:
    host.manager.plug(instance(number), *request(provider(host, name), amount=amount))


def stranger(number: int) -> str:
    return f"6f0c9b52-2d21-4a2e-9d3c-{number:012d}"


def create(host: TestHost, name: str, *numbers: int) -> None:
    """Create mediated devices, as another tool does."""
    parent, kind = name.split("/")
    path = f"{host.root}/{mdev.PARENTS}/{parent}/mdev_supported_types/{kind}/create"
    for number in numbers:
        host.kernel.write(path, stranger(number))


def remove(host: TestHost, *numbers: int) -> None:
    for number in numbers:
        host.kernel.write(f"{host.root}/{mdev.MDEVS}/{stranger(number)}/remove", "1")


# -- the types that are offered ----------------------------------------------


def with_nova(host: TestHost, **addresses: list[str]):
    """Start with Nova's mdev types, and the ``device_addresses`` of each."""
    config = host.config()
    enabled = cfg.ListOpt("enabled_mdev_types", default=list(addresses))
    config.register_opts([enabled], group="devices")
    for name, places in addresses.items():
        option = cfg.ListOpt("device_addresses", default=places)
        config.register_opts([option], group=f"mdev_{name}")
    return host.start(config)


@pytest.mark.parametrize(
    ("addresses", "claimed", "detail"),
    [
        ({"nvidia-558": [GPU]}, VGPUS, ""),
        ({"nvidia-7": [GPU]}, VGPUS, ""),
        ({"nvidia-558": []}, VGPUS, "it offers nvidia-558"),
        ({"mtty-2": ["mtty_mtty"]}, MTTYS, ""),
        ({"mtty-2": []}, MTTYS, "it offers mtty-2"),
        ({"nvidia-558": ["0000:99:00.0"]}, set(), None),
        ({"nvidia-7": []}, set(), None),
        ({"mtty-2": ["mdpy_mdpy"]}, set(), None),
    ],
)
def test_types_that_nova_may_use_are_rejected(make_host, addresses, claimed, detail):
    manager = with_nova(make_host(), **addresses)

    assert offered(manager) == (MTTYS | VGPUS) - claimed
    found = manager.discover(float("inf")).refused
    assert {str(each.address) for each in found} == claimed
    for each in found:
        assert (each.reason, each.detail) == (RejectReason.NOVA_CLAIMS, detail)


def test_types_of_a_function_that_is_leased_as_a_whole_are_rejected(make_host):
    host = make_host(device_spec=[f'{{"address": "{GPU[:-1]}*"}}'])
    host.plug(1, GPU)

    manager = host.restart(device_spec=[OF_GPU])

    found = manager.discover(float("inf")).refused
    assert {str(each.address) for each in found} == VGPUS
    for each in found:
        assert (each.reason, each.detail) == (RejectReason.LEASED_WHOLE, GPU)
    assert host.unplug(1) == 1
    assert offered(manager) == VGPUS


def test_only_types_that_libvirt_can_attach_are_offered(make_host):
    host = make_host(SMALL, dataclasses.replace(LARGE, device_api="vfio-ap"))

    assert offered(host.manager) == MTTYS | {f"{GPU}/nvidia-558"}
    (refused,) = host.manager.discover(float("inf")).refused
    assert refused.reason is RejectReason.NO_MDEV_TYPE
    assert refused.detail == "device_api is vfio-ap, not vfio-pci"


def test_the_parent_of_a_lease_is_not_offered_whole_before_it_is_made_again(make_host):
    """After a reboot the host has no mediated device that shows its use."""
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558")
    host.kernel.reboot()
    host.restart(device_spec=[f'{{"address": "{GPU}"}}'])

    assert mdev.read_mdevs(host.root) == ()
    refused = host.rejected(GPU)
    assert refused.reason is RejectReason.MDEVS_LEASED
    assert refused.detail == f"{GPU}/nvidia-558/0"


def test_nor_with_another_function_of_its_card(make_host):
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558")
    host.kernel.reboot()
    host.restart(device_spec=[f'{{"address": "{AUDIO}", "allow_no_reset": true}}'])

    refused = host.rejected(AUDIO)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert RejectReason.MDEVS_LEASED.value in refused.detail


def test_a_parent_goes_to_no_guest_with_another_function_of_its_card(make_host):
    audio = f'{{"address": "{AUDIO}", "allow_no_reset": true}}'
    host = make_host(device_spec=[audio, OF_GPU])

    assert offered(host.manager) == VGPUS
    refused = host.rejected(AUDIO)
    assert refused.reason is RejectReason.NOT_ISOLATED
    assert refused.detail == f"{GPU}: offered as mediated devices"


# -- units -----------------------------------------------------------------


def test_units_whose_devices_are_to_be_made_again_are_free_for_no_other(make_host):
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558", amount=3)
    host.kernel.reboot()
    host.restart()

    assert mdev.read_mdevs(host.root) == ()
    assert units(host, f"{GPU}/nvidia-558") == (4, 0)
    with pytest.raises(exception.NoDeviceAvailable):
        plug(host, 2, f"{GPU}/nvidia-558", amount=2)
    plug(host, 2, f"{GPU}/nvidia-558")
    host.manager.plug(instance(1), None, None)
    assert len(mdev.read_mdevs(host.root)) == 4


@pytest.mark.parametrize("end", ["started again", "deleted"])
@pytest.mark.parametrize("how", ["reboot", "driver loaded again"])
def test_units_of_other_types_are_reserved_until_held_devices_exist(
    make_host, how, end
):
    """Else a new guest gets the capacity, and the held guests find none."""
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558")
    plug(host, 2, f"{GPU}/nvidia-558")
    assert units(host, f"{GPU}/nvidia-559") == (2, 1)
    if how == "reboot":
        host.kernel.reboot()
    else:
        host.kernel.hot_unplug(GPU)
        host.kernel.hot_plug(gpu()[0])
    host.restart()

    assert mdev.read_mdevs(host.root) == ()
    assert units(host, f"{GPU}/nvidia-559") == (2, 2)
    with pytest.raises(exception.NoDeviceAvailable, match="keeps it for leased"):
        plug(host, 3, f"{GPU}/nvidia-559")
    assert units(host, f"{GPU}/nvidia-558") == (4, 0)
    assert units(host, "mtty/mtty-2") == (12, 0)

    for number in (1, 2):
        # The first is not enough.
        assert units(host, f"{GPU}/nvidia-559") == (2, 2)
        if end == "deleted":
            host.manager.unplug(instance(number))
        else:
            host.manager.plug(instance(number), None, None)
    assert units(host, f"{GPU}/nvidia-559") == (2, 1 if end == "started again" else 0)
    plug(host, 3, f"{GPU}/nvidia-559")


def test_a_plug_that_has_not_ended_reserves_no_units_of_other_types(
    make_host, monkeypatch
):
    host, other = make_host(), []
    create = devices.Devices._create

    def and_count(*arguments):
        other.append(units(host, f"{GPU}/nvidia-559"))
        create(*arguments)

    monkeypatch.setattr(devices.Devices, "_create", and_count)
    plug(host, 1, f"{GPU}/nvidia-558")
    assert other == [(2, 0)]


def test_a_lease_without_a_mediated_device_reserves_no_units_of_other_types(make_host):
    host = make_host()
    selected, specs = request(provider(host, f"{GPU}/nvidia-558"))
    specs["accel1:attach_target"] = "none"
    host.manager.plug(instance(1), selected, specs)

    assert units(host, f"{GPU}/nvidia-559") == (2, 0)


def test_a_device_that_is_given_back_during_a_scan_reserves_no_units(
    make_host, monkeypatch
):
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558")
    scan, beside = pci.scan, host.restart()

    def and_unplug(root):
        monkeypatch.setattr(pci, "scan", scan)
        beside.unplug(instance(1))
        return scan(root)

    monkeypatch.setattr(pci, "scan", and_unplug)
    assert units(host, f"{GPU}/nvidia-559") == (2, 0)


@pytest.mark.parametrize("users", ["guests", "strangers"])
def test_the_total_is_fixed_and_what_siblings_use_is_reserved(make_host, users):
    host = make_host()
    assert units(host, "mtty/mtty-2") == (12, 0)

    if users == "guests":
        plug(host, 1, "mtty/mtty-1", amount=24)
    else:
        create(host, "mtty/mtty-1", *range(24))

    assert units(host, "mtty/mtty-2") == (12, 12)
    host.restart()
    assert units(host, "mtty/mtty-2") == (12, 12)
    with pytest.raises(exception.NoDeviceAvailable, match="has no capacity left"):
        plug(host, 2, "mtty/mtty-2")
    if users == "guests":
        host.manager.unplug(instance(1))
    else:
        remove(host, *range(24))
    assert units(host, "mtty/mtty-2") == (12, 0)


def test_a_total_that_was_never_recorded_is_counted_again(make_host):
    """As after the loss of the store."""
    host = make_host()
    create(host, "mtty/mtty-1", *range(23))

    assert units(host, "mtty/mtty-2") == (1, 1)
    remove(host, *range(13))
    assert units(host, "mtty/mtty-2") == (7, 0)
    create(host, "mtty/mtty-1", 50)
    assert units(host, "mtty/mtty-2") == (7, 1)
    remove(host, 50, *range(13, 23))
    assert units(host, "mtty/mtty-2") == (12, 0)


def test_the_description_tells_a_total_that_was_never_recorded(make_host):
    described = dataclasses.replace(LARGE, description="memory=8192M, max_instance=2")
    host = make_host(SMALL, described)
    create(host, f"{GPU}/nvidia-558", *range(4))

    assert units(host, f"{GPU}/nvidia-559") == (2, 2)


def test_strangers_of_a_type_are_among_its_units(make_host):
    host = make_host()
    create(host, f"{GPU}/nvidia-558", 0, 1, 2)

    assert units(host, f"{GPU}/nvidia-558") == (4, 3)
    plug(host, 1, f"{GPU}/nvidia-558")
    assert units(host, f"{GPU}/nvidia-558") == (4, 3)


@pytest.mark.parametrize("capacity", [2, 8])
def test_a_driver_with_other_capacity_changes_the_total(make_host, capacity):
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558", amount=2)
    assert units(host, f"{GPU}/nvidia-558") == (4, 0)
    host.manager.unplug(instance(1))

    # Another version of the driver is loaded.
    host.kernel.hot_unplug(GPU)
    host.kernel.hot_plug(gpu(capacity=capacity)[0])

    assert units(host, f"{GPU}/nvidia-558") == (capacity, 0)
    assert units(host, f"{GPU}/nvidia-559") == (capacity // 2, 0)
    plug(host, 1, f"{GPU}/nvidia-558", amount=2)
    assert units(host, f"{GPU}/nvidia-559") == (capacity // 2, 1)


def test_a_sibling_that_appears_during_a_scan_changes_no_total(make_host, monkeypatch):
    host = make_host()
    assert units(host, "mtty/mtty-2") == (12, 0)
    real, created = mdev.read_type, []

    def read(root, kind):
        if kind.parent == "mtty" and not created:
            created.append(kind)
            create(host, "mtty/mtty-1", *range(24))
        return real(root, kind)

    monkeypatch.setattr(mdev, "read_type", read)
    assert units(host, "mtty/mtty-2") == (12, 12)
    assert units(host, "mtty/mtty-1") == (24, 24)


def test_a_sibling_that_vanishes_during_a_scan_changes_no_total(make_host, monkeypatch):
    host = make_host()
    assert units(host, "mtty/mtty-2") == (12, 0)
    create(host, "mtty/mtty-1", *range(24))
    real, removed = mdev.read_type, []

    def read(root, kind):
        found = real(root, kind)
        if kind.name == "mtty-2" and not removed:
            removed.append(kind)
            remove(host, *range(24))
        return found

    monkeypatch.setattr(mdev, "read_type", read)
    assert units(host, "mtty/mtty-2") == (12, 12)
    assert units(host, "mtty/mtty-2") == (12, 0)


def test_leases_beyond_the_capacity_of_another_driver_stay(make_host):
    host = make_host()
    plug(host, 1, f"{GPU}/nvidia-558", amount=3)
    host.kernel.hot_unplug(GPU)
    host.kernel.hot_plug(gpu(capacity=2)[0])

    assert units(host, f"{GPU}/nvidia-558") == (3, 0)
    with pytest.raises(exception.NoDeviceAvailable):
        plug(host, 2, f"{GPU}/nvidia-558")
    assert host.manager.unplug(instance(1)) == 3
    assert units(host, f"{GPU}/nvidia-558") == (2, 0)


def offer(
    host: TestHost, address: str, available: int, name: str = "nvidia-558"
) -> Path:
    """Let a VF's driver offer a type with these instances; return the VF."""
    vf = Path(host.root, "sys/bus/pci/devices", address).resolve()
    kind = vf / "mdev_supported_types" / name
    kind.mkdir(parents=True, exist_ok=True)
    (kind / "device_api").write_text("vfio-pci\n")
    (kind / "available_instances").write_text(f"{available}\n")
    parent = Path(host.root, mdev.PARENTS, address)
    parent.parent.mkdir(parents=True, exist_ok=True)
    if not parent.is_symlink():
        parent.symlink_to(vf)
    return vf


def test_a_mediated_device_on_one_vf_shrinks_no_total_of_another(make_bench):
    """The types of all VFs count the memory of their card."""
    first, second = "0000:3b:02.0", "0000:3b:02.1"
    host = make_bench(
        HostSpec((hosts.nic("0000:3b", name="eno1", boot_vfs=2),)),
        device_spec=[f'{{"address": "{first[:-1]}*", "mdev_types": "nvidia-558"}}'],
    )
    for vf in (first, second):
        offer(host, vf, available=2)
    assert units(host, f"{second}/nvidia-558") == (2, 0)

    place = offer(host, first, available=0)
    offer(host, second, available=0)
    made = place / stranger(1)
    made.mkdir()
    (made / "mdev_type").symlink_to(place / "mdev_supported_types" / "nvidia-558")
    listed = Path(host.root, mdev.MDEVS, stranger(1))
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.symlink_to(made)
    assert units(host, f"{second}/nvidia-558") == (2, 2)

    # No mediated device uses the card: this is all that its driver has.
    listed.unlink()
    offer(host, second, available=1)
    assert units(host, f"{second}/nvidia-558") == (1, 0)


def test_an_absent_device_of_one_vf_reserves_units_of_other_types_of_its_card(
    make_bench,
):
    """The types of all VFs count the memory of their card."""
    card, other = "0000:3b:02", "0000:5e:02"
    named = '"mdev_types": "nvidia-558, nvidia-559"'
    host = make_bench(
        HostSpec(
            (
                hosts.nic("0000:3b", name="eno1", boot_vfs=2),
                hosts.nic("0000:5e", name="eno2", boot_vfs=1),
            )
        ),
        device_spec=[f'{{"address": "{each}.*", {named}}}' for each in (card, other)],
    )
    for vf in (f"{card}.0", f"{card}.1", f"{other}.0"):
        for name in ("nvidia-558", "nvidia-559"):
            offer(host, vf, 1, name)
    lease = leases.lease(
        parse_address(f"{card}.0/nvidia-558/0"),
        provider=provider(host, f"{card}.0/nvidia-558").uuid,
        resource_class="CUSTOM_ACCELERATOR_MDEV",
        iommu_group=None,
    )
    added = host.manager.store.add([lease])

    assert units(host, f"{card}.0/nvidia-559") == (1, 1)
    assert units(host, f"{card}.1/nvidia-559") == (1, 1)
    assert units(host, f"{card}.1/nvidia-558") == (1, 0)
    assert units(host, f"{other}.0/nvidia-559") == (1, 0)
    host.manager.store.delete(added)
    assert units(host, f"{card}.1/nvidia-559") == (1, 0)
