# SPDX-License-Identifier: Apache-2.0

"""The plugin on a simulated host."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from acme_accelerator import hardware, simulation
from acme_accelerator.plugin import AcmePlugin
from os_acc.plugins import base
from os_acc.testing import HostSpec, TestHost

PF, VF, OTHER_VF = "0000:5e:00.0", "0000:5e:00.1", "0000:5e:00.2"
GZIP = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
#: Every function; two VFs of each PF.
EVERYTHING = '{"address": "*:*:*.*", "num_vfs": 2}'


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., TestHost]]:
    with ExitStack() as stack:

        def make(**options: Any) -> TestHost:
            spec = HostSpec((simulation.card(PF),))
            settings = {"enabled_plugins": ["acme"], "device_spec": [EVERYTHING]}
            host = TestHost(tmp_path, spec, **settings, **options)
            simulation.set_functions(host.root, PF, simulation.POWER_ON)
            return stack.enter_context(host)

        yield make


@pytest.fixture
def host(make_host: Callable[..., TestHost]) -> TestHost:
    return make_host()


def functions_of(host: TestHost) -> tuple[str, ...]:
    return hardware.read_functions(str(host.root), PF)


def has_marker(host: TestHost, address: str) -> bool:
    return os.path.exists(hardware.marker(str(host.root), address))


def upload(host: TestHost) -> str:
    return host.images.put_gbs("gzip", GZIP, interface=simulation.INTERFACE)


def test_a_card_is_one_provider_of_its_vfs(host: TestHost) -> None:
    device = host.provider(PF).device
    assert device.plugin == "acme"
    assert [str(each.address) for each in device.handles] == [VF, OTHER_VF]
    assert device.resource_class == "CUSTOM_ACCELERATOR_FPGA"
    assert "CUSTOM_ACME_F2" in device.traits
    assert device.region is not None
    assert device.region.function_id == simulation.POWER_ON


def test_the_pf_stays_with_the_host(make_host: Callable[..., TestHost]) -> None:
    host = make_host()
    host.restart(device_spec=['{"address": "*:*:*.*"}'])
    rejected = host.rejected(PF)
    assert rejected.reason is base.RejectReason.MANAGEMENT


def test_a_guest_gets_a_vf_and_gives_it_back(host: TestHost) -> None:
    host.provider(PF)
    before = host.drivers(PF, VF, OTHER_VF)
    (entry,) = host.plug(1, PF)
    assert entry["pci_id"] == VF
    assert host.drivers(VF) == ["vfio-pci"]
    assert has_marker(host, VF)
    assert host.unplug(1) == 1
    assert host.drivers(PF, VF, OTHER_VF) == before
    assert not has_marker(host, VF)


def test_a_bitstream_is_programmed_and_shared(host: TestHost) -> None:
    upload(host)
    host.plug(1, PF, function_id=GZIP)
    assert functions_of(host) == (GZIP,)
    (entry,) = host.plug(2, PF, function_id=GZIP)
    assert entry["pci_id"] == OTHER_VF
    assert host.unplug(1) == host.unplug(2) == 1
    assert functions_of(host) == (GZIP,)


def test_each_vf_reaches_a_function_of_its_own(host: TestHost) -> None:
    host.images.put_gbs(
        "both", GZIP, declared=f"{GZIP},{CRYPTO}", interface=simulation.INTERFACE
    )
    host.plug(1, PF, function_id=GZIP)
    assert functions_of(host) == (GZIP, CRYPTO)
    region = host.provider(PF).device.region
    assert region is not None
    reached = [(str(address), function) for address, function in region.functions]
    assert reached == [(VF, GZIP), (OTHER_VF, CRYPTO)]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([GZIP], [GZIP, GZIP, GZIP]),
        ([GZIP, CRYPTO], [GZIP, CRYPTO, GZIP]),
    ],
)
def test_the_vfs_reach_the_functions_in_turn(
    functions: list[str], expected: list[str]
) -> None:
    assert [hardware.reached(functions, vf) for vf in range(3)] == expected


def test_a_card_without_a_node_is_not_programmed(host: TestHost) -> None:
    upload(host)
    host.provider(PF)
    os.unlink(hardware.node(str(host.root), PF))
    with pytest.raises(base.DeviceGone):
        host.plug(1, PF, function_id=GZIP)
    assert host.plugged(1) == []
    assert not has_marker(host, VF)


@pytest.mark.parametrize(
    ("number", "expected", "is_known"),
    [
        (errno.ENXIO, base.DeviceGone, True),
        (errno.ENODEV, base.DeviceGone, True),
        (errno.EBUSY, base.DeviceInUse, True),
        (errno.EACCES, base.HostStepFailed, False),
    ],
)
def test_a_node_that_cannot_be_opened_states_the_cause(
    host: TestHost,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[base.OsAccError],
    is_known: bool,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    upload(host)
    monkeypatch.setattr(hardware, "open_node", fail)
    with pytest.raises(base.OsAccError) as raised:
        host.plug(1, PF, function_id=GZIP)
    assert type(raised.value) is expected
    assert getattr(raised.value, "errno", number) == number
    assert host.plugged(1) == []
    assert functions_of(host) == (simulation.POWER_ON,)
    if is_known:
        # Nothing was written: a guest gets the region as it is.
        host.plug(1, PF)


def test_a_write_ends_at_the_deadline(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = hardware.write_functions

    def late(
        node: int, functions: Sequence[str], data: bytes, seconds_left: object
    ) -> None:
        assert callable(seconds_left)
        assert seconds_left() > 0
        write(node, functions, data, lambda: 0.0)

    upload(host)
    monkeypatch.setattr(hardware, "write_functions", late)
    with pytest.raises(base.ProgrammingFailed, match="deadline") as raised:
        host.plug(1, PF, function_id=GZIP)
    assert raised.value.errno == errno.ETIMEDOUT
    assert functions_of(host) == (simulation.POWER_ON,)


def test_the_deadline_is_checked_between_chunks(tmp_path: Path) -> None:
    left = iter((2.0, 1.0, 0.0))
    file = os.open(tmp_path / "node", os.O_WRONLY | os.O_CREAT)
    try:
        data = bytes(3 * hardware.CHUNK)
        with pytest.raises(TimeoutError):
            hardware.write_functions(file, [GZIP], data, left.__next__)
        assert os.fstat(file).st_size == 2 * hardware.CHUNK
    finally:
        os.close(file)


def test_a_card_with_a_malformed_attribute_has_no_readable_region(
    host: TestHost,
) -> None:
    region = host.provider(PF).device.region
    assert region is not None
    conf: Any = None  # read_region() reads no option.
    plugin = AcmePlugin("acme", conf, str(host.root))
    assert plugin.read_region(region) == region
    simulation.set_attribute(host.root, PF, "interface_id", "none")
    assert plugin.read_region(region) is None


def test_a_write_that_fails_leaves_the_region_unverified(
    host: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    upload(host)
    monkeypatch.setattr(hardware, "write_functions", fail)
    with pytest.raises(base.ProgrammingFailed, match="did not take image"):
        host.plug(1, PF, function_id=GZIP)
    monkeypatch.undo()
    host.plug(1, PF, function_id=GZIP)
    assert functions_of(host) == (GZIP,)


def test_an_xclbin_is_no_bitstream_of_this_card(host: TestHost) -> None:
    host.images.put_xclbin("gzip", GZIP, interface=simulation.INTERFACE)
    with pytest.raises(base.BitstreamError):
        host.plug(1, PF, function_id=GZIP)
    assert functions_of(host) == (simulation.POWER_ON,)


def test_a_card_with_an_old_firmware_is_rejected(
    make_host: Callable[..., TestHost],
) -> None:
    host = make_host(groups={"os_acc_acme": {"minimum_firmware": 13}})
    rejected = host.rejected(VF)
    assert rejected.reason is base.RejectReason.UNSUPPORTED
    assert "firmware is 12" in rejected.detail


def test_a_card_that_cannot_be_read_is_rejected(host: TestHost) -> None:
    simulation.set_attribute(host.root, PF, "firmware", "none")
    assert host.rejected(VF).reason is base.RejectReason.UNREADABLE


def test_a_hot_card_goes_to_no_guest_until_it_has_cooled_down(host: TestHost) -> None:
    simulation.set_attribute(host.root, PF, "temperature", "101")
    faults = {each.fault for each in host.provider(PF).device.handles}
    assert faults == {"its card has 101 degrees"}
    with pytest.raises(base.OsAccError):
        host.plug(1, PF)
    simulation.set_attribute(host.root, PF, "temperature", "60")
    host.plug(1, PF)
