# SPDX-License-Identifier: Apache-2.0

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc.exception import ObjectKind, StepReason
from os_acc.host.attributes import DEVICES
from os_acc.host.pci import read_binding, read_function, read_parents, scan
from os_acc.objects.lease import PriorBinding
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity, PciRole
from os_acc.testing import FakeKernel, hosts
from tests.expected_errors import raises
from tests.unit.host.tree import PLAIN, Sysfs, address

PF = "0000:5e:00.0"
VF0, VF1, VF10 = "0000:5e:02.0", "0000:5e:02.1", "0000:5e:03.2"


def read(sysfs: Sysfs, text: str = PLAIN) -> PciFunction:
    function = read_function(sysfs.root, address(text))
    assert function is not None
    return function


def test_a_function_is_read_whole(sysfs):
    sysfs.function(driver="idxd", group=7, numa_node="1")
    assert read(sysfs) == PciFunction(
        address=address(),
        identity=PciIdentity(0x8086, 0x0B2B, 0x8086, 0x0001, 1),
        class_code=0x120000,
        driver="idxd",
        iommu_group=7,
        numa_node=1,
        reset_methods=("flr", "bus"),
        physfn=None,
        total_vfs=0,
        vfs=(),
    )


def test_a_bare_function_has_neither_driver_nor_group_nor_node(sysfs):
    sysfs.function(numa_node="-1", reset_method="")
    function = read(sysfs)
    assert function.driver is None
    assert function.iommu_group is None
    assert function.numa_node is None
    assert function.reset_methods == ()


@pytest.mark.parametrize(
    ("text", "override"),
    [("(null)", None), ("", None), ("vfio-pci", "vfio-pci"), ("none", "none")],
)
def test_the_override_is_none_where_none_is_set(sysfs, text, override):
    sysfs.function(driver_override=text)
    binding = read_binding(sysfs.root, address())
    assert binding is not None
    assert binding.driver_override == override


def test_an_old_kernel_only_tells_that_it_can_reset(sysfs):
    directory = sysfs.function()
    (directory / "reset_method").unlink()
    assert read(sysfs).reset_methods == ()
    (directory / "reset").touch(mode=0o200)
    assert read(sysfs).reset_methods == ("unknown",)


def test_vfs_come_in_the_order_of_their_index(sysfs):
    sysfs.function(PF, sriov_totalvfs="64")
    sysfs.vf(PF, 10, VF10)
    sysfs.vf(PF, 1, VF1)
    sysfs.vf(PF, 0, VF0)
    pf = read(sysfs, PF)
    assert pf.role is PciRole.PF
    assert pf.total_vfs == 64
    assert pf.vfs == (address(VF0), address(VF1), address(VF10))
    vf = read(sysfs, VF1)
    assert vf.role is PciRole.VF
    assert vf.physfn == address(PF)


@pytest.mark.parametrize("attribute", ["sriov_numvfs", "uevent", "driver_override"])
def test_attributes_behind_the_device_lock_are_never_opened(sysfs, attribute):
    directory = sysfs.function(sriov_totalvfs="4")
    # Opening a FIFO without a writer blocks for ever, as does a read of these
    # attributes behind a stuck write.
    (directory / attribute).unlink(missing_ok=True)
    os.mkfifo(directory / attribute)
    assert read(sysfs).total_vfs == 4


@pytest.mark.parametrize("domain", ["10000", "fedcba98"])
def test_wide_domains_are_read(sysfs, domain):
    text, pf = f"{domain}:01:00.1", f"{domain}:01:00.0"
    sysfs.function(pf, sriov_totalvfs="1", group=3)
    sysfs.vf(pf, 0, text)
    host = scan(sysfs.root)
    assert host.function(address(pf)).vfs == (address(text),)
    assert host.group_of(host.function(address(pf))).members == (address(pf),)


def test_a_serial_number_counts_only_where_everybody_may_read_it(sysfs):
    directory = sysfs.function(serial_number="00-15-4d-ff-fe-12-34-56")
    assert read(sysfs).identity.serial == "00-15-4d-ff-fe-12-34-56"
    (directory / "serial_number").chmod(0o400)
    assert read(sysfs).identity.serial == ""


@pytest.mark.parametrize("attribute", ["modalias", "revision"])
def test_a_function_that_goes_while_it_is_read_is_none(sysfs, attribute):
    assert read_function(sysfs.root, address()) is None
    (sysfs.function() / attribute).unlink()
    assert read_function(sysfs.root, address()) is None
    assert scan(sysfs.root).functions == {}


def test_a_binding_is_driver_and_override(sysfs):
    assert read_binding(sysfs.root, address()) is None
    directory = sysfs.function(driver="vfio-pci", driver_override="vfio-pci")
    assert read_binding(sysfs.root, address()) == PriorBinding(
        address(), read(sysfs).identity, "vfio-pci", "vfio-pci"
    )
    (directory / "revision").unlink()
    assert read_binding(sysfs.root, address()) is None


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("modalias", "of:N*T*Cvirtio"),
        ("modalias", "pci:v00018086d00000B2Bsv00000000sd00000000bc12sc00i00"),
        ("numa_node", "two"),
        ("revision", ""),
        ("sriov_totalvfs", "many"),
    ],
)
def test_one_broken_function_is_set_aside_and_named(sysfs, attribute, text):
    (sysfs.function(sriov_totalvfs="0") / attribute).write_text(text + "\n")
    sysfs.function(PF)
    with raises(StepReason.REFUSED, match=PLAIN) as caught:
        read_function(sysfs.root, address())
    assert caught.value.address == PLAIN
    host = scan(sysfs.root)
    assert list(host.functions) == [address(PF)]
    assert list(host.unreadable) == [PLAIN]
    with raises(ObjectKind.DEVICE, match="unreadable"):
        host.function(address())


def test_a_scan_is_sorted_and_cannot_be_changed(sysfs):
    for text in ("10000:00:01.0", PF, PLAIN):
        sysfs.function(text)
    (sysfs.devices / "junk").mkdir()
    host = scan(sysfs.root)
    assert list(host.functions) == sorted(host.functions)
    assert len(host.functions) == 3
    with pytest.raises(TypeError):
        del host.functions[address()]  # type: ignore[attr-defined]


def test_a_host_without_pci_is_empty(tmp_path):
    host = scan(str(tmp_path))
    assert not host.functions
    assert not host.groups
    assert not host.netdevs


def test_an_unlistable_bus_is_an_error(tmp_path):
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").symlink_to("devices")
    with raises(StepReason.REFUSED):
        scan(str(tmp_path))


def test_what_is_not_there_is_named(sysfs):
    sysfs.function()
    host = scan(sysfs.root)
    with raises(ObjectKind.DEVICE, match=PF):
        host.function(address(PF))
    with raises(StepReason.IOMMU) as caught:
        host.group_of(host.function(address()))
    assert caught.value.address == PLAIN


def test_network_interfaces_lead_to_their_functions(sysfs):
    bridge, nic = "0000:00:1c.0", "0000:5e:00.0"
    directory = sysfs.function(nic, above=bridge)
    virtio = sysfs.function(PLAIN)
    sysfs.class_device("net", directory / "net/ens1")
    sysfs.class_device("net", virtio / "virtio0/net/ens2")
    sysfs.class_device("net", sysfs.path / "sys/devices/virtual/net/lo")
    sysfs.put("sys/class/net/bonding_masters", "bond0")
    assert scan(sysfs.root).netdevs == {"ens1": address(nic), "ens2": address(PLAIN)}


def test_no_descriptor_is_left_open(sysfs):
    sysfs.function(PF, sriov_totalvfs="4", group=1)
    sysfs.vf(PF, 0, VF0)
    sysfs.function(numa_node="broken")
    before = set(os.listdir("/proc/self/fd"))
    scan(sysfs.root)
    read_binding(sysfs.root, address())
    # Descriptors of earlier tests may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_real_host_agrees_with_its_own_listing():
    host = scan("/")
    directory = "/" + DEVICES
    listed = os.listdir(directory) if os.path.isdir(directory) else []
    assert not host.unreadable
    assert {str(found) for found in host.functions} == set(listed)


_ATTRIBUTES = (
    "modalias",
    "revision",
    "numa_node",
    "driver_override",
    "reset_method",
    "sriov_totalvfs",
    "serial_number",
)
_LINKS = ("driver", "iommu_group", "physfn", "virtfn0")
_NAMES = st.text(
    st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]),
    min_size=1,
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attributes=st.dictionaries(st.sampled_from(_ATTRIBUTES), st.binary(max_size=60)),
    links=st.dictionaries(st.sampled_from(_LINKS), _NAMES | st.just(None)),
)
def test_any_garbage_is_set_aside_and_nothing_else(tmp_path_factory, attributes, links):
    sysfs = Sysfs(tmp_path_factory.mktemp("garbage"))
    broken = sysfs.function(sriov_totalvfs="8")
    sysfs.function(PF)
    for name, data in attributes.items():
        (broken / name).write_bytes(data)
    for name, target in links.items():
        if target is None:
            (broken / name).touch()
        else:
            (broken / name).symlink_to(f"../{target}")
    host = scan(sysfs.root)
    assert address(PF) in host.functions
    assert address() in host.functions or PLAIN in host.unreadable


PORT, SWITCH, GPU = "0000:16:00.0", "0000:17:00.0", "0000:19:00.0"


def parents(sysfs: Sysfs, *names: str) -> dict[str, str]:
    found = read_parents(sysfs.root, map(PciAddress.parse, names))
    return {str(one): str(other) for one, other in found.items()}


def placed(sysfs: Sysfs, *path: str) -> None:
    """Add a function at a place in the tree of devices."""
    directory = sysfs.path.joinpath("sys/devices", *path)
    directory.mkdir(parents=True, exist_ok=True)
    sysfs.link(sysfs.devices / path[-1], directory)


def test_what_is_right_above_is_found_and_a_root_bus_is_nothing(sysfs):
    placed(sysfs, "pci0000:16", PORT)
    placed(sysfs, "pci0000:16", PORT, SWITCH)
    placed(sysfs, "pci0000:16", PORT, SWITCH, GPU)
    assert parents(sysfs, PORT, SWITCH, GPU) == {SWITCH: PORT, GPU: SWITCH}


def test_a_host_bridge_may_be_a_platform_device(sysfs):
    placed(sysfs, "platform", "40000000.pcie", "pci0000:16", PORT, GPU)
    placed(sysfs, "platform", "40000000.pcie", "pci0000:16", PORT)
    assert parents(sysfs, PORT, GPU) == {GPU: PORT}


def test_an_endpoint_with_a_bus_of_its_own_is_above_what_is_on_that(tmp_path):
    kernel = FakeKernel.build(tmp_path, hosts.vmd_host())
    vmd, port, disk = map(address, ("0000:00:0e.0", "10000:00:02.0", "10000:01:00.0"))
    found = read_parents(kernel.root, (vmd, port, disk))
    assert dict(found) == {port: vmd, disk: port}


def test_what_has_vanished_is_below_nothing(sysfs):
    assert parents(sysfs, GPU) == {}
