# SPDX-License-Identifier: Apache-2.0

import os
from pathlib import Path

import pytest

from os_acc.exception import StepReason
from os_acc.host.pci import scan
from os_acc.host.usage import read_usage
from tests.expected_errors import raises
from tests.unit.host.tree import PLAIN, Sysfs, address

NVME, OTHER = "0000:5e:00.0", "0000:5f:00.0"
NVIDIA = (0x10DE, 0x2330, 0x10DE, 0x16C1)
MDEV = "83c32df7-d52e-4ec1-9668-1f3c7e4df107"
VF = "0000:3b:00.4"


def use(sysfs: Sysfs, text: str) -> str | None:
    host = scan(sysfs.root)
    return read_usage(sysfs.root, host.functions, host.netdevs).get(address(text))


@pytest.fixture
def sysfs(sysfs: Sysfs) -> Sysfs:
    mount(sysfs, "8:1")
    return sysfs


def mount(sysfs: Sysfs, number: str, source: str = "none", where: str = "/srv") -> None:
    line = f"30 1 {number} / {where} rw shared:1 - xfs {source} rw"
    sysfs.put("proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n" + line)


@pytest.fixture
def disk(sysfs: Sysfs) -> Path:
    """Add a separate NVMe disk, behind a bridge, with one partition; return it."""
    function = sysfs.function(NVME, above="0000:5d:00.0", class_code=0x010802)
    disk = function / "nvme/nvme0/nvme0n1"
    sysfs.class_device("block", disk, dev="259:0")
    (disk / "holders").mkdir()
    sysfs.class_device("block", disk / "nvme0n1p1", dev="259:1")
    (disk / "nvme0n1p1/holders").mkdir()
    return disk


@pytest.fixture
def nic(sysfs: Sysfs) -> Path:
    function = sysfs.function(PLAIN, class_code=0x020000)
    return sysfs.class_device(
        "net", function / "net/ens1", flags="0x1002", operstate="down"
    )


@pytest.fixture
def gpu(sysfs: Sysfs) -> Path:
    return sysfs.function(PLAIN, class_code=0x030000, boot_vga="0")


def test_an_idle_disk_is_not_used(sysfs, disk):
    assert use(sysfs, NVME) is None


@pytest.mark.parametrize(
    ("number", "name"), [("259:0", "nvme0n1"), ("259:1", "nvme0n1p1")]
)
def test_a_mounted_disk_or_partition_is_used(sysfs, disk, number, name):
    mount(sysfs, number)
    assert use(sysfs, NVME) == f"block device {name} is mounted at /srv"


def test_a_bridge_does_not_answer_for_what_is_behind_it(sysfs, disk):
    sysfs.link(sysfs.devices / "0000:5d:00.0", disk.parents[3])
    (disk.parents[3] / "modalias").write_text(
        "pci:v00008086d00000001sv00000000sd00000000bc06sc04i00\n"
    )
    (disk.parents[3] / "revision").write_text("0x00\n")
    mount(sysfs, "259:0")
    assert use(sysfs, "0000:5d:00.0") is None


def test_a_file_system_with_a_number_of_its_own_is_found_by_its_source(sysfs, disk):
    mount(sysfs, "0:47", source="/dev/nvme0n1p1")
    assert use(sysfs, NVME) == "block device nvme0n1p1 is mounted at /srv"


def test_without_mountinfo_the_source_still_tells(sysfs, disk):
    (sysfs.path / "proc/self/mountinfo").unlink()
    sysfs.put("proc/self/mounts", "/dev/nvme0n1p1 /srv ext4 rw 0 0")
    assert use(sysfs, NVME) == "block device nvme0n1p1 is mounted at /srv"


def test_without_proc_the_uses_are_unknown(sysfs, disk):
    (sysfs.path / "proc/self/mountinfo").unlink()
    with raises(StepReason.REFUSED, match="mountinfo"):
        use(sysfs, NVME)


def test_every_member_of_a_mounted_btrfs_is_used(sysfs, disk):
    (sysfs.path / "sys/fs/btrfs/0e2d/devices/nvme0n1").mkdir(parents=True)
    assert use(sysfs, NVME) == "block device nvme0n1 is part of a mounted btrfs"


@pytest.mark.parametrize("part", [".", "nvme0n1p1"])
def test_a_disk_below_device_mapper_or_md_is_used(sysfs, disk, part):
    dm = sysfs.path / "sys/devices/virtual/block/dm-0"
    sysfs.class_device("block", dm, dev="254:0")
    sysfs.link(disk / part / "holders/dm-0", dm)
    assert "is held by dm-0" in (use(sysfs, NVME) or "")


def test_swap_space_is_used(sysfs, disk):
    sysfs.put(
        "proc/swaps",
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/nvme0n1p1                          partition\t1\t0\t-2",
    )
    assert use(sysfs, NVME) == "block device nvme0n1p1 is swap space"


def test_a_multipath_disk_is_a_use_of_every_function_that_leads_to_it(sysfs):
    for text, controller in ((NVME, 0), (OTHER, 1)):
        path = sysfs.function(text) / f"nvme/nvme{controller}/nvme3c{controller}n1"
        sysfs.class_device("block", path)
    head = sysfs.path / "sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n1"
    sysfs.class_device("block", head, dev="259:4")
    sysfs.class_device("block", head / "nvme3n1p2", dev="259:5")
    sysfs.function(PLAIN)
    mount(sysfs, "259:5")
    host = scan(sysfs.root)
    usage = read_usage(sysfs.root, host.functions, host.netdevs)
    assert usage.get(address(NVME)) == usage.get(address(OTHER))
    assert usage.get(address(NVME)) == "block device nvme3n1p2 is mounted at /srv"
    assert usage.get(address(PLAIN)) is None


def test_an_unreadable_disk_counts_as_used(sysfs, disk):
    (disk / "dev").unlink()
    (disk / "dev").mkdir()
    sysfs.function(PLAIN)
    assert "cannot determine the use" in (use(sysfs, NVME) or "")
    assert use(sysfs, PLAIN) is None


def test_an_interface_that_is_down_is_not_used(sysfs, nic):
    assert use(sysfs, PLAIN) is None


@pytest.mark.parametrize(
    ("attribute", "text"), [("flags", "0x1003"), ("operstate", "up")]
)
def test_an_interface_that_is_up_is_used(sysfs, nic, attribute, text):
    (nic / attribute).write_text(text + "\n")
    assert use(sysfs, PLAIN) == "network interface ens1 is up"


@pytest.mark.parametrize(
    ("link", "sentence"), [("master", "is part of br0"), ("upper_br0", "carries br0")]
)
def test_an_interface_below_another_one_is_used(sysfs, nic, link, sentence):
    sysfs.link(nic / link, "sys/devices/virtual/net/br0")
    assert use(sysfs, PLAIN) == f"network interface ens1 {sentence}"


def test_an_interface_with_strange_flags_counts_as_used(sysfs, nic):
    (nic / "flags").write_text("some\n")
    assert "cannot determine the use" in (use(sysfs, PLAIN) or "")


def test_the_display_that_the_host_booted_with_is_used(sysfs, gpu):
    assert use(sysfs, PLAIN) is None
    (gpu / "boot_vga").write_text("1\n")
    assert "booted" in (use(sysfs, PLAIN) or "")


@pytest.mark.parametrize(
    ("status", "enabled", "used"),
    [
        ("connected", "enabled", True),
        ("connected", "disabled", False),
        ("disconnected", "disabled", False),
    ],
)
def test_a_screen_that_shows_something_is_a_use(sysfs, gpu, status, enabled, used):
    sysfs.class_device("drm", gpu / "drm/card0")
    sysfs.class_device(
        "drm", gpu / "drm/card0/card0-DP-1", status=status, enabled=enabled
    )
    assert (use(sysfs, PLAIN) is not None) is used


@pytest.mark.parametrize(("bind", "used"), [("1", True), ("0", False)])
def test_a_framebuffer_is_used_while_the_console_is_on_it(sysfs, gpu, bind, used):
    sysfs.class_device("graphics", gpu / "graphics/fb0")
    console = sysfs.path / "sys/devices/virtual/vtconsole"
    sysfs.class_device(
        "vtconsole", console / "vtcon0", name="(S) dummy device", bind="1"
    )
    sysfs.class_device(
        "vtconsole", console / "vtcon1", name="(M) frame buffer device", bind=bind
    )
    assert (use(sysfs, PLAIN) is not None) is used


# -- parts of a device that exist on its host driver ----------------------------


def test_a_mediated_device_is_a_use_of_its_parent(sysfs):
    parent = sysfs.function(driver="i915")
    sysfs.function("0000:3b:00.1", driver="i915")
    (parent / MDEV).mkdir()
    sysfs.link(f"sys/bus/mdev/devices/{MDEV}", parent / MDEV)
    assert use(sysfs, PLAIN) == f"it has the mediated device {MDEV}"
    assert use(sysfs, "0000:3b:00.1") is None


def test_a_mediated_device_without_a_pci_parent_is_no_use(sysfs):
    sysfs.function()
    mdev = sysfs.path / "sys/devices/virtual/mtty/mtty" / MDEV
    mdev.mkdir(parents=True)
    sysfs.link(f"sys/bus/mdev/devices/{MDEV}", mdev)
    assert use(sysfs, PLAIN) is None


def virtual_function(sysfs: Sysfs, text: str) -> str:
    """Add a GPU and its VF, which reports a type of vGPU; return the VF's address."""
    sysfs.function(ids=NVIDIA, driver="nvidia")
    sysfs.vf(PLAIN, 0, VF)
    vf = sysfs.devices / VF
    (vf / "modalias").write_text(
        (sysfs.devices / PLAIN / "modalias").read_text(), encoding="ascii"
    )
    (vf / "nvidia").mkdir()
    (vf / "nvidia/current_vgpu_type").write_text(f"{text}\n")
    return VF


@pytest.mark.parametrize(
    ("text", "expected"), [("0", None), ("557", "it is a vGPU of type 557")]
)
def test_a_vgpu_is_a_use_of_its_vf_alone(sysfs, text, expected):
    assert use(sysfs, virtual_function(sysfs, text)) == expected
    assert use(sysfs, PLAIN) is None


@pytest.fixture
def mig(sysfs: Sysfs) -> Path:
    """Add a GPU with MIG; return the directory of its MIG instances."""
    sysfs.function(ids=NVIDIA, driver="nvidia")
    text = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 18\nDevice Minor: \t 3"
    sysfs.put(f"proc/driver/nvidia/gpus/{PLAIN}/information", text)
    directory = sysfs.path / "proc/driver/nvidia/capabilities/gpu3/mig"
    directory.mkdir(parents=True)
    return directory


def test_a_mig_instance_is_a_use(sysfs, mig):
    (mig / "config").touch()
    assert use(sysfs, PLAIN) is None
    (mig / "gi1").mkdir()
    assert use(sysfs, PLAIN) == "it has the MIG instance gi1"
    os.rename(mig.parent, mig.parents[1] / "gpu2")
    assert use(sysfs, PLAIN) is None


def test_a_gpu_that_cannot_be_read_is_not_offered_and_others_are(sysfs, mig):
    """The driver of a GPU that fell off the bus answers with an error."""
    other = "0000:af:00.0"
    sysfs.function(other, ids=NVIDIA, driver="nvidia")
    (mig / "gi1").mkdir()
    information = sysfs.path / f"proc/driver/nvidia/gpus/{PLAIN}/information"
    information.unlink()
    information.mkdir()
    assert "cannot determine" in (use(sysfs, PLAIN) or "")
    assert use(sysfs, other) is None


def test_a_vgpu_type_that_is_no_number_keeps_its_vf_alone(sysfs):
    vf = virtual_function(sysfs, "")
    assert "cannot determine" in (use(sysfs, vf) or "")
    assert use(sysfs, PLAIN) is None


def test_the_real_host_can_be_checked():
    host = scan("/")
    usage = read_usage("/", host.functions, host.netdevs)
    assert set(usage) <= set(host.functions)
    assert all(usage.values())


@pytest.mark.parametrize("node", ["nvme0n1", "nvme0n1p1"])
@pytest.mark.parametrize(
    ("attribute", "text", "client"),
    [
        ("class/block/loop7/loop/backing_file", "{}", "a loop device"),
        ("kernel/config/nvmet/subsystems/a/namespaces/1/device_path", "{}", "an NVMe"),
        (
            "kernel/config/target/core/fileio_0/a/info",
            "Status: ACTIVATED\n        TCM FILEIO ID: 0        File: {}  Size: 9",
            "a SCSI target",
        ),
    ],
)
def test_a_client_inside_the_kernel_without_a_claim(
    sysfs, disk, attribute, text, client, node
):
    assert use(sysfs, NVME) is None
    sysfs.put(f"sys/{attribute}", text.format(f"/dev/{node}"))
    assert str(use(sysfs, NVME)).startswith(f"{node} is open in {client}")


def test_a_target_that_has_the_controller_or_names_the_disk_by_a_link(sysfs, disk):
    sysfs.put("sys/kernel/config/nvmet/subsystems/a/passthru/device_path", "/dev/nvme0")
    assert use(sysfs, NVME) == "nvme0 is open in an NVMe target"
    by_id = Path(sysfs.root, "dev/disk/by-id/a")
    by_id.parent.mkdir(parents=True)
    by_id.symlink_to("../../nvme0n1")
    place = "sys/kernel/config/nvmet/subsystems/a/"
    Path(sysfs.root, place, "passthru/device_path").unlink()
    sysfs.put(f"{place}/namespaces/1/device_path", "/dev/disk/by-id/a")
    assert use(sysfs, NVME) == "nvme0n1 is open in an NVMe target"


@pytest.mark.parametrize("node", ["nvme0n1", "nvme0n1p1"])
def test_a_disk_that_rnbd_server_exports(sysfs, disk, node):
    export = Path(sysfs.root, "sys/class/rnbd-server/ctl/devices/a")
    export.mkdir(parents=True)
    real = os.path.realpath(Path(sysfs.root, "sys/class/block", node))
    (export / "block_dev").symlink_to(real)
    assert str(use(sysfs, NVME)).startswith(f"{node} is open in an RNBD server")


def connect_nvme_over_fibre_channel(sysfs, address: str, name: str, port: str) -> None:
    """Have a function with a port of this name, and a controller through ``port``."""
    host = sysfs.function(address, class_code=0x0C0400) / "host5/fc_host/host5"
    host.mkdir(parents=True)
    (host / "port_name").write_text(f"{name}\n")
    controller = Path(sysfs.root, "sys/devices/virtual/nvme-fabrics/ctl/nvme9")
    controller.mkdir(parents=True)
    text = f"traddr=nn-0x20:pn-0x21,host_traddr=nn-0x22:pn-{port}\n"
    (controller / "address").write_text(text)
    for device, place in (("fc_host/host5", host), ("nvme/nvme9", controller)):
        link = Path(sysfs.root, "sys/class", device)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(place, link.parent))


@pytest.mark.parametrize("port", ["0x10000010", "0X0000000010000010", "0x10000011"])
def test_an_adapter_that_connects_a_controller_of_nvme_over_fibre_channel(sysfs, port):
    connect_nvme_over_fibre_channel(sysfs, NVME, "0x10000010", port)
    used = "NVMe controller nvme9 is connected through it"
    assert use(sysfs, NVME) == (None if port.endswith("11") else used)


def test_a_port_of_fibre_channel_without_a_number_hides_no_other_device(sysfs, disk):
    connect_nvme_over_fibre_channel(sysfs, OTHER, "unknown", "0x10000011")
    assert use(sysfs, NVME) is None
    assert "port_name" in str(use(sysfs, OTHER))


def test_cxl_memory_that_is_a_region_of_the_host(sysfs):
    function = sysfs.function(NVME, class_code=0x050210)
    (function / "mem0").mkdir()
    decoder = Path(sysfs.root, "sys/devices/platform/ACPI0017:00/endpoint2/decoder2.0")
    decoder.mkdir(parents=True)
    (decoder.parent / "uport").symlink_to(os.path.relpath(function / "mem0", decoder))
    (decoder / "region").write_text("\n")
    listing = Path(sysfs.root, "sys/bus/cxl/devices")
    listing.mkdir(parents=True)
    (listing / "decoder2.0").symlink_to(os.path.relpath(decoder, listing))
    assert use(sysfs, NVME) is None
    (decoder / "region").write_text("region0\n")
    assert use(sysfs, NVME) == "the host uses its memory as CXL region0"


def test_a_client_that_cannot_be_read_may_have_any_disk_and_hides_none(sysfs, disk):
    # A read of a directory fails.
    sysfs.put("sys/class/block/loop7/loop/backing_file/a", "")
    assert "nvme0n1 may be open in a loop device: " in str(use(sysfs, NVME))
    sysfs.put("sys/class/block/loop8/loop/backing_file", "/dev/nvme0n1")
    assert use(sysfs, NVME) == "nvme0n1 is open in a loop device"


@pytest.mark.parametrize("path", ["/srv/nvme0n1", "/dev2/nvme0n1", "/srv/nvme"])
def test_a_file_of_the_name_of_a_disk_is_none(sysfs, disk, path):
    sysfs.put("sys/class/block/loop7/loop/backing_file", path)
    assert use(sysfs, NVME) is None
