# SPDX-License-Identifier: Apache-2.0

"""Access to the real kernel opens only the intended files and nodes."""

import errno
import os
import struct
import termios

import pytest

from os_acc.privsep.kernel import Kernel

LEASE = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


@pytest.fixture
def real(tmp_path) -> Kernel:
    """Return the code for the real kernel, on a directory instead of sysfs."""
    kernel = Kernel()
    kernel.root = str(tmp_path)
    os.makedirs(tmp_path / "sys/bus")
    os.makedirs(tmp_path / "dev/vfio")
    return kernel


def test_an_attribute_is_written_as_it_is(real, tmp_path):
    (tmp_path / "sys/attribute").write_text("....")
    real.write(real.path("sys", "attribute"), "12")
    assert (tmp_path / "sys/attribute").read_text() == "12.."


def test_no_attribute_is_ever_made(real, tmp_path):
    with pytest.raises(FileNotFoundError):
        real.write(real.path("sys/missing"), "1")
    assert os.listdir(tmp_path / "sys") == ["bus"]


def test_links_are_not_followed(real, tmp_path):
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", tmp_path / "sys/link")
    for action in (
        lambda: real.write(real.path("sys/link"), "1"),
        lambda: real.read(real.path("sys/link")),
    ):
        with pytest.raises(OSError, match="link") as caught:
            action()
        assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_read_that_fails_says_which(real):
    """read(2) names no file, for example on an attribute of a dead device."""
    with pytest.raises(IsADirectoryError) as caught:
        real.read(real.path("sys/bus"))
    assert caught.value.filename == real.path("sys/bus")


def test_what_is_not_of_sysfs_is_not_written(real, tmp_path):
    """Every sysfs attribute has the device number of sysfs."""
    elsewhere = "/dev/null"
    assert os.stat(elsewhere).st_dev != os.stat(tmp_path).st_dev
    with pytest.raises(OSError, match="not a sysfs attribute") as caught:
        real.write(elsewhere, "1")
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == elsewhere


@pytest.mark.parametrize("exists", [True, False])
def test_a_group_is_probed_by_opening_its_node(real, tmp_path, exists):
    if exists:
        (tmp_path / "dev/vfio/7").touch()
    assert real.probe_vfio_group(7) == (0 if exists else errno.ENOENT)


def test_a_device_without_a_node_is_bound_to_no_iommufd(real, tmp_path):
    device = "0000:3b:00.0"
    assert real.probe_vfio_device(device) == errno.ENOENT
    place = tmp_path / "sys/bus/pci/devices" / device / "vfio-dev/vfio3"
    place.mkdir(parents=True)
    # CONFIG_VFIO_DEVICE_CDEV is off.
    assert real.probe_vfio_device(device) == errno.ENOENT
    (place / "dev").write_text("511:3\n")
    assert real.probe_vfio_device(device) == errno.ENOENT


def test_a_file_that_is_not_the_node_of_a_device_is_not_opened(real, tmp_path):
    place = tmp_path / "sys/bus/mdev/devices" / LEASE / "vfio-dev/vfio3"
    place.mkdir(parents=True)
    (place / "dev").write_text("511:3\n")
    (tmp_path / "dev/vfio/devices").mkdir()
    (tmp_path / "dev/vfio/devices/vfio3").touch()
    assert real.probe_vfio_device(LEASE) == errno.ENXIO


def number_of(path: str) -> str:
    device = os.stat(path).st_rdev
    return f"{os.major(device)}:{os.minor(device)}"


def test_a_node_is_opened_if_it_is_the_one_that_sysfs_means():
    fd = Kernel().open_exclusive("/dev/null", number_of("/dev/null"))
    try:
        assert os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev
        assert os.write(fd, b"taken") == 5
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_the_node_of_another_device_is_not_opened():
    with pytest.raises(OSError, match="/dev/null") as caught:
        Kernel().open_exclusive("/dev/null", number_of("/dev/zero"))
    assert caught.value.errno == errno.ENXIO


@pytest.mark.parametrize("make", ["file", "fifo", "link"])
def test_what_is_no_node_is_not_opened(tmp_path, make):
    path = tmp_path / "node"
    if make == "file":
        path.write_text("kept")
    elif make == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match="node") as caught:
        Kernel().open_exclusive(str(path), number_of("/dev/null"))
    assert caught.value.errno == errno.ENXIO


def test_an_ioctl_reaches_its_driver_with_its_argument():
    readable, writable = os.pipe()
    try:
        Kernel().ioctl(readable, termios.FIONREAD, struct.pack("i", 0))
        with pytest.raises(OSError, match="ioctl") as caught:
            Kernel().ioctl(readable, 0xB680, bytes(24))
        assert caught.value.errno == errno.ENOTTY
    finally:
        os.close(readable)
        os.close(writable)
