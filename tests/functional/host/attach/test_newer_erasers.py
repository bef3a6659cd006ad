# SPDX-License-Identifier: Apache-2.0

"""A newer version of a plugin erases the devices that guests have already."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable, Iterable
from typing import ClassVar, Final
from unittest import mock

import pytest

from os_acc import exception
from os_acc.objects.device import Device, Erasure
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.plugins import base
from os_acc.plugins.dfl import DflPlugin
from os_acc.privsep import claims
from os_acc.testing import TestHost, instance
from tests.functional.host.operator_commands import release
from tests.unit import acme
from tests.unit import vendor_steps as vendor
from tests.unit.acme import advance, erasing
from tests.unit.fpga import CARD as FPGA
from tests.unit.fpga import GZIP, held, in_time, upload
from tests.unit.privsep import root_config
from tests.unit.store.store_files import lose_store

CARD: Final = "0000:5e:00.0"
OTHER: Final = "0000:17:00.0"
OLD: Final = "tests.unit.acme:Marks"
NEW: Final = "tests.unit.acme:Erases"
HERE: Final = "tests.functional.host.attach.test_newer_erasers"


class ErasesUntagged(acme.Erases):
    """Erases the cards that the operator does not permit to keep their data."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        kept = {
            each.function.address
            for each in candidates.usable
            if each.tags.allow_no_erase
        }
        for found in super().discover(candidates):
            if found.address in kept:
                yield dataclasses.replace(found, erasure=Erasure.NONE)
            else:
                yield found


class ErasesOthers(acme.Erases):
    """Erases no card of this model."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        for found in super().discover(candidates):
            yield dataclasses.replace(found, erasure=Erasure.RESET)


class FailsToRelease(acme.Erases):
    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        raise RuntimeError("cannot release")


class ErasesByStep(vendor.Stepping):
    """A newer version of its base, which erases with a privileged step."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        for found in super().discover(candidates):
            yield dataclasses.replace(found, erasure=Erasure.PLUGIN)

    def erase(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> float:
        self.results.append(steps.run(vendor.set_node, 1))
        return 1.0


class ErasesRegions(DflPlugin):
    contract_version: ClassVar[tuple[int, int]] = (1, 0)

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[Device | base.RejectedDevice]:
        for found in super().discover(candidates):
            if isinstance(found, Device):
                yield dataclasses.replace(found, erasure=Erasure.PLUGIN)
            else:
                yield found

    def erase(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> float:
        return 1.0


@pytest.fixture
def host(make_bench, install_plugins, monkeypatch) -> TestHost:
    """Return a host whose plugin erases nothing."""
    install_plugins(acme=OLD)
    monkeypatch.setattr(acme.Erases, "fault", None)
    return make_bench()


@pytest.fixture
def upgrade(host, install_plugins) -> Callable[..., None]:
    """Return a function that installs another version of the plugin."""

    def install(version: str = NEW) -> None:
        install_plugins(acme=version)
        host.restart()

    return install


def use(host: TestHost, **request: str) -> None:
    """Plug the card, and let its consumer write to it."""
    host.plug(1, CARD, **request)
    acme.write_medium(host.root, CARD)
    assert not the_lease(host).needs_erase


def the_lease(host: TestHost) -> Lease:
    (found,) = host.manager.store.leases()
    return found


def eraser(host: TestHost) -> str:
    """Return the plugin that has to erase the card, by the helper's record."""
    (found,) = host.manager.catalog.reconciler.records(float("inf")).values()
    return found.eraser


def check_erased(host: TestHost) -> None:
    """Check that the card is erased before another guest gets it."""
    assert erasing(host) == [CARD]
    with pytest.raises(exception.NoDeviceAvailable):
        host.plug(2, CARD)
    advance(host)
    assert not acme.has_data(host.root, CARD)
    assert claims.claimed() == ()
    host.plug(2, CARD)


@pytest.mark.parametrize("target", ["VM", "none"])
def test_an_unplug_begins_the_erasure(host, upgrade, target):
    use(host, attach_target=target)
    upgrade()
    host.unplug(1)
    check_erased(host)


@pytest.mark.parametrize("target", ["VM", "none"])
def test_a_second_plug_records_what_is_owed(host, upgrade, target):
    use(host, attach_target=target)
    upgrade()
    before = host.kernel.snapshot()
    host.manager.plug(instance(1), None, None)
    assert (the_lease(host).needs_erase, eraser(host)) == (True, "acme")
    assert host.kernel.snapshot() == before
    host.unplug(1)
    check_erased(host)


def test_a_plug_after_a_reboot_records_what_is_owed(host, upgrade):
    use(host)
    upgrade()
    host.kernel.reboot()
    host.restart().plug(instance(1), None, None)
    assert (the_lease(host).needs_erase, eraser(host)) == (True, "acme")
    host.unplug(1)
    check_erased(host)


def test_a_recorded_debt_survives_the_loss_of_the_store(host, upgrade):
    use(host)
    upgrade()
    host.manager.plug(instance(1), None, None)
    upgrade(OLD)
    lose_store(host)
    release(host, CARD)
    upgrade()
    check_erased(host)


def test_the_debt_is_recorded_before_the_device_is_released(host, upgrade):
    use(host)
    upgrade(f"{HERE}:FailsToRelease")
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    lease = the_lease(host)
    assert (lease.state, lease.needs_erase) == (LeaseState.QUARANTINED, True)


@pytest.mark.parametrize("is_begun", [True, False], ids=["waits", "quarantined"])
def test_a_release_that_the_older_version_began_ends_with_the_erasure(
    host, upgrade, is_begun
):
    use(host)
    host.kernel.fail(CARD, "unbind", errno.EIO)
    if is_begun:
        host.kernel.lift()
        host.kernel.hold(CARD)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    host.kernel.lift()
    if is_begun:
        host.kernel.let_go(CARD)
    # The start of the new version settles the release.
    upgrade()
    if not is_begun:
        assert the_lease(host).state is LeaseState.QUARANTINED
        release(host, CARD)
    check_erased(host)


def test_a_unit_whose_erasure_begins_is_reserved_at_once(host, upgrade):
    use(host)
    upgrade()
    uuid = host.provider(CARD).uuid

    def reserved() -> int:
        newest = host.manager.catalog.snapshots.newest()
        (units,) = next(each.units.values() for each in newest if each.uuid == uuid)
        return units.reserved

    assert reserved() == 0
    host.unplug(1)
    assert reserved() == 1


def test_a_plug_that_a_crash_ended_owes_nothing_to_the_newer_version(host, upgrade):
    host.plug(1, CARD)
    half = dataclasses.replace(the_lease(host), state=LeaseState.PREPARING)
    host.manager.store.replace([half])
    upgrade()
    assert host.manager.store.leases() == ()


@pytest.mark.parametrize(
    ("target", "is_confirmed"), [("VM", True), ("VM", False), ("none", False)]
)
def test_the_erasure_is_permitted_although_root_names_the_device_no_more(
    host, upgrade, monkeypatch, target, is_confirmed
):
    for name in ("results", "leases"):
        monkeypatch.setattr(vendor.Stepping, name, [])
    upgrade("tests.unit.vendor_steps:Stepping")
    host.plug(1, CARD, attach_target=target)
    upgrade(f"{HERE}:ErasesByStep")
    if is_confirmed:
        host.manager.plug(instance(1), None, None)
    root_config.limit_to(host.root, json.dumps({"address": OTHER}))
    host.unplug(1)
    assert erasing(host) == [CARD]
    advance(host, 1)
    assert vendor.Stepping.results[-1] == "1"
    assert host.manager.store.leases() == ()
    assert claims.claimed() == ()


def test_a_region_that_the_host_programs_is_not_erased(make_fpgas, install_plugins):
    install_plugins(dfl=f"{HERE}:ErasesRegions")
    host = make_fpgas()
    image = upload(host)
    host.manager.regions.program(PciAddress.parse(FPGA), in_time(), image)
    assert held(host) == GZIP
    assert host.manager.store.leases() == ()


def test_a_retried_rollback_of_a_plug_that_took_no_device_owes_nothing(
    host, upgrade, monkeypatch
):
    """The plugin erases the device, but no consumer has had it."""
    upgrade()
    busy = exception.DeviceInUse("acmed uses it", address=CARD)
    refuse = mock.Mock(side_effect=busy)
    with monkeypatch.context() as patch:
        patch.setattr(acme.Erases, "prepare", refuse)
        patch.setattr(acme.Erases, "release", refuse)
        with pytest.raises(exception.DeviceInUse):
            host.plug(1, CARD)
    assert the_lease(host).state is LeaseState.RELEASING
    host.unplug(1)
    assert host.manager.store.leases() == ()


def test_a_debt_stays_although_the_newer_version_erases_no_more(host, upgrade):
    upgrade(NEW)
    host.plug(1, CARD)
    acme.write_medium(host.root, CARD)
    upgrade(f"{HERE}:ErasesOthers")
    host.manager.plug(instance(1), None, None)
    host.unplug(1)
    check_erased(host)


def test_a_device_that_the_newer_version_does_not_erase_is_free_at_once(host, upgrade):
    use(host)
    upgrade(f"{HERE}:ErasesOthers")
    host.manager.plug(instance(1), None, None)
    host.unplug(1)
    host.plug(2, CARD)


def test_a_device_that_may_keep_its_data_by_tag_is_not_erased(host, upgrade):
    use(host)
    tagged = json.dumps({"address": CARD, "allow_no_erase": True})
    host.options["device_spec"] = [tagged]
    upgrade(f"{HERE}:ErasesUntagged")
    host.manager.plug(instance(1), None, None)
    assert not the_lease(host).needs_erase
    host.unplug(1)
    assert acme.has_data(host.root, CARD)
    host.plug(2, CARD)
