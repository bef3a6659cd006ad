# SPDX-License-Identifier: Apache-2.0

"""Accelerators during each operation on a server; the manual's table names the test.

The specification: "The behavior with respect to accelerators during various instance
operations (reboot, pause, etc.) must be documented."
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from os_acc import exception
from os_acc.attach import migration
from os_acc.host import mdev
from os_acc.objects.lease import LeaseState
from os_acc.testing import HostSpec, TestHost, hosts, uuid_of
from os_acc.testing.mdevs import mtty
from os_acc.testing.nova import FakeProviderTree, instance, request
from tests.functional.host.attach.test_rebuild import images_of
from tests.unit.fpga import CARD, CRYPTO, held

PORT = "mtty/mtty-1/0"
GPU, AUDIO, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:5e:00.0"
SERVER, OTHER, MIGRATION = 1, 2, 3
QEMU = {"pid": 4711, "command": "qemu-kvm"}
PAGE = Path(__file__).resolve().parents[4] / "doc/source/user/server-operations.rst"

Entries = Sequence[dict[str, Any]]


@pytest.fixture
def entries(bench: TestHost) -> Entries:
    """Create a server with a GPU, and start its guest."""
    plugged = bench.plug(SERVER, GPU)
    bench.kernel.hold(GPU, **QEMU)
    return plugged


@pytest.fixture
def check_kept(bench: TestHost, entries: Entries) -> Callable[[], None]:
    """Return a check that the server has what it had, also after other operations."""

    def check() -> None:
        bench.plug(OTHER, FPGA)
        bench.unplug(OTHER)
        # The service is restarted, and settles what it finds.
        bench.restart()
        assert bench.manager.attached(instance(SERVER)) == {uuid_of(SERVER): entries}
        assert bench.lease_state(SERVER) is LeaseState.HELD
        assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]
        # Placement counts the unit by its allocation, which Nova keeps.
        assert units(bench, GPU) == (1, 0)
        with pytest.raises(exception.NoDeviceAvailable):
            bench.plug(OTHER, GPU)

    return check


def units(bench: TestHost, address: str) -> tuple[int, int]:
    """Return the total and reserved units of a device's provider in Placement."""
    tree = FakeProviderTree()
    tree.new_root("node1", uuid_of(99))
    bench.manager.discover()
    bench.manager.update_provider_tree(tree, "node1")
    (inventory,) = tree.data(bench.provider(address).uuid).inventory.values()
    return inventory["total"], inventory["reserved"]


def end_guest(bench: TestHost) -> None:
    bench.kernel.let_go(GPU)


def ready_again(bench: TestHost) -> Entries:
    """Prepare what is recorded, as Nova does when it starts a guest again."""
    return bench.manager.plug(instance(SERVER), None, None)


# -- create, start, stop, delete -------------------------------------------------


def test_create_attaches_what_the_flavor_requests(bench):
    (entry,) = bench.plug(SERVER, GPU)
    assert (entry["pci_id"], entry["state"]) == (GPU, "Bound")
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]


def test_stop_keeps_the_lease(bench, check_kept):
    end_guest(bench)
    check_kept()


def test_start_prepares_what_the_stopped_server_had(bench, entries):
    end_guest(bench)
    # An operator has unbound the device of the stopped server.
    bench.bind(GPU, "")
    assert ready_again(bench) == entries
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]


def test_delete_detaches_the_accelerators(bench, entries):
    end_guest(bench)
    assert bench.unplug(SERVER) == len(entries)
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    assert bench.manager.attached(instance(SERVER)) == {}


def test_delete_waits_until_the_guest_has_ended(bench, entries):
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(SERVER)
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]
    end_guest(bench)
    assert bench.unplug(SERVER) == len(entries)


def test_soft_deleted_the_lease_is_kept(bench, check_kept):
    end_guest(bench)
    check_kept()
    # Nova reclaims the server after reclaim_instance_interval.
    assert bench.unplug(SERVER) == 1


def test_restored_the_server_gets_what_it_had(bench, entries):
    end_guest(bench)
    assert ready_again(bench) == entries


# -- a guest that runs on --------------------------------------------------------


@pytest.mark.parametrize(
    "has_process",
    [
        pytest.param(True, id="paused or locked"),
        pytest.param(False, id="suspended"),
    ],
)
def test_paused_suspended_or_locked_the_accelerators_are_left_intact(
    bench, check_kept, has_process
):
    if not has_process:
        end_guest(bench)
    since = len(bench.kernel.writes())
    check_kept()
    for write in bench.kernel.writes(since):
        assert GPU not in write.path + write.text
    if has_process:
        # The process of the guest still has the device open.
        with pytest.raises(exception.DevicesUnreleased):
            bench.unplug(SERVER)


def test_unpaused_resumed_or_unlocked_there_is_nothing_to_do(bench, entries):
    end_guest(bench)
    writes = bench.kernel.writes()
    bench.kernel.hold(GPU, **QEMU)
    assert bench.manager.attached(instance(SERVER)) == {uuid_of(SERVER): entries}
    assert bench.kernel.writes() == writes


def test_a_soft_reboot_leaves_the_accelerators_intact(bench, entries, check_kept):
    # libvirt's driver shuts the guest down, and starts it in another process.
    since = len(bench.kernel.writes())
    end_guest(bench)
    check_kept()
    bench.kernel.hold(GPU, pid=4712, command="qemu-kvm")
    check_kept()
    assert bench.manager.attached(instance(SERVER)) == {uuid_of(SERVER): entries}
    for write in bench.kernel.writes(since):
        assert GPU not in write.path + write.text


def test_a_soft_reboot_that_becomes_a_hard_one_returns_the_same_accelerators(
    bench, entries
):
    # The guest does not shut down in time: Nova ends it, and plugs.
    end_guest(bench)
    assert ready_again(bench) == entries
    bench.kernel.hold(GPU, pid=4712, command="qemu-kvm")
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]


def test_a_hard_reboot_returns_the_same_accelerators(bench, entries):
    end_guest(bench)
    assert ready_again(bench) == entries
    assert bench.plug(SERVER, GPU) == entries


def test_an_operation_without_a_call_leaves_the_accelerators_intact(check_kept):
    # Nova's side of these operations is in tests/functional/nova.
    check_kept()


def test_a_server_from_a_snapshot_gets_accelerators_of_its_own(bench, entries):
    (other,) = bench.plug(OTHER, FPGA)
    assert other["pci_id"] not in {entry["pci_id"] for entry in entries}
    assert bench.manager.attached(instance(SERVER)) == {uuid_of(SERVER): entries}


def test_rescued_the_server_keeps_its_accelerators(bench, entries, check_kept):
    # The rescue guest has no accelerators.
    end_guest(bench)
    check_kept()
    assert ready_again(bench) == entries


# -- shelve, rebuild, move -------------------------------------------------------


def test_shelved_and_not_offloaded_the_lease_is_kept(bench, entries, check_kept):
    end_guest(bench)
    check_kept()
    # To unshelve it is to start it.
    assert ready_again(bench) == entries


def test_offloaded_the_accelerators_are_detached(bench, entries):
    end_guest(bench)
    assert bench.unplug(SERVER) == len(entries)
    bench.plug(OTHER, GPU)


def test_unshelved_after_an_offload_it_is_a_start_with_a_new_selection(bench, entries):
    end_guest(bench)
    bench.unplug(SERVER)
    # The scheduler may select another device.
    (entry,) = bench.plug(SERVER, FPGA)
    assert entry["pci_id"] == FPGA


def test_rebuild_leaves_the_accelerators_attached(bench, entries):
    end_guest(bench)
    writes = len(bench.kernel.writes())
    assert bench.plug(SERVER, GPU) == entries
    assert not any("unbind" in write.path for write in bench.kernel.writes(writes))


def test_rebuild_with_another_function_programs_the_region(fpgas):
    image = images_of(fpgas)[CRYPTO]
    selected, extra_specs = request(fpgas.provider(CARD))
    plugged = fpgas.manager.plug(instance(SERVER), selected, extra_specs)
    rebuilt = instance(SERVER) | {"image_id": image}
    [entry] = fpgas.manager.plug(rebuilt, selected, extra_specs)
    assert entry == {**plugged[0], "function_id": CRYPTO}
    assert held(fpgas) == CRYPTO


def test_a_resized_server_keeps_its_lease_on_the_source_until_it_is_confirmed(
    bench, entries
):
    end_guest(bench)
    assert bench.manager.rekey(uuid_of(SERVER), uuid_of(MIGRATION)) == 1
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(OTHER, GPU)
    # On the same host, the new flavor's accelerators belong to the server.
    bench.plug(SERVER, FPGA)
    assert bench.unplug(MIGRATION) == len(entries)
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    assert bench.plugged(SERVER) == [FPGA]


def test_a_reverted_resize_returns_the_accelerators_to_the_server(bench, entries):
    end_guest(bench)
    bench.manager.rekey(uuid_of(SERVER), uuid_of(MIGRATION))
    bench.plug(SERVER, FPGA)
    assert bench.unplug(SERVER) == 1
    assert bench.manager.rekey(uuid_of(MIGRATION), uuid_of(SERVER)) == 1
    assert ready_again(bench) == entries


def test_evacuated_the_source_releases_them_when_it_is_back(bench, entries, tmp_path):
    spec = hosts.two_socket_host()
    with TestHost(tmp_path / "node2", spec, node_name="node2") as destination:
        (entry,) = destination.plug(SERVER, FPGA)
        assert entry["pci_id"] == FPGA
        assert destination.drivers(FPGA) == ["vfio-pci"]
        assert units(destination, FPGA) == (1, 0)
    # The failed source comes back.
    bench.kernel.reboot()
    bench.restart()
    assert bench.manager.attached(instance(SERVER)) == {uuid_of(SERVER): entries}
    assert bench.unplug(SERVER) == len(entries)
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    with destination.installed():
        assert destination.manager.attached(instance(SERVER)) == {
            uuid_of(SERVER): [entry]
        }


def test_a_guest_that_moves_has_a_device_on_both_hosts_until_it_has_left(tmp_path):
    spec = HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(migration=(7, 60)),))
    named = ['{"mdev_parent": "mtty", "mdev_types": "mtty-1"}']
    other = TestHost(tmp_path / "node2", spec, node_name="node2", device_spec=named)
    with TestHost(tmp_path / "node1", spec, device_spec=named) as source:
        source.plug(SERVER, PORT)
        described = migration.source(source.manager, instance(SERVER))
        assert [each["reason"] for each in described] == [""]
        with other as target:
            (entry,) = target.plug(SERVER, PORT)
            found = migration.pairs(target.manager, instance(SERVER), described)
            assert list(found.values()) == [entry["attach_handle_uuid"]]
        assert list(found) == [each.uuid for each in mdev.read_mdevs(source.root)]
        assert source.unplug(SERVER) == 1
        assert mdev.read_mdevs(source.root) == ()


def test_after_a_reboot_of_the_host_each_server_gets_what_it_had(bench, entries):
    bench.kernel.reboot()
    assert bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    bench.restart()
    assert ready_again(bench) == entries
    assert bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]


# -- the table -------------------------------------------------------------------


#: Commands of python-openstackclient 10.5 for a server, by their verbs. Without those
#: that only list or show, ``server ssh``, those of server groups, and deprecated ones.
COMMANDS = """
    add fixed ip, add floating ip, add network, add port, add security group,
    add share, add volume, backup create, create, delete, dump create, evacuate,
    image create, lock, migrate, migration abort,
    migration confirm, migration force complete, migration revert, pause, reboot,
    rebuild, remove fixed ip, remove floating ip, remove network, remove port,
    remove security group, remove share, remove volume, rescue, resize,
    resize confirm, resize revert, restore, resume, set, shelve, start, stop, suspend,
    unlock, unpause, unrescue, unset, unshelve, volume set
"""


def table() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    _head, *rows = re.split(r"^   \* - ", text, flags=re.MULTILINE)[1:]
    return rows


def test_each_command_of_openstack_server_has_a_row():
    named = {
        re.sub(r" [-<].*", "", each)
        for row in table()
        for each in re.findall(r"``server ([^`]*)``", re.split(r"\n     - ", row)[0])
    }
    wanted = {" ".join(each.split()) for each in COMMANDS.split(",")}
    assert wanted - named == set()
    assert named - wanted == set()


def test_each_row_of_the_table_names_its_tests():
    rows = table()
    assert len(rows) > 20
    tests = {name for name in globals() if name.startswith("test_")}
    named = [set(re.findall(r"test_\w+", row)) for row in rows]
    for row, found in zip(rows, named, strict=True):
        assert found or "not supported" in row, row
        assert found <= tests, row
    rest = {
        each
        for each in tests
        if each.startswith(("test_each_row", "test_each_command"))
    }
    assert set().union(*named) == tests - rest
