# SPDX-License-Identifier: Apache-2.0

"""No other guest gets a function that stays on its driver, and none is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import (
    FunctionSpec,
    HostSpec,
    TestHost,
    functions,
    instance,
)
from os_acc.testing.tree import Tree
from tests.functional.host.attach.test_variant_drivers import DEBIAN
from tests.functional.host.operator_commands import adopt, release
from tests.unit.plugins.staying_vendor import (
    CARD,
    DRIVER,
    HERE,
    NAMED,
    SPEC,
    VFS,
    make,
)
from tests.unit.store.store_files import lose_store

VF, OTHER = VFS
PLAIN = f'{{"address": "{VF}"}}'


@pytest.fixture
def host(tmp_path: Path, install_plugins: Callable[..., None]) -> Iterator[TestHost]:
    install_plugins(acme=f"{HERE}:AcmeGpu")
    with make(tmp_path) as found:
        yield found


def offer(host: TestHost, address: str, text: str = "1") -> None:
    """Let another tool make the driver offer a function to guests, or end that."""
    place = host.kernel.path("sys/bus/pci/devices", address)
    host.kernel.write(f"{place}/acme/guest", text)


def is_offered(host: TestHost, address: str) -> bool:
    return Path(host.kernel.path("sys/bus/pci/devices", address), "vfio-dev").exists()


@pytest.mark.parametrize("named", [NAMED[0], PLAIN], ids=["stays", "plain"])
def test_one_that_another_tool_has_offered_is_left_alone(host, named):
    offer(host, VF)
    host.restart(device_spec=[named])
    refused = host.rejected(VF)
    assert (refused.reason, refused.detail) == (
        RejectReason.UNKNOWN_STATE,
        f"{DRIVER} offers it to guests",
    )


def test_one_that_is_offered_after_the_scan_is_left_alone(host, monkeypatch):
    host.restart(device_spec=[NAMED[0]])
    check_same = verification.check_same

    def checked_late(*arguments: Any) -> None:
        check_same(*arguments)
        offer(host, VF)

    monkeypatch.setattr(verification, "check_same", checked_late)
    with pytest.raises(exception.OsAccError, match="for another guest"):
        host.plug(1, VF)
    assert is_offered(host, VF)


def test_a_guest_keeps_its_function_when_all_records_are_lost(host):
    host.plug(1, VF)
    lose_store(host)
    host.remove_records()
    host.restart()
    assert host.rejected(VF).reason is RejectReason.UNKNOWN_STATE
    lease = adopt(host, VF)
    assert (lease.driver, lease.state) == (DRIVER, LeaseState.HELD)
    (entry,) = host.manager.plug(instance(1), None, None)
    assert entry["vfio_driver"] == DRIVER
    host.unplug(1)
    assert (host.drivers(VF), is_offered(host, VF)) == ([DRIVER], False)


@pytest.mark.parametrize("records", [True, False], ids=["recorded", "lost"])
def test_a_release_without_a_lease_ends_the_offer(host, records):
    host.plug(1, VF)
    lose_store(host)
    if not records:
        host.remove_records()
    host.restart()
    release(host, VF)
    assert (host.drivers(VF), is_offered(host, VF)) == ([DRIVER], False)
    assert host.provider(VF).device.plugin == "acme"


@pytest.mark.parametrize("driver", ["vfio-pci", ""])
def test_a_release_binds_none_to_another_driver(host, driver):
    host.plug(1, VF)
    lose_store(host)
    with pytest.raises(exception.InvalidInput, match=f"stays on {DRIVER}"):
        release(host, VF, driver)
    assert is_offered(host, VF)
    release(host, VF, DRIVER)
    assert (host.drivers(VF), is_offered(host, VF)) == ([DRIVER], False)


def test_a_plug_of_one_that_the_driver_does_not_offer_fails(host):
    """The group may have a node nevertheless."""
    with Tree(host.root).transaction() as tree:
        number = functions.group_of(tree, VF)
        tree.put(f"dev/vfio/{number}", "", 0o600)
        place = functions.place(tree, VF)
        tree.put(f"{place}/acme/guest", "1\n", 0o644)
    with pytest.raises(exception.HostStepFailed, match="does not offer"):
        host.plug(1, VF)
    assert host.manager.store.leases() == ()


def test_a_release_without_its_plugin_is_refused(host):
    offer(host, VF)
    host.restart(enabled_plugins=["pci"])
    with pytest.raises(exception.NotFound, match="no plugin offers"):
        release(host, VF)
    assert is_offered(host, VF)


def test_force_frees_no_function_that_a_guest_has(host):
    host.plug(1, VF)
    host.kernel.hold(VF)
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    release(host, VF, force=True)
    host.kernel.let_go(VF)
    assert host.rejected(VF).reason is RejectReason.UNKNOWN_STATE
    release(host, VF)
    assert not is_offered(host, VF)
    assert host.provider(VF).device.plugin == "acme"


def test_one_that_is_back_on_its_driver_by_hand_did_not_stay(tmp_path):
    function = FunctionSpec("0000:3b:00.0", 0x8086, 0x1592, 0x120000, "ice")
    with TestHost(tmp_path, HostSpec((function,))) as host:
        host.plug(1, function.address)
        host.bind(function.address, "ice")
        lose_store(host)
        host.restart()
        place = PciAddress.parse(function.address)
        lease = adopt(host, place)
        assert lease.driver == "vfio-pci"
        host.manager.plug(instance(1), None, None)
        assert host.drivers(function.address) == ["vfio-pci"]


def test_a_driver_that_comes_late_is_not_left_again(host):
    host.plug(1, VF)
    host.kernel.reboot()
    host.bind(VF, "")
    host.restart()
    with pytest.raises(exception.HostStepFailed, match="bound to no driver"):
        host.manager.plug(instance(1), None, None)
    host.bind(VF, DRIVER)
    host.manager.plug(instance(1), None, None)
    assert is_offered(host, VF)
    host.unplug(1)
    assert (host.drivers(VF), is_offered(host, VF)) == ([DRIVER], False)


def test_plain_vfs_of_the_card_have_a_provider_of_their_own(host):
    host.restart(device_spec=[NAMED[0], f'{{"address": "{OTHER}"}}'])
    assert host.provider(VF).device.plugin == "acme"
    provider = host.provider(OTHER)
    assert provider.device.plugin == "pci"
    assert [str(each.address) for each in provider.device.handles] == [OTHER]


@pytest.mark.parametrize("both", [True, False], ids=["both stay", "one stays"])
def test_one_that_stays_has_its_group_for_itself(tmp_path, install_plugins, both):
    install_plugins(acme=f"{HERE}:AcmeGpu")
    first = dataclasses.replace(CARD, sriov=None)
    second = dataclasses.replace(first, address="0000:42:00.0", group_of=CARD.address)
    stays = f'{{"address": "{first.address}", "vfio_driver": "{DRIVER}"}}'
    plain = f'{{"address": "{second.address}"}}'
    other = stays.replace(first.address, second.address) if both else plain
    with TestHost(
        tmp_path, HostSpec((first, second)), device_spec=[stays, other]
    ) as host:
        reasons = {each.reason for each in host.manager.discover().refused}
        assert reasons == {RejectReason.NOT_ISOLATED}
        assert host.manager.discover().providers == {}


@pytest.mark.parametrize("was_staying", [True, False], ids=["stays", "bound"])
def test_a_changed_tag_concerns_later_plugs_alone(host, was_staying):
    plain = PLAIN.replace("}", ', "allow_no_reset": true}')
    before, after = (NAMED[0], plain) if was_staying else (plain, NAMED[0])
    driver, later = (DRIVER, "vfio-pci") if was_staying else ("vfio-pci", DRIVER)
    host.restart(device_spec=[before])
    host.plug(1, VF)
    host.restart(device_spec=[after])
    assert [str(each.address) for each in host.provider(VF).device.handles] == [VF]
    host.manager.plug(instance(1), None, None)
    assert host.drivers(VF) == [driver]
    host.unplug(1)
    assert host.drivers(VF) == [DRIVER]
    host.plug(2, VF)
    assert host.drivers(VF) == [later]


def test_auto_is_no_driver_of_the_host(tmp_path, install_plugins):
    install_plugins(acme=f"{HERE}:AcmeGpu")
    alias = f"alias vfio_pci:v00001DEDd00000011sv*sd*bc*sc*i* {DRIVER}"
    spec = dataclasses.replace(SPEC, module_aliases=(*DEBIAN, alias))
    named = NAMED[0].replace(DRIVER, "auto")
    with TestHost(tmp_path, spec, device_spec=[named]) as host:
        refused = host.rejected(VF)
        assert (refused.reason, refused.detail) == (
            RejectReason.NO_VFIO_DRIVER,
            f"modules.alias names {DRIVER}, which is no variant of vfio-pci",
        )


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("vfio_pci", "the name of the driver is vfio-pci"),
        ("mlx5_vfio_pci", "run 'modprobe mlx5_vfio_pci', and load it at boot"),
        ("Auto", f"it is bound to {DRIVER}, not to Auto; did you mean 'auto'?"),
        (
            "acme-gpu",
            f"it is bound to {DRIVER}, not to acme-gpu; did you mean 'acme_gpu'?",
        ),
        ("xyz", f"it is bound to {DRIVER}, not to xyz"),
    ],
)
def test_a_misspelt_driver_is_a_rejection(host, name, detail):
    host.restart(device_spec=[NAMED[0].replace(DRIVER, name)])
    refused = host.rejected(VF)
    assert (refused.reason, refused.detail) == (RejectReason.NO_VFIO_DRIVER, detail)
