# SPDX-License-Identifier: Apache-2.0

"""A slot that a plugin has prepared goes to no other guest when the store is lost."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from os_acc import exception, inspection
from os_acc.cmd import device_states
from os_acc.host import mdev
from os_acc.objects.lease import LeaseState
from os_acc.privsep import claims, record
from os_acc.store.errors import AlreadyLeased
from os_acc.testing import HostSpec, TestHost, instance
from os_acc.testing.mdevs import mtty
from tests.functional.host.operator_commands import adopt, release
from tests.unit.plugins import mdev_vendor
from tests.unit.plugins.mdev_vendor import GENERIC, GPU, HERE, NAMED, gpu
from tests.unit.store.store_files import execute, file_in, lose_store

GPU_TYPE = f"{GPU}/nvidia-558"
SLOT = f"{GPU_TYPE}/0"
MTTY_TYPE = "mtty/mtty-1"


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, str, str]]:
    """Return a list of the calls of the plugin: method, slot and lease."""
    found: list[tuple[str, str, str]] = []

    def noting(plugin, method):
        real = getattr(plugin, method)

        def note(self, handle, steps):
            found.append((method, str(handle.address), steps.lease.uuid))
            real(self, handle, steps)

        return note

    for plugin in (mdev_vendor.Vendor, mdev_vendor.Stepping):
        for method in ("prepare", "release"):
            monkeypatch.setattr(plugin, method, noting(plugin, method))
    return found


@pytest.fixture
def make(make_bench, install_plugins, calls):
    """Return a function that makes a host with a GPU of two units, and mtty."""

    def make(plugin: str = "Stepping") -> TestHost:
        install_plugins(vendor=f"{HERE}:{plugin}", mdev=GENERIC)
        spec = HostSpec(gpu(), mdev_parents=(mtty(),))
        host: TestHost = make_bench(spec, device_spec=NAMED)
        return host

    return make


@pytest.fixture
def host(make) -> TestHost:
    return make()


def plug(host: TestHost, number: int, kind: str = GPU_TYPE) -> str:
    """Plug one unit; return the UUID of its mediated device."""
    (entry,) = host.plug(number, kind)
    return entry["attach_handle_uuid"]


def plug_and_lose(host: TestHost, kind: str = GPU_TYPE) -> str:
    """Plug one unit, and lose the store; return the UUID of its mediated device."""
    uuid = plug(host, 1, kind)
    lose_store(host)
    return uuid


def existing(host: TestHost) -> list[str]:
    return sorted(each.uuid for each in mdev.read_mdevs(host.root))


def faults(host: TestHost, kind: str = GPU_TYPE) -> dict[int, str]:
    """Return the faulty slots of a type."""
    host.manager.discover()
    handles = host.provider(kind).device.handles
    return {each.address.number: each.fault for each in handles if each.fault}


def check_returned(host: TestHost, kind: str = GPU_TYPE) -> None:
    """Check that nothing is left of the guest's use of its slot."""
    assert claims.claimed() == ()
    assert host.manager.store.leases() == ()
    assert (existing(host), faults(host, kind)) == ([], {})


def lost(uuid: str) -> dict[int, str]:
    return {0: f"claimed by lease {uuid}, which the store has lost"}


@pytest.mark.parametrize(
    ("plugin", "kind"), [("Stepping", GPU_TYPE), ("Vendor", MTTY_TYPE)]
)
def test_the_slot_is_reserved_until_its_plugin_has_released_it(
    make, calls, plugin, kind
):
    """The plugin has steps, or prepares without any."""
    host = make(plugin)
    uuid = plug_and_lose(host, kind)

    assert faults(host, kind) == lost(uuid)
    plug(host, 2, kind)
    (other,) = host.manager.store.leases()
    assert str(other.address) == f"{kind}/1"
    assert host.unplug(2) == 1
    assert ("release", f"{kind}/0", uuid) not in calls
    assert existing(host) == [uuid]

    release(host, f"{kind}/0")
    assert calls[-1] == ("release", f"{kind}/0", uuid)
    check_returned(host, kind)


def test_it_keeps_its_share_of_the_capacity(host):
    plug_and_lose(host)
    plug(host, 2)
    with pytest.raises(exception.NoDeviceAvailable, match="claimed by lease"):
        plug(host, 3)


def test_it_is_listed_as_unknown_also_if_its_parent_has_left_the_driver(host):
    """The kernel has removed the mediated device; the release is still owed."""
    uuid = plug_and_lose(host)
    (driver,) = host.drivers(GPU)
    host.bind(GPU, "vfio-pci")
    assert existing(host) == []

    host.manager.discover()
    look = inspection.look(host.config(), host.root)
    (found,) = (
        each for each in device_states.device_states(look) if str(each.address) == SLOT
    )
    assert found.state is device_states.DeviceStatus.UNKNOWN
    assert found.reason.startswith(lost(uuid)[0])
    with pytest.raises(exception.DeviceGone):
        release(host, SLOT)
    host.bind(GPU, driver)
    release(host, SLOT)
    check_returned(host)


def test_a_store_of_yesterday_gives_it_to_no_guest(host):
    """The identity of the store is the same: only the helper detects the difference."""
    host.provider(GPU_TYPE)
    file = Path(host.state_path, "os_acc.sqlite")
    yesterday = file.read_bytes()
    uuid = plug(host, 1)
    file.write_bytes(yesterday)

    plug(host, 2)
    assert faults(host) == lost(uuid)
    assert len(existing(host)) == 2
    assert host.unplug(2) == 1
    assert existing(host) == [uuid]


# -- the operator returns it -------------------------------------------------------


def test_its_guest_keeps_it(host, calls):
    uuid = plug_and_lose(host)
    host.kernel.hold(uuid, pid=4711, command="qemu")

    for force in (False, True):
        with (
            contextlib.nullcontext()
            if force
            else pytest.raises(exception.DeviceInUse, match="qemu")
        ):
            release(host, SLOT, force=force)
        assert existing(host) == [uuid]
        assert faults(host) == lost(uuid)
        assert host.manager.store.leases() == ()
    assert [method for method, *_ in calls] == ["prepare"]

    host.kernel.let_go(uuid)
    release(host, SLOT)
    check_returned(host)


def test_it_is_adopted_for_its_guest(host, calls):
    uuid = plug_and_lose(host)
    host.kernel.hold(uuid, pid=4711, command="qemu")

    lease = adopt(host, SLOT)

    assert (lease.uuid, lease.state, lease.needs_release) == (
        uuid,
        LeaseState.HELD,
        True,
    )
    assert faults(host) == {}
    (entry,) = host.manager.plug(instance(1), None, None)
    assert entry["attach_handle_uuid"] == uuid
    assert [method for method, *_ in calls] == ["prepare"]
    host.kernel.let_go(uuid)
    assert host.unplug(1) == 1
    assert calls[1:] == [("release", SLOT, uuid)]
    check_returned(host)


def test_a_leased_slot_is_not_adopted(host):
    plug(host, 1)
    with pytest.raises(AlreadyLeased):
        adopt(host, SLOT, number=2)
    assert host.unplug(1) == 1


def test_a_slot_without_a_record_is_neither_released_nor_adopted(host):
    for operate in (release, adopt):
        with pytest.raises(exception.NotFound, match="is not leased"):
            operate(host, SLOT)


def test_it_waits_for_its_plugin(host, calls, install_plugins):
    uuid = plug_and_lose(host)
    install_plugins(mdev=GENERIC)
    host.restart()
    assert faults(host) == lost(uuid)

    with pytest.raises(exception.PluginFailed, match="vendor"):
        release(host, SLOT)
    assert faults(host) == {0: "waits for vendor"}
    (lease,) = host.manager.store.leases()
    assert (lease.uuid, lease.state) == (uuid, LeaseState.QUARANTINED)

    install_plugins(vendor=f"{HERE}:Stepping", mdev=GENERIC)
    host.restart()
    release(host, SLOT)
    assert calls[1:] == [("release", SLOT, uuid)]
    check_returned(host)


def test_it_is_given_up_with_its_plugin(host, install_plugins):
    plug_and_lose(host)
    install_plugins(mdev=GENERIC)
    host.restart()

    release(host, SLOT, force=True)

    check_returned(host)


def test_a_damaged_record_in_the_store_loses_no_release(host, calls):
    """The first call forgets the record of the store, and the second one releases."""
    uuid = plug(host, 1)
    execute(file_in(host.state_path), "UPDATE leases SET digest = ''")
    host.restart()
    release(host, SLOT)
    assert faults(host) == lost(uuid)
    assert calls[1:] == []

    release(host, SLOT)
    assert calls[1:] == [("release", SLOT, uuid)]
    check_returned(host)


# -- crashes, reboots and damage ---------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("attribute", ["create", "remove"])
def test_a_crash_loses_no_release(host, calls, attribute, after):
    """The helper's worker dies in the plug or in the unplug, and the store is lost."""
    host.manager.discover()
    host.kernel.kill(attribute=attribute, after=after)
    with contextlib.suppress(exception.OsAccError):
        plug(host, 1)
        host.unplug(1)
    host.kernel.lift()
    calls.clear()
    # The release is owed as long as its record stands.
    is_owed = bool(claims.claimed())
    lose_store(host)

    assert bool(faults(host)) == is_owed
    if is_owed:
        release(host, SLOT)
        assert [method for method, *_ in calls] == ["release"]
    check_returned(host)


def test_a_reboot_leaves_nothing_behind(host):
    plug_and_lose(host)
    assert faults(host)
    host.kernel.reboot()
    host.restart()

    assert faults(host) == {}
    assert host.manager.store.recorded_state().helper_claims == {}
    plug(host, 2)
    assert host.unplug(2) == 1


def test_the_record_ends_with_the_parent(host, calls):
    plug_and_lose(host)
    card = host.kernel.hot_unplug(GPU)
    host.manager.discover()

    release(host, SLOT)

    assert claims.claimed() == ()
    assert [method for method, *_ in calls] == ["prepare"]
    host.kernel.hot_plug(card)
    assert faults(host) == {}
    assert existing(host) == []


def test_a_damaged_record_protects_the_slot_as_well(host, calls):
    uuid = plug_and_lose(host)
    (file,) = Path(host.root, "run/os_acc").glob("*.lease")
    file.write_text("")
    assert faults(host) == lost(record.UNREADABLE)

    with pytest.raises(exception.NotFound, match="does not exist"):
        adopt(host, SLOT)
    with pytest.raises(exception.DeviceInUse, match=uuid):
        release(host, SLOT)
    assert faults(host) == lost(record.UNREADABLE)
    assert [method for method, *_ in calls] == ["prepare"]

    # The guest has ended, and its operator has removed its mediated device.
    device = host.kernel.path("sys/bus/mdev/devices", uuid)
    host.kernel.write(f"{device}/remove", "1")
    release(host, SLOT)
    assert [method for method, *_ in calls] == ["prepare", "release"]
    check_returned(host)


def test_a_release_replaces_the_damaged_record_of_its_own_lease(host, calls):
    uuid = plug(host, 1)
    (file,) = Path(host.root, "run/os_acc").glob("*.lease")
    file.write_text("")
    with pytest.raises(exception.DevicesUnreleased, match="claimed by lease unread"):
        host.unplug(1)

    release(host, SLOT)

    assert calls[-1] == ("release", SLOT, uuid)
    check_returned(host)


def test_a_damaged_record_is_no_guests_of_a_sibling(host):
    """Its own mediated device is gone; that of the other slot has a lease."""
    uuid = plug_and_lose(host)
    plug(host, 2)
    for file in Path(host.root, "run/os_acc").glob("*.lease"):
        if file.name.endswith("0.lease"):
            file.write_text("")
    device = host.kernel.path("sys/bus/mdev/devices", uuid)
    host.kernel.write(f"{device}/remove", "1")

    release(host, SLOT)

    assert faults(host) == {}
    assert host.unplug(2) == 1
    assert claims.claimed() == ()


def test_one_without_a_plugins_preparation_counts_as_another_tools(
    make_bench, install_plugins
):
    """Its mediated device keeps the capacity; the number of a slot is only a name."""
    install_plugins(mdev=GENERIC)
    host = make_bench(HostSpec(gpu()), device_spec=NAMED[1:])
    uuid = plug_and_lose(host)

    plug(host, 2)
    with pytest.raises(exception.NoDeviceAvailable, match="no capacity left"):
        plug(host, 3)
    assert host.unplug(2) == 1
    assert existing(host) == [uuid]
