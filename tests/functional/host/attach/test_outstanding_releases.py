# SPDX-License-Identifier: Apache-2.0

"""A device that a plugin has prepared waits for the plugin that has to release it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

from os_acc import exception
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims
from os_acc.testing import TestHost, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.operator_commands import release
from tests.unit import acme
from tests.unit.placement.nova_side import Nova

CARD, OTHER = "0000:5e:00.0", "0000:e3:00.0"
GPU = "0000:17:00.0"
CLASS = "CUSTOM_ACCELERATOR_ACME"
NOT_LOADED = exception.PluginReason.NOT_LOADED


@pytest.fixture
def host(make_bench, install_plugins) -> TestHost:
    """Return a host with two cards whose plugin leaves a mark on a prepared one."""
    install_plugins(acme="tests.unit.acme:Marks")
    return make_bench()


#: The plugin goes: its package is removed, the operator disables it, or it is broken.
GONE = pytest.mark.parametrize(
    ("installed", "enabled", "why"),
    [
        pytest.param({}, [], "not installed or not enabled", id="uninstalled"),
        pytest.param(
            {"acme": "tests.unit.acme:Marks"},
            ["pci"],
            "not installed or not enabled",
            id="disabled",
        ),
        pytest.param(
            {"acme": "tests.unit.acme:FailsToStart"},
            [],
            "set aside: the plugin acme failed: RuntimeError('no licence')",
            id="set aside",
        ),
    ],
)


@pytest.fixture
def lose_plugin(host, install_plugins) -> Callable[..., None]:
    def lose(
        installed: dict[str, str] | None = None, enabled: tuple[str, ...] = ()
    ) -> None:
        install_plugins(**(installed or {}))
        host.options["enabled_plugins"] = list(enabled)
        host.restart()

    return lose


@pytest.fixture
def bring_back(host, install_plugins) -> Callable[..., None]:
    def bring(version: str = "Marks") -> None:
        install_plugins(acme=f"tests.unit.acme:{version}")
        host.options["enabled_plugins"] = []
        host.restart()

    return bring


def owner(host: TestHost, address: str) -> str:
    """Return the plugin that offers a function; '' if none does."""
    try:
        return host.provider(address).device.plugin
    except LookupError:
        return ""


def quarantine(host: TestHost, lose_plugin: Callable[..., None]) -> None:
    """Lose the plugin while an instance has its card, then unplug the instance."""
    host.plug(1, CARD)
    lose_plugin()
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)


def check_waits(host: TestHost, number: int = 1) -> Lease:
    """Check that the card is quarantined, and no guest gets it; return its lease."""
    (lease,) = host.manager.store.leases(uuid_of(number))
    assert lease.state is LeaseState.QUARANTINED
    assert owner(host, CARD) == ""
    assert host.manager.store.recorded_state().taken == {PciAddress.parse(CARD)}
    return lease


# -- the plugin is gone, and comes back ----------------------------------------


@GONE
def test_an_unplug_without_the_plugin_quarantines_the_device(
    host, lose_plugin, bring_back, installed, enabled, why
):
    before = host.kernel.snapshot()
    host.plug(1, CARD)
    lose_plugin(installed, enabled)
    with pytest.raises(exception.DevicesUnreleased) as caught:
        host.unplug(1)
    ((address, error),) = caught.value.unreleased
    assert (address, error.reason) == (CARD, exception.PluginReason.NOT_LOADED)
    assert not caught.value.retryable
    assert caught.value.hint.endswith(f"os-acc device release {CARD}")
    lease = check_waits(host)
    assert lease.reason.startswith(
        f"the plugin acme, which prepared {CARD}, is {why} (install the plugin, or "
        "enable it in [os_acc] enabled_plugins"
    )
    # The functions are with their drivers; only the plugin's own work is left.
    assert host.kernel.snapshot() == before
    assert acme.marked(host.root) == [CARD]

    bring_back()
    release(host, CARD)
    assert acme.marked(host.root) == []
    assert host.manager.store.leases() == ()
    assert host.kernel.snapshot() == before
    host.plug(2, CARD)


def test_no_start_and_no_retry_frees_the_device_without_the_plugin(host, lose_plugin):
    quarantine(host, lose_plugin)
    host.restart()
    assert host.manager.retrier.retry() == []
    with raises(NOT_LOADED, match="acme"):
        release(host, CARD)
    check_waits(host)
    assert host.unplug(1) == 0
    check_waits(host)


def test_other_devices_of_the_instance_are_released(host, lose_plugin):
    host.plug(1, CARD, GPU)
    lose_plugin()
    with pytest.raises(exception.DevicesUnreleased) as caught:
        host.unplug(1)
    assert caught.value.released == (GPU,)
    check_waits(host)


def test_the_last_resort_gives_the_device_up(host, lose_plugin):
    quarantine(host, lose_plugin)
    release(host, CARD, force=True)
    assert host.manager.store.leases() == ()
    # The operator has decided that the generic plugin may have it as it is.
    assert owner(host, CARD) == "pci"
    assert acme.marked(host.root) == [CARD]


def test_a_device_in_use_is_retried_until_only_the_plugin_is_missing(host, lose_plugin):
    host.plug(1, CARD)
    host.kernel.hold(CARD)
    lose_plugin()
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.RELEASING
    host.kernel.let_go(CARD)
    for attempt in host.manager.retrier.retry():
        attempt.result(120)
    check_waits(host)


def test_a_plugin_that_prepares_nothing_any_more_is_enough(
    host, lose_plugin, bring_back
):
    quarantine(host, lose_plugin)
    bring_back("MarksNoMore")
    release(host, CARD)
    assert host.manager.store.leases() == ()


# -- nothing is owed -------------------------------------------------------------


def test_a_plugin_without_steps_of_its_own_is_not_missed(host, lose_plugin, bring_back):
    bring_back("MarksNoMore")
    host.plug(1, CARD)
    lose_plugin()
    assert owner(host, CARD) == "pci"
    assert host.unplug(1) == 1
    assert owner(host, CARD) == "pci"


def test_the_generic_plugin_is_not_missed(host):
    host.plug(1, GPU)
    host.restart(enabled_plugins=["acme"])
    assert host.unplug(1) == 1


def test_a_device_that_stays_with_the_host_is_not_missed(host, lose_plugin):
    host.bind(CARD, "nvme")
    host.plug(1, CARD, attach_target="none")
    lose_plugin()
    assert owner(host, CARD) == "pci"
    assert host.unplug(1) == 1


@pytest.mark.parametrize("step", ["prepare", "release"])
def test_one_step_of_its_own_is_enough(
    host, lose_plugin, bring_back, monkeypatch, step
):
    monkeypatch.setattr(acme.MarksNoMore, step, lambda *_: None)
    bring_back("MarksNoMore")
    quarantine(host, lose_plugin)
    check_waits(host)


# -- no other plugin and no other guest gets the unit -------------------------------


def test_a_held_card_is_offered_by_no_other_plugin(host, lose_plugin, bring_back):
    uuid = host.provider(CARD).uuid
    host.plug(1, CARD)
    lose_plugin()
    # A free card of the plugin goes to the generic one; the prepared one waits.
    assert (owner(host, OTHER), owner(host, CARD)) == ("pci", "")
    refused = host.rejected(CARD)
    assert refused.reason is RejectReason.NO_PLUGIN
    assert refused.detail == "it waits for acme"
    assert host.plugged(1) == [CARD]
    bring_back()
    assert host.provider(CARD).uuid == uuid
    assert host.unplug(1) == 1


def test_a_plugin_that_chooses_earlier_does_not_take_a_prepared_card_over(
    host, install_plugins
):
    host.plug(1, CARD)
    install_plugins(acme="tests.unit.acme:Marks", aaa="tests.unit.acme:Rival")
    host.restart()
    assert (owner(host, OTHER), owner(host, CARD)) == ("aaa", "acme")
    assert host.unplug(1) == 1
    assert owner(host, CARD) == "aaa"


def test_a_reboot_frees_nothing(host, lose_plugin, bring_back):
    quarantine(host, lose_plugin)
    host.kernel.reboot()
    host.restart()
    check_waits(host)
    provider = host.provider(OTHER)
    host.manager.plug(instance(2), *request(provider))
    assert host.lease_state(1) is LeaseState.QUARANTINED
    assert owner(host, CARD) == ""
    bring_back()
    release(host, CARD)
    assert acme.marked(host.root) == []
    assert owner(host, CARD) == "acme"


def test_novas_tree_reserves_the_unit_until_the_plugin_has_released_it(
    host, lose_plugin, bring_back
):
    nova, uuid = Nova(), host.provider(CARD).uuid

    def units() -> dict[str, tuple[int, int]]:
        host.manager.discover()
        nova.cycle(host.manager.update_provider_tree)
        return nova.units(uuid)

    assert units() == {CLASS: (1, 0)}
    traits = nova.known.data(uuid).traits
    host.plug(1, CARD)
    lose_plugin()
    # The allocation of the guest counts its unit.
    assert units() == {CLASS: (1, 0)}
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert units() == {CLASS: (1, 1)}
    host.kernel.reboot()
    host.restart()
    assert units() == {CLASS: (1, 1)}
    assert nova.known.data(uuid).traits == traits
    bring_back()
    release(host, CARD)
    assert units() == {CLASS: (1, 0)}


# -- a plug of an instance that has the card ---------------------------------------


def test_a_guest_with_a_prepared_card_starts_without_the_plugin(host, lose_plugin):
    selection = request(host.provider(CARD))
    entries = host.plug(1, CARD)
    lose_plugin()
    for arguments in (selection, (None, None)):
        assert host.manager.plug(instance(1), *arguments) == entries
    assert acme.marked(host.root) == [CARD]


def test_after_a_reboot_the_plugin_has_to_prepare_the_card_again(
    host, lose_plugin, bring_back
):
    host.plug(1, CARD, GPU)
    host.kernel.reboot()
    acme.unmark(host.root, CARD)
    lose_plugin()
    before, writes = host.kernel.snapshot(), host.kernel.writes()
    for _ in range(2):
        with raises(NOT_LOADED, match="acme"):
            host.manager.plug(instance(1), None, None)
    assert (host.kernel.snapshot(), host.kernel.writes()) == (before, writes)
    states = {each.state for each in host.manager.store.leases(uuid_of(1))}
    assert states == {LeaseState.HELD}
    bring_back()
    host.manager.plug(instance(1), None, None)
    assert acme.marked(host.root) == [CARD]
    assert host.drivers(CARD, GPU) == ["vfio-pci"] * 2
    assert host.unplug(1) == 2


def test_no_device_is_taken_for_a_lease_whose_plugin_cannot_prepare_it(
    host, lose_plugin
):
    """A device that replaces another one has the plugin of the replaced one."""
    host.plug(1, CARD)
    (held,) = host.manager.store.leases()
    host.unplug(1)
    lose_plugin()
    writes = host.kernel.writes()
    planned = dataclasses.replace(held, state=LeaseState.PREPARING)
    recorded = host.manager.store.recorded_state()
    with raises(NOT_LOADED):
        host.manager.life.establish([planned], recorded, time.monotonic() + 60)
    assert host.manager.store.leases() == ()
    assert host.kernel.writes() == writes


def test_a_version_that_prepares_is_owed_a_release_from_its_first_use(
    host, lose_plugin, bring_back
):
    """A lease of the former version, after a reboot."""
    bring_back("MarksNoMore")
    host.plug(1, CARD)
    host.kernel.reboot()
    bring_back()
    host.manager.plug(instance(1), None, None)
    lose_plugin()
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    check_waits(host)


def test_a_release_after_a_reboot_ends_the_helpers_copy_of_the_record(host):
    """The reboot has given the device back already."""
    host.plug(1, CARD)
    host.kernel.reboot()
    host.restart()
    assert host.unplug(1) == 1
    assert acme.marked(host.root) == []
    assert not claims.claimed()
    host.restart()
    host.plug(2, CARD)
