# SPDX-License-Identifier: Apache-2.0

import ctypes
import errno
import glob
import os
import struct
import uuid

import pytest

from os_acc.host.dfl import DflCard, read_card
from os_acc.objects.pci import PciAddress
from os_acc.testing import FakeKernel, hosts
from os_acc.testing.dfl import NOTHING, payload
from os_acc.testing.hosts import DFL_FUNCTION, DFL_INTERFACE
from tests.unit.testing.conftest import end, end_of, in_child, start

CARD, PORTED, FIXED, SILENT = (
    "0000:3b:00.0",
    "0000:af:00.0",
    "0000:b1:00.0",
    "0000:d8:00.0",
)
OTHER = "10000000-2000-3000-4000-500000000000"
PORT_PR, PORT_RELEASE, PORT_ASSIGN = 0xB680, 0x4004B681, 0x4004B682


@pytest.fixture
def kernel(tmp_path) -> FakeKernel:
    return FakeKernel.build(tmp_path, hosts.fpga_host())


def card(kernel: FakeKernel, address: str = CARD) -> DflCard:
    found = read_card(kernel.root, PciAddress.parse(address))
    assert found is not None
    return found


def shown(kernel: FakeKernel, pattern: str, address: str = CARD) -> list[str]:
    """Return paths below the region of a card, sorted."""
    place = kernel.path("sys/bus/pci/devices", address, "fpga_region")
    return sorted(glob.glob(f"{place}/*/{pattern}"))


def names(kernel: FakeKernel, pattern: str, address: str = CARD) -> list[str]:
    return [os.path.basename(path) for path in shown(kernel, pattern, address)]


def manager_state(kernel: FakeKernel) -> str:
    (path,) = shown(kernel, "dfl-fme.*/dfl-fme-mgr.*/fpga_manager/*/state")
    return kernel.read(path).strip()


def opened(kernel: FakeKernel, node: str) -> int:
    where = f"sys/bus/platform/devices/{node}/dev"
    device = kernel.read(kernel.path(where)).strip()
    return kernel.open_exclusive(kernel.path("dev", node), device)


def ioctl(kernel: FakeKernel, node: str, request: int, argument: bytes) -> None:
    fd = opened(kernel, node)
    try:
        kernel.ioctl(fd, request, argument)
    finally:
        os.close(fd)


def program(
    kernel: FakeKernel,
    data: bytes,
    *,
    node: str = "dfl-fme.0",
    number: int = 0,
    flags: int = 0,
    argsz: int = 24,
) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    place = ctypes.addressof(buffer)
    argument = struct.pack("=IIIIQ", argsz, flags, number, len(data), place)
    ioctl(kernel, node, PORT_PR, argument)


def move(kernel: FakeKernel, request: int, number: int) -> None:
    (fme,) = names(kernel, "dfl-fme.*", PORTED)
    ioctl(kernel, fme, request, struct.pack("=i", number))


def refusal(call, *args, **kwargs) -> int | None:
    with pytest.raises(OSError, match="Errno") as caught:
        call(*args, **kwargs)
    return caught.value.errno


def functions(kernel: FakeKernel, address: str = CARD) -> list[str | None]:
    return [port.function_id for port in card(kernel, address).ports]


# -- attributes of cards ------------------------------------------------------


def test_every_kind_of_card_is_shown_as_the_kernel_shows_it(kernel):
    whole = card(kernel)
    assert names(kernel, "dfl-fme.*") == ["dfl-fme.0"]
    assert (whole.manager, manager_state(kernel)) == ("fpga0", "unknown")
    assert whole.interface_id == DFL_INTERFACE
    assert functions(kernel) == [DFL_FUNCTION]
    assert names(kernel, "dfl-port.*", PORTED) == ["dfl-port.2", "dfl-port.3"]
    assert card(kernel, FIXED).manager is None
    assert card(kernel, SILENT).manager is not None
    assert card(kernel, SILENT).interface_id is None


def test_another_driver_takes_nodes_and_devices_away(kernel, sysfs):
    sysfs.to_vfio(CARD)
    assert read_card(kernel.root, PciAddress.parse(CARD)) is None
    assert not os.path.exists(kernel.path("dev/dfl-fme.0"))
    assert not os.path.exists(kernel.path("dev/dfl-port.0"))
    for kind in ("fpga_region", "fpga_manager", "fpga_bridge"):
        place = kernel.path("sys/class", kind)
        assert all(os.path.exists(f"{place}/{name}") for name in os.listdir(place))


def test_a_card_that_comes_back_gets_free_numbers_and_has_kept_its_function(
    kernel, sysfs
):
    program(kernel, payload(OTHER))
    assert manager_state(kernel) == "operating"
    sysfs.to_vfio(CARD)
    sysfs.set(CARD, "driver_override", "\n")
    sysfs.unbind(CARD)
    sysfs.probe(CARD)
    assert names(kernel, "dfl-fme.*") == ["dfl-fme.0"]
    assert functions(kernel) == [OTHER]
    # The driver's in-memory state is new.
    assert manager_state(kernel) == "unknown"


def test_a_reboot_brings_back_what_the_flash_holds(kernel):
    program(kernel, payload(OTHER))
    kernel.reboot()
    assert functions(kernel) == [DFL_FUNCTION]
    assert kernel.held_by_hardware(CARD) == (DFL_FUNCTION,)


def test_a_card_that_is_pulled_out_and_put_back_is_as_new(kernel):
    program(kernel, payload(OTHER))
    spec = kernel.hot_unplug(CARD)
    assert not os.path.exists(kernel.path("dev/dfl-fme.0"))
    with pytest.raises(FileNotFoundError):
        kernel.held_by_hardware(CARD)
    kernel.hot_plug(spec)
    assert functions(kernel) == [DFL_FUNCTION]


# -- programming --------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"number": 1}, errno.EINVAL),
        ({"flags": 1}, errno.EINVAL),
        ({"argsz": 23}, errno.EINVAL),
        ({"node": "dfl-port.0"}, errno.EINVAL),
        ({"node": "dfl-fme.3"}, errno.EINVAL),
    ],
    ids=["port", "flags", "size", "no engine", "no reconfiguration"],
)
def test_the_kernel_refuses_what_it_cannot_do(kernel, given, error):
    assert refusal(program, kernel, payload(OTHER), **given) == error
    assert functions(kernel) == [DFL_FUNCTION]


@pytest.mark.parametrize("error", [errno.EIO, errno.ETIMEDOUT])
def test_after_a_failure_the_port_stays_in_reset_until_the_driver_begins_anew(
    kernel, sysfs, error
):
    reported = ("reconfig CRC error",) if error == errno.EIO else ()
    kernel.fail_programming(CARD, *reported, error=error)
    assert refusal(program, kernel, payload(OTHER)) == error
    status = kernel.path("sys/class/fpga_manager/fpga0/status")
    assert kernel.read(status).split("\n")[:-1] == list(reported)
    assert manager_state(kernel) == "write complete error"
    assert kernel.held_by_hardware(CARD) == (NOTHING,)
    # A success enables the port once, but the port was disabled twice.
    program(kernel, payload(OTHER))
    afu_id = kernel.path("sys/bus/platform/devices/dfl-port.0/afu_id")
    assert refusal(kernel.read, afu_id) == errno.EBUSY
    assert functions(kernel) == [None]
    sysfs.unbind(CARD)
    sysfs.probe(CARD)
    assert functions(kernel) == [OTHER]


def test_a_refusal_before_the_hardware_begins_changes_nothing(kernel):
    kernel.fail(CARD, "program", errno.ENOMEM)
    assert refusal(program, kernel, payload(OTHER)) == errno.ENOMEM
    assert functions(kernel) == [DFL_FUNCTION]


def test_while_it_is_programmed_a_port_is_in_reset(kernel):
    kernel.hang(CARD, "program")
    pid = start(lambda: program(kernel, payload(OTHER)))
    kernel.wait_until_blocked()
    afu_id = kernel.path("sys/bus/platform/devices/dfl-port.0/afu_id")
    assert refusal(kernel.read, afu_id) == errno.EBUSY
    assert functions(kernel) == [None]
    assert manager_state(kernel) == "write complete"
    kernel.lift()
    assert end_of(pid) == 0
    assert kernel.read(afu_id).strip() == uuid.UUID(OTHER).hex
    assert functions(kernel) == [OTHER]


def test_a_port_that_is_in_use_still_tells_its_function(kernel):
    """afu_id_show() checks whether the port is disabled, not whether it is open."""
    kernel.open_node("dfl-port.0")
    kernel.open_node("dfl-fme.0")
    assert functions(kernel) == [DFL_FUNCTION]


def test_a_driver_that_is_to_leave_waits_for_the_end(kernel, sysfs):
    kernel.hang(CARD, "program")
    programming = start(lambda: program(kernel, payload(OTHER)))
    kernel.wait_until_blocked()
    leaving = start(lambda: sysfs.unbind(CARD))
    assert os.waitpid(leaving, os.WNOHANG) == (0, 0)
    assert kernel.state(CARD).driver == "dfl-pci"
    kernel.lift()
    assert end_of(programming) == 0
    assert end_of(leaving) == 0
    assert [write.outcome for write in kernel.writes()] == ["blocked", "done", "done"]
    sysfs.probe(CARD)
    assert functions(kernel) == [OTHER]


@pytest.mark.parametrize("after", [False, True])
def test_a_process_can_die_before_or_after(kernel, after):
    kernel.kill(CARD, "program", after=after)
    assert in_child(lambda: program(kernel, payload(OTHER))) == -9
    assert functions(kernel) == [OTHER if after else DFL_FUNCTION]


# -- open nodes ---------------------------------------------------------------


def test_what_is_open_cannot_be_opened_exclusively(kernel):
    kernel.open_node("dfl-port.0", 77, "fpgadiag")
    assert refusal(opened, kernel, "dfl-port.0") == errno.EBUSY
    assert os.readlink(kernel.path("proc/77/fd/20")) == "/dev/dfl-port.0"
    kernel.close_node("dfl-port.0")
    assert not os.path.exists(kernel.path("proc/77"))
    os.close(opened(kernel, "dfl-port.0"))


def test_an_exclusive_open_ends_with_its_process(kernel):
    def hold() -> None:
        opened(kernel, "dfl-fme.0")
        kernel.hang(PORTED, "program")
        program(kernel, payload(OTHER), node="dfl-fme.2")

    pid = start(hold)
    kernel.wait_until_blocked()
    assert refusal(opened, kernel, "dfl-fme.0") == errno.EBUSY
    end(pid)
    os.close(opened(kernel, "dfl-fme.0"))


def test_a_node_is_known_by_its_device_number(kernel):
    path = kernel.path("dev/dfl-port.0")
    assert refusal(kernel.open_exclusive, path, "1:3") == errno.ENXIO
    path = kernel.path("dev/dfl-port.99")
    assert refusal(kernel.open_exclusive, path, "1:3") == errno.ENOENT


# -- ports and VFs ------------------------------------------------------------


def test_a_released_port_leaves_the_host_and_keeps_its_name(kernel):
    move(kernel, PORT_RELEASE, 0)
    assert [port.number for port in card(kernel, PORTED).ports] == [1]
    assert not os.path.exists(kernel.path("dev/dfl-port.2"))
    move(kernel, PORT_ASSIGN, 0)
    assert names(kernel, "dfl-port.*", PORTED) == ["dfl-port.2", "dfl-port.3"]
    assert functions(kernel, PORTED) == [DFL_FUNCTION, DFL_FUNCTION]


def test_a_port_is_released_and_assigned_once(kernel):
    assert refusal(move, kernel, PORT_ASSIGN, 0) == errno.EBUSY
    move(kernel, PORT_RELEASE, 0)
    assert refusal(move, kernel, PORT_RELEASE, 0) == errno.EBUSY
    assert refusal(move, kernel, PORT_RELEASE, 2) == errno.ENODEV


def test_a_port_that_is_open_is_not_released(kernel):
    kernel.open_node("dfl-port.2")
    assert refusal(move, kernel, PORT_RELEASE, 0) == errno.EBUSY
    kernel.close_node("dfl-port.2")
    fd = opened(kernel, "dfl-port.2")
    assert refusal(move, kernel, PORT_RELEASE, 0) == errno.EBUSY
    os.close(fd)
    move(kernel, PORT_RELEASE, 0)


@pytest.mark.parametrize(("released", "wanted"), [(0, 1), (1, 2), (2, 1)])
def test_as_many_vfs_as_released_ports_and_no_others(kernel, sysfs, released, wanted):
    for number in range(released):
        move(kernel, PORT_RELEASE, number)
    assert refusal(sysfs.set, PORTED, "sriov_numvfs", str(wanted)) == errno.EINVAL


def test_vfs_that_go_leave_their_ports_released(kernel, sysfs):
    for number in (0, 1):
        move(kernel, PORT_RELEASE, number)
    sysfs.set(PORTED, "sriov_numvfs", "2")
    sysfs.set(PORTED, "sriov_numvfs", "0")
    assert card(kernel, PORTED).ports == ()
    # Rebinding the driver restores the ports.
    sysfs.unbind(PORTED)
    sysfs.probe(PORTED)
    assert len(card(kernel, PORTED).ports) == 2
