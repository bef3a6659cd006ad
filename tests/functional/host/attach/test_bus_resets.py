# SPDX-License-Identifier: Apache-2.0

"""A card without any reset of its own is reset with its bus, as VFIO does it.

vfio_pci_dev_set_resettable() and vfio_pci_dev_set_hot_reset() in
drivers/vfio/pci/vfio_pci_core.c.
"""

from __future__ import annotations

import dataclasses
import errno

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts
from tests.functional.host.operator_commands import release

PORT, GPU, AUDIO = "0000:16:00.0", "0000:17:00.0", "0000:17:00.1"
NAMED = [f'{{"address": "{GPU}"}}']
TAGGED = [f'{{"address": "{GPU}", "allow_no_reset": true}}']


def card(*, parent: str = PORT, **changes: object) -> tuple[FunctionSpec, ...]:
    """Return a GPU and its audio function, neither with a reset that works.

    The kernel has found the GPU first, alone on the bus, and lists a reset of the bus.
    """
    first, second = hosts.gpu("0000:17", parent=parent)
    methods = ("bus",) if parent else ()
    return (
        dataclasses.replace(first, reset_methods=methods, **changes),  # type: ignore[arg-type]
        dataclasses.replace(second, reset_methods=(), **changes),  # type: ignore[arg-type]
    )


def host(*functions: FunctionSpec) -> HostSpec:
    return HostSpec((hosts.root_port(PORT), *functions))


def beside_another_group() -> HostSpec:
    """Return a host with a function of another group on the bus of the card."""
    fpga = hosts.fpga("0000:17")
    return host(*card(), dataclasses.replace(fpga, address="0000:17:01.0", parent=PORT))


def resets(bench: TestHost) -> list[str]:
    """Return the functions whose buses were reset."""
    return [
        each.text
        for each in bench.kernel.writes()
        if each.path.startswith("dev/vfio/") and each.outcome == "done"
    ]


@pytest.mark.parametrize("iommufd", [False, True], ids=["groups", "iommufd alone"])
def test_a_card_is_reset_with_its_bus_before_and_after_its_guest(make_bench, iommufd):
    spec = dataclasses.replace(
        host(*card()), vfio_cdev=iommufd, vfio_groups=not iommufd
    )
    bench = make_bench(spec, device_spec=NAMED)
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    assert resets(bench) == [GPU]
    bench.kernel.hold(GPU)
    bench.kernel.let_go(GPU)
    assert bench.unplug(1) == 1
    assert resets(bench) == [GPU, GPU]
    last = [each.path for each in bench.kernel.writes()]
    unbound = last.index(f"sys/bus/pci/devices/{GPU}/driver/unbind", len(last) // 2)
    group = next(each for each in reversed(last) if each.startswith("dev/vfio/"))
    assert len(last) - 1 - last[::-1].index(group) < unbound
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(HostSpec(card(parent="")), id="a root bus has no reset"),
        pytest.param(
            host(dataclasses.replace(card()[0], reset_methods=())),
            id="a function alone would have the method",
        ),
        pytest.param(
            beside_another_group(),
            id="the bus has a function of another group",
        ),
    ],
)
def test_a_card_whose_bus_vfio_cannot_reset_is_offered_by_tag_alone(make_bench, spec):
    bench = make_bench(spec, device_spec=NAMED)
    assert bench.rejected(GPU).reason is RejectReason.NO_RESET
    bench.restart(device_spec=TAGGED)
    bench.plug(1, GPU)
    assert bench.unplug(1) == 1
    assert resets(bench) == []


@pytest.mark.parametrize(
    "functions",
    [
        pytest.param(hosts.gpu("0000:17", parent=PORT), id="with a reset of its own"),
        pytest.param(card()[:1], id="alone on its bus"),
    ],
)
def test_a_card_with_another_reset_is_not_reset_with_its_bus(make_bench, functions):
    bench = make_bench(host(*functions), device_spec=NAMED)
    bench.plug(1, GPU)
    assert bench.unplug(1) == 1
    assert resets(bench) == []
    assert f"sys/bus/pci/devices/{GPU}/reset" in {
        each.path for each in bench.kernel.writes()
    }


@pytest.mark.parametrize("named", [NAMED, TAGGED], ids=["named", "allow_no_reset"])
def test_a_bus_that_the_kernel_does_not_reset_fails_the_plug_and_changes_nothing(
    make_bench, named
):
    bench = make_bench(host(*card(no_bus_reset=True)), device_spec=named)
    before = bench.kernel.snapshot()
    with pytest.raises(exception.HostStepFailed, match="reset of its bus: ENODEV"):
        bench.plug(1, GPU)
    assert bench.kernel.snapshot() == before
    assert bench.plugged(1) == []


@pytest.mark.parametrize("driver", [None, "snd_hda_intel"])
def test_a_function_that_left_vfio_by_hand_keeps_the_card_unreset(make_bench, driver):
    """The reset has to happen before the driver of the host may see the memory."""
    bench = make_bench(host(*card()), device_spec=NAMED)
    bench.plug(1, GPU)
    path = f"sys/bus/pci/devices/{AUDIO}/driver/unbind"
    bench.kernel.write(bench.kernel.path(path), AUDIO)
    if driver is not None:
        bench.bind(AUDIO, driver)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert bench.drivers(GPU) == ["vfio-pci"]
    assert bench.lease_state() is LeaseState.QUARANTINED
    bench.bind(AUDIO, "vfio-pci")
    release(bench, GPU)
    assert resets(bench) == [GPU, GPU]
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]


@pytest.mark.parametrize("error", [errno.ETIMEDOUT, errno.ENOENT])
def test_a_failed_reset_keeps_the_card_from_the_next_guest(make_bench, error):
    """A missing node is no missing reset."""
    bench = make_bench(host(*card()), device_spec=NAMED)
    bench.plug(1, GPU)
    bench.kernel.fail(GPU, "hot_reset", error)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert bench.lease_state() is not LeaseState.HELD
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(2, GPU)


@pytest.mark.parametrize("address", [GPU, AUDIO])
def test_a_release_that_was_interrupted_resets_once_more_or_has_done_so(
    make_bench, address
):
    bench = make_bench(host(*card()), device_spec=NAMED)
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.fail(address, "drivers_probe", errno.ENOMEM)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert GPU in resets(bench)[1:]
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_the_reset_waits_until_root_has_the_node_again(make_bench):
    """libvirt gives it to QEMU's user, and back after the guest."""
    bench = make_bench(host(*card()), device_spec=NAMED)
    before = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.chown(GPU)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert bench.lease_state() is LeaseState.RELEASING
    bench.kernel.chown(GPU, back=True)
    assert bench.unplug(1) == 1
    assert resets(bench) == [GPU, GPU]
    assert bench.kernel.snapshot() == before


def test_a_reset_that_the_operator_has_switched_off_is_missed(make_bench):
    bench = make_bench(host(*hosts.gpu("0000:17", parent="")), device_spec=NAMED)
    bench.plug(1, GPU)
    path = f"sys/bus/pci/devices/{GPU}/reset_method"
    bench.kernel.write(bench.kernel.path(path), "\n")
    with pytest.raises(exception.DevicesUnreleased, match="ENOTTY"):
        bench.unplug(1)
    assert bench.drivers(GPU) == ["vfio-pci"]
