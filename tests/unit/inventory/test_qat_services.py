# SPDX-License-Identifier: Apache-2.0

"""QuickAssist PFs are configured before their VFs are created, or stay as they were."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import qat
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.qat import attributes

PF = "0000:d8:00.0"
IDENTITY = (0x8086, 0x4940, 0, 0, 0)
CARD = hosts.qat_gen4("0000:d8", 1)
DOWN, SERVICES, UP = (
    ("state", "down"),
    ("cfg_services", "dc"),
    ("state", "up"),
)


def spec(services: str = "dc", count: int = 16) -> list[str]:
    return [f'{{"address": "{PF}", "num_vfs": {count}, "qat_services": "{services}"}}']


def with_qat(**values: object) -> HostSpec:
    return HostSpec(
        (dataclasses.replace(CARD, driver_attributes=attributes(**values)),)
    )


def read(bench: TestHost, name: str) -> str:
    path = os.path.join(bench.root, "sys/bus/pci/devices", PF, "qat", name)
    return bench.kernel.read(path).strip()


def shown(bench: TestHost) -> tuple[str, str]:
    return read(bench, "state"), read(bench, "cfg_services")


def writes(bench: TestHost) -> list[tuple[str, str]]:
    """Return the writes to the PF, without those of the VFs' drivers."""
    return [(os.path.basename(each.path), each.text) for each in bench.kernel.writes()]


def vfs(bench: TestHost) -> int:
    return bench.kernel.state(PF).numvfs


def test_a_pf_is_stopped_configured_and_started_before_it_has_vfs(make_bench):
    bench = make_bench(with_qat(), device_spec=spec())
    bench.restart()
    numvfs = ("sriov_numvfs", "16")
    done = writes(bench)
    assert done[:3] == [DOWN, SERVICES, UP]
    assert numvfs in done[3:]
    assert shown(bench) == ("up", "dc")
    assert "CUSTOM_QAT_DC" in bench.provider(PF).device.traits
    # A later change would restore services from it.
    assert not list(Path(bench.root, "run/os_acc").glob("*.qat"))
    bench.restart()
    assert writes(bench) == done


@pytest.mark.parametrize("services", ["asym;sym", "sym;asym"])
def test_a_pf_with_these_services_is_not_stopped(make_bench, services):
    bench = make_bench(with_qat(services="sym;asym"), device_spec=spec(services))
    bench.restart()
    assert not {DOWN, UP} & set(writes(bench))
    assert vfs(bench) == 16


def test_a_pf_that_is_down_is_not_stopped_again(make_bench):
    bench = make_bench(with_qat(is_up=False), device_spec=spec())
    bench.restart()
    assert writes(bench)[:2] == [SERVICES, UP]
    assert (shown(bench), vfs(bench)) == (("up", "dc"), 16)


@pytest.mark.parametrize(
    ("attribute", "nth"), [("qat/state", 1), ("qat/cfg_services", 1), ("qat/state", 2)]
)
@pytest.mark.parametrize("fault", ["fail", "ignore"])
def test_a_failed_change_is_undone_and_repeated_at_the_next_start(
    make_bench, caplog, fault, attribute, nth
):
    bench = make_bench(with_qat(), device_spec=spec())
    getattr(bench.kernel, fault)(PF, attribute, nth=nth)
    bench.restart()
    assert f"cannot create VFs of {PF}:" in caplog.text
    assert attribute.removeprefix("qat/") in caplog.text
    assert (shown(bench), vfs(bench)) == (("up", "sym;asym"), 0)
    bench.restart()
    assert (shown(bench), vfs(bench)) == (("up", "dc"), 16)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("attribute", "nth"), [("qat/state", 1), ("qat/cfg_services", 1), ("qat/state", 2)]
)
def test_a_change_in_which_the_worker_dies_is_finished_at_the_next_start(
    make_bench, caplog, attribute, nth, after
):
    bench = make_bench(with_qat(), device_spec=spec())
    bench.kernel.kill(PF, attribute, nth=nth, after=after)
    bench.restart()
    assert f"cannot create VFs of {PF}:" in caplog.text
    assert vfs(bench) == 0
    bench.restart()
    assert (shown(bench), vfs(bench)) == (("up", "dc"), 16)


def test_a_change_in_which_the_worker_dies_is_undone_for_other_services(make_bench):
    """The services to restore are on record before the device stops."""
    bench = make_bench(with_qat(), device_spec=spec())
    bench.kernel.kill(PF, "qat/state", nth=2)
    bench.restart()
    assert shown(bench) == ("down", "dc")
    bench.restart(device_spec=spec("sym;asym"))
    assert (shown(bench), vfs(bench)) == (("up", "sym;asym"), 16)


def test_a_device_that_the_host_uses_is_not_stopped(make_bench, caplog):
    bench = make_bench(with_qat(is_used=True), device_spec=spec())
    bench.restart()
    assert "state: EBUSY" in caplog.text
    assert (shown(bench), vfs(bench)) == (("up", "sym;asym"), 0)


def test_services_of_vfs_that_exist_are_never_changed(make_bench, caplog):
    bench = make_bench(with_qat(), device_spec=spec("sym;asym"))
    bench.restart()
    before = bench.kernel.writes()
    bench.restart(device_spec=spec("dc"))
    assert "its VFs have the services sym;asym, not dc" in caplog.text
    assert bench.kernel.writes() == before
    assert "CUSTOM_QAT_SYM" in bench.provider(PF).device.traits


def test_services_are_kept_while_a_vf_that_is_gone_is_leased(make_bench, caplog):
    bench = make_bench(with_qat(), device_spec=spec("sym;asym"))
    (entry,) = bench.plug(1, PF)
    place = bench.kernel.path(f"sys/bus/pci/devices/{PF}/sriov_numvfs")
    bench.kernel.write(place, "0")
    bench.restart(device_spec=spec("dc"))
    assert f"{entry['pci_id']}, a VF that is gone, is still leased" in caplog.text
    assert shown(bench) == ("up", "sym;asym")


def test_an_earlier_device_has_no_services_to_configure(make_bench, caplog):
    host = HostSpec((hosts.qat("0000:d8"),), disable_denylist=True)
    bench = make_bench(host, device_spec=spec())
    bench.restart()
    assert "its services cannot be configured" in caplog.text
    assert bench.kernel.writes() == []


@pytest.mark.parametrize(
    ("product", "outcome"), [(0x4940, "sym;asym"), (0x4948, "sym;asym;decomp")]
)
def test_only_later_devices_combine_three_services(make_bench, product, outcome):
    card = dataclasses.replace(CARD, product=product)
    bench = make_bench(HostSpec((card,)), device_spec=spec("decomp;asym;sym"))
    bench.restart()
    assert shown(bench) == ("up", outcome)


def test_the_helper_refuses_a_pf_with_vfs_and_other_cards(make_bench):
    bench = make_bench(with_qat(), device_spec=spec("sym;asym"))
    bench.restart()
    place = PciAddress.parse(PF).parts
    other = (*IDENTITY[:1], 0x4942, *IDENTITY[2:])
    for identity, outcome in ((IDENTITY, Outcome.REFUSED), (other, Outcome.CHANGED)):
        epoch = bench.manager.store.next_epoch()
        answer = qat.set_qat_services(place, identity, 4, epoch, 30_000)
        assert CallResult(*answer).outcome == outcome
    assert shown(bench) == ("up", "sym;asym")


def test_the_helper_configures_no_function_of_another_kind(make_bench):
    """It has attributes of these names, and is no PF that can be configured."""
    other = dataclasses.replace(CARD, product=0x37C8, driver_attributes=attributes())
    bench = make_bench(HostSpec((other,)))
    identity = (0x8086, 0x37C8, 0, 0, 0)
    epoch = bench.manager.store.next_epoch()
    answer = qat.set_qat_services(
        PciAddress.parse(PF).parts, identity, 4, epoch, 30_000
    )
    assert CallResult(*answer)[:2] == (Outcome.REFUSED, errno.EOPNOTSUPP)
    assert shown(bench) == ("up", "sym;asym")
    assert bench.kernel.writes() == []
