# SPDX-License-Identifier: Apache-2.0

"""A device that two host drivers match returns to its prior driver.

The other driver is registered first, so the bus prefers it in every plain probe.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep import privileged_conf
from os_acc.testing import (
    DriverSpec,
    FakeKernel,
    HostSpec,
    TestHost,
    drivers,
    hosts,
    instance,
)
from os_acc.testing.tree import Tree
from tests.expected_errors import raises
from tests.functional.host.operator_commands import release
from tests.unit.fpga import CARD, GZIP, held, upload
from tests.unit.rival_driver import prefer

GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
VFIO, OURS, THIRD = "vfio-pci", "nouveau", "nvidia"


@pytest.fixture(params=[False, True], ids=["any caller", "root's configuration"])
def limit(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that names devices in root's configuration, if there is one."""

    def limit(bench: TestHost, *addresses: str) -> None:
        if request.param:
            path = Path(bench.root, *privileged_conf.PATH)
            path.parent.mkdir(parents=True, exist_ok=True)
            named = [f'device_spec = {{"address": "{each}"}}' for each in addresses]
            state = f"state_path = {bench.state_path}"
            path.write_text("\n".join(["[os_acc]", *named, state, ""]))

    return limit


@pytest.fixture
def contested(
    make_bench: Callable[..., TestHost], limit: Callable[..., None]
) -> TestHost:
    """Build a host with a GPU and an FPGA that the third driver matches, too."""
    display, audio = hosts.gpu("0000:17")
    card = hosts.fpga("0000:5e")
    third = DriverSpec(THIRD, (display.ids, card.ids))
    bench = make_bench(HostSpec((display, audio, card), drivers=(third,)))
    limit(bench, GPU, FPGA)
    return bench


def bind(bench: TestHost, address: str, driver: str, override: str = "") -> None:
    """Bind a device by hand, and leave this override behind."""
    bench.bind(address, "")
    if driver:
        bench.bind(address, driver)
    device = bench.kernel.path("sys/bus/pci/devices", address)
    bench.kernel.write(f"{device}/driver_override", override or "\n")


def since(kernel: FakeKernel, address: str, before: tuple[str, ...]) -> tuple[str, ...]:
    """Return the drivers that have taken a device since then."""
    return kernel.drivers(address)[len(before) :]


def test_the_other_driver_wins_a_plain_probe(contested):
    assert contested.drivers(GPU, FPGA) == [THIRD, THIRD]
    contested.bind(GPU, "")
    contested.kernel.write(contested.kernel.path("sys/bus/pci/drivers_probe"), GPU)
    assert contested.drivers(GPU) == [THIRD]


@pytest.mark.parametrize(
    ("address", "driver", "override"),
    [
        pytest.param(GPU, OURS, "", id="no override"),
        pytest.param(GPU, OURS, OURS, id="its override"),
        pytest.param(GPU, OURS, "reserved-by-hand", id="another override"),
        pytest.param(FPGA, "", "", id="no driver"),
        pytest.param(FPGA, "i6300ESB timer", "", id="a name with a space"),
        pytest.param(FPGA, "a:b+c.d_e-f", "", id="a name with signs"),
    ],
)
def test_an_unplug_binds_the_prior_driver_and_no_other(
    contested, address, driver, override
):
    if driver not in ("", OURS):
        with Tree(contested.root).transaction() as tree:
            drivers.register(tree, DriverSpec(driver))
    bind(contested, address, driver, override)
    before, had = contested.kernel.snapshot(), contested.kernel.drivers(address)
    contested.plug(1, address)
    assert contested.unplug(1) == 1
    taken = (VFIO, driver) if driver else (VFIO,)
    assert since(contested.kernel, address, had) == taken
    assert contested.kernel.snapshot() == before


def test_a_device_that_was_bound_to_vfio_stays_there(make_bench):
    card = hosts.fpga("0000:5e")
    third = DriverSpec(THIRD, (card.ids,))
    bench = make_bench(
        HostSpec((card,), drivers=(third,)),
        device_spec=[f'{{"address": "{FPGA}", "prebound": true}}'],
    )
    bind(bench, FPGA, VFIO)
    before, had = bench.kernel.snapshot(), bench.kernel.drivers(FPGA)
    bench.plug(1, FPGA)
    assert bench.unplug(1) == 1
    assert since(bench.kernel, FPGA, had) == ()
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize(
    ("attribute", "nth"),
    [
        ("reset", 1),
        ("driver_override", 1),
        ("unbind", 1),
        ("drivers_probe", 1),
        ("driver_override", 2),
    ],
)
@pytest.mark.share(4)
def test_an_unplug_that_is_killed_after_any_write_lets_no_other_driver_in(
    contested, attribute, nth
):
    """The result is the same if the device is probed before it is given back."""
    bind(contested, GPU, OURS)
    before, had = contested.kernel.snapshot(), contested.kernel.drivers(GPU)
    contested.plug(1, GPU)
    contested.kernel.kill(GPU, attribute, nth=nth, after=True)
    with pytest.raises(exception.DevicesUnreleased):
        contested.unplug(1)
    assert contested.kernel.writes()[-1].outcome.startswith("killed")
    contested.kernel.write(contested.kernel.path("sys/bus/pci/drivers_probe"), GPU)
    assert contested.unplug(1) == 1
    assert since(contested.kernel, GPU, had) == (VFIO, OURS)
    assert contested.kernel.snapshot() == before


def test_a_prior_driver_that_is_gone_is_waited_for(contested):
    bind(contested, GPU, OURS)
    before, had = contested.kernel.snapshot(), contested.kernel.drivers(GPU)
    contested.plug(1, GPU)
    with Tree(contested.root).transaction() as tree:
        ours = drivers.load(tree, OURS)
        drivers.unregister(tree, OURS)
    with pytest.raises(exception.DevicesUnreleased, match="no driver after the probe"):
        contested.unplug(1)
    assert contested.lease_state() is LeaseState.QUARANTINED
    # The override keeps the third driver away until the prior driver is back.
    state = contested.kernel.state(GPU)
    assert (state.driver, state.driver_override) == (None, OURS)
    contested.kernel.write(contested.kernel.path("sys/bus/pci/drivers_probe"), GPU)
    with Tree(contested.root).transaction() as tree:
        drivers.register(tree, ours)
    release(contested, GPU)
    assert since(contested.kernel, GPU, had) == (VFIO, OURS)
    assert contested.kernel.snapshot() == before


def test_every_function_of_a_group_returns_to_its_own_driver(contested):
    with Tree(contested.root).transaction() as tree:
        drivers.register(tree, DriverSpec("pci-stub"))
    bind(contested, GPU, OURS)
    bind(contested, AUDIO, "pci-stub")
    before = contested.kernel.snapshot()
    had = {each: contested.kernel.drivers(each) for each in (GPU, AUDIO)}
    contested.plug(1, GPU)
    assert contested.unplug(1) == 1
    for each, driver in ((GPU, OURS), (AUDIO, "pci-stub")):
        assert since(contested.kernel, each, had[each]) == (VFIO, driver)
    assert contested.kernel.snapshot() == before


# -- an FPGA card that starts anew with its driver ------------------------------


@pytest.fixture
def failed(fpgas: TestHost) -> TestHost:
    """Return a host with a card of two drivers whose programming has failed."""
    prefer(fpgas.kernel, THIRD, CARD)
    upload(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        fpgas.plug(1, function_id=GZIP)
    return fpgas


@pytest.mark.parametrize("target", ["VM", "host", "none"])
def test_the_plug_after_an_error_lets_no_other_driver_in(failed, target):
    before = failed.kernel.snapshot()
    failed.plug(1, function_id=GZIP, attach_target=target)
    assert held(failed) == GZIP
    assert failed.unplug(1) == 1
    assert THIRD not in failed.kernel.drivers(CARD)
    assert failed.kernel.snapshot() == before


@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "unplugged"])
@pytest.mark.parametrize(
    ("attribute", "nth"),
    [
        ("driver_override", 1),
        ("unbind", 1),
        ("drivers_probe", 1),
        ("driver_override", 2),
    ],
)
@pytest.mark.share(4)
def test_a_renewal_after_a_reboot_that_is_killed_is_repeated_or_ends_with_an_unplug(
    make_fpgas, attribute, nth, is_repeated
):
    """A plug fails after a reboot; the next one starts anew with the card."""
    card = hosts.dfl("0000:3b", 0)
    third = DriverSpec(THIRD, (card.ids,))
    fpgas = make_fpgas(HostSpec((card,), drivers=(third,)))
    upload(fpgas)
    bind(fpgas, CARD, "dfl-pci")
    fpgas.plug(1, function_id=GZIP)
    fpgas.kernel.reboot()
    # The third driver has taken the card again.
    bind(fpgas, CARD, "dfl-pci")
    fpgas.restart()
    before = fpgas.kernel.snapshot()
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        fpgas.manager.plug(instance(1), None, None)
    fpgas.kernel.kill(CARD, attribute, nth=nth, after=True)
    with pytest.raises(exception.HelperLost):
        fpgas.manager.plug(instance(1), None, None)
    if is_repeated:
        fpgas.manager.plug(instance(1), None, None)
        assert held(fpgas) == GZIP
    assert fpgas.unplug(1) == 1
    # The third driver had the card at each boot, and at no other time.
    assert fpgas.kernel.drivers(CARD).count(THIRD) == 2
    assert fpgas.kernel.snapshot() == before
    assert fpgas.manager.store.leases() == ()
