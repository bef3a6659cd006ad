# SPDX-License-Identifier: Apache-2.0

"""Plug, unplug and re-key as Nova calls them."""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.host import pci
from os_acc.inventory import discovery
from os_acc.objects.lease import PriorBinding
from os_acc.objects.pci import PciAddress
from os_acc.testing import instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.operator_commands import adopt, release
from tests.unit.store.store_files import execute, file_in

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
NIC, AUDIO = "0000:3b:00.0", "0000:17:00.1"
FOUR_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


# -- plug --------------------------------------------------------------------


def test_the_same_request_again_looks_at_its_own_devices_only(bench, monkeypatch):
    entries = bench.plug(1, GPU)
    arguments, writes = request(bench.provider(GPU)), bench.kernel.writes()
    monkeypatch.setattr(discovery, "discover", None)
    assert bench.manager.plug(instance(1), *arguments) == entries
    assert bench.manager.plug(instance(1), None, None) == entries
    assert bench.kernel.writes() == writes


@pytest.mark.parametrize("one", [False, True])
def test_what_another_service_has_plugged_of_a_new_card_is_confirmed(bench, one):
    card = bench.kernel.hot_unplug(FPGA)
    first = bench.restart()
    bench.kernel.hot_plug(card)
    second = bench.restart()
    provider = bench.provider(FPGA)
    selected, specs = request(provider)
    if one:
        selected = {"uuid": provider.uuid}
    entries = second.plug(instance(1), selected, specs)
    # This service was started before the card existed.
    assert first.plug(instance(1), selected, specs) == entries


@pytest.mark.parametrize("mapped", [False, True])
def test_the_allocation_of_a_former_resource_class_confirms_a_lease(make_bench, mapped):
    """In a rebuild, after the operator has changed the class of a device in use."""
    spec = '{{"address": "0000:17:00.*", "resource_class": "{}"}}'
    bench = make_bench(device_spec=[spec.format("CUSTOM_OLD")])
    selected, specs = request(bench.provider(GPU))
    if not mapped:
        del selected["mappings"]
    entries = bench.manager.plug(instance(1), selected, specs)
    manager = bench.restart(device_spec=[spec.format("CUSTOM_NEW")])
    assert manager.plug(instance(1), selected, specs) == entries
    with pytest.raises(exception.InvalidAllocation):
        manager.plug(instance(2), selected, specs)


def test_one_provider_is_enough(bench):
    provider = bench.provider(FPGA)
    (entry,) = bench.manager.plug(
        instance(1),
        {"uuid": provider.uuid, "name": "of no concern"},
        {f"resources:{provider.device.resource_class}": "1"},
    )
    assert (entry["pci_id"], entry["device_rp_uuid"]) == (FPGA, provider.uuid)
    assert entry["request_group"] == ""


def test_an_allocation_of_others_alone_needs_nothing(bench):
    selected = {"allocations": {uuid_of(9): {"resources": {"VCPU": 2}}}}
    assert bench.manager.plug(instance(1), selected, {"resources:VCPU": "2"}) == []
    assert bench.manager.store.leases() == ()
    assert bench.kernel.writes() == []


def test_an_amount_is_so_many_accelerators(make_bench):
    bench = make_bench(device_spec=[FOUR_VFS])
    entries = bench.plug(1, NIC, amount=3)
    assert len({entry["pci_id"] for entry in entries}) == 3
    with pytest.raises(exception.NoDeviceAvailable) as caught:
        bench.plug(2, NIC, amount=2)
    assert bench.provider(NIC).name in str(caught.value)
    assert caught.value.hint
    assert bench.plugged(2) == []
    assert bench.unplug(1) == 3
    assert len(bench.plug(2, NIC, amount=4)) == 4


def test_a_store_that_is_damaged_in_a_plug_that_fails_is_told_of(bench, monkeypatch):
    def establish(*_arguments: object) -> None:
        Path(bench.state_path, "os_acc.sqlite").write_bytes(b"no database")
        raise exception.DeviceStuck("it takes too long")

    monkeypatch.setattr(bench.manager.life, "establish", establish)
    with pytest.raises(exception.DeviceStuck) as caught:
        bench.plug(1, FPGA)
    assert "damaged" in "".join(caught.value.__notes__)


def test_arguments_are_never_changed(bench):
    selected, specs = request(bench.provider(GPU), bench.provider(FPGA))
    arguments = [instance(1) | {"image_id": None, "more": [1]}, selected, specs]
    before = copy.deepcopy(arguments)
    bench.manager.plug(*arguments)
    bench.manager.plug(*arguments)
    bench.manager.attached(arguments[0])
    bench.manager.requests_accelerators(specs)
    bench.manager.unplug(arguments[0])
    assert arguments == before


def test_an_entry_that_the_caller_changes_is_its_own(bench):
    entries = bench.plug(1, FPGA)
    before = copy.deepcopy(entries)
    entries[0].clear()
    assert bench.plug(1, FPGA) == before


# -- deadlines ---------------------------------------------------------------


def in_no_time(bench) -> None:
    manager = bench.manager
    manager.settings = dataclasses.replace(
        manager.settings, plug_timeout=-1.0, unplug_timeout=-1.0
    )


def test_a_plug_that_runs_out_of_time_leaves_nothing(bench):
    before = bench.kernel.snapshot()
    selected, specs = request(bench.provider(GPU))
    in_no_time(bench)
    with pytest.raises((exception.LockTimeout, exception.DeviceStuck)):
        bench.manager.plug(instance(1), selected, specs)
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_an_unplug_that_runs_out_of_time_keeps_the_lease(bench):
    bench.plug(1, GPU)
    in_no_time(bench)
    with pytest.raises((exception.LockTimeout, exception.DevicesUnreleased)):
        bench.unplug(1)
    assert bench.plugged(1) == [GPU]
    bench.restart()
    bench.unplug(1)
    assert bench.manager.store.leases() == ()


# -- re-key ------------------------------------------------------------------


def test_a_parked_lease_is_that_of_its_migration(bench):
    (entry,) = bench.plug(1, FPGA)
    writes = bench.kernel.writes()
    bench.manager.rekey(uuid_of(1), uuid_of(2))
    parked = entry | {"instance_uuid": uuid_of(2)}
    assert bench.manager.attached(None) == {uuid_of(2): [parked]}
    with pytest.raises(exception.NoDeviceAvailable):
        bench.plug(3, FPGA)
    assert bench.manager.rekey(uuid_of(2), uuid_of(1).upper()) == 1
    assert bench.manager.attached(None) == {uuid_of(1): [entry]}
    assert bench.kernel.writes() == writes


@pytest.mark.parametrize("new", [1, 2])
def test_leases_are_never_mixed_with_those_of_another(bench, new):
    bench.plug(1, FPGA)
    bench.plug(2, GPU)
    before = bench.manager.attached(None)
    with raises(exception.ConflictReason.CONSUMER, match=uuid_of(new)):
        bench.manager.rekey(uuid_of(1), uuid_of(new))
    assert bench.manager.attached(None) == before


def test_what_waits_in_quarantine_keeps_no_leases_from_coming_back(bench):
    """A resize on one host is reverted because its new device fails."""
    bench.plug(1, FPGA)
    bench.manager.rekey(uuid_of(1), uuid_of(2))
    bench.plug(1, GPU)
    bench.kernel.fail(GPU, "unbind")
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert bench.manager.rekey(uuid_of(2), uuid_of(1)) == 1
    (entry,) = bench.manager.plug(instance(1), None, None)
    assert entry["pci_id"] == FPGA
    assert sorted(bench.plugged(1)) == [GPU, FPGA]


# -- queries -----------------------------------------------------------------


def test_a_flavor_asks_for_accelerators_where_this_host_offers_them(bench):
    asks = bench.manager.requests_accelerators
    assert asks({"resources1:CUSTOM_ACCELERATOR_GPU": "1"}) is True
    assert asks({"resources1:CUSTOM_ACCELERATOR_HPTS": "1"}) is False
    assert asks({"resources:VCPU": "1"}) is False
    assert asks({}) is asks(None) is False
    bench.plug(1, GPU, "0000:b1:00.0")
    assert asks({"resources:CUSTOM_ACCELERATOR_GPU": "1"}) is True


def test_attached_tells_the_entries_of_one_or_of_all(bench):
    first, second = bench.plug(1, GPU), bench.plug(2, FPGA)
    assert bench.manager.attached(instance(1)) == {uuid_of(1): first}
    assert bench.manager.attached(instance(3)) == {}
    assert bench.manager.attached(None) == {uuid_of(1): first, uuid_of(2): second}


def test_a_device_of_which_the_kernel_says_nothing_is_passed_over(
    make_bench, monkeypatch
):
    bench = make_bench(device_spec=[FOUR_VFS])
    provider = bench.provider(NIC)
    stuck, second, *others = (handle.address for handle in provider.device.handles)
    read, gate = pci.read_binding, threading.Event()

    def read_unless_stuck(root: str, address: PciAddress) -> PriorBinding | None:
        if address == stuck:
            gate.wait()
        return read(root, address)

    monkeypatch.setattr(pci, "read_binding", read_unless_stuck)
    monkeypatch.setattr(verification, "_READ_SECONDS", 2.0)
    arguments = request(provider)
    try:
        bench.manager.plug(instance(1), *arguments)
        assert bench.plugged(1) == [str(second)]
        with pytest.raises(exception.DeviceStuck, match=str(stuck)):
            bench.manager.plug(instance(2), *request(provider, amount=1 + len(others)))
        assert bench.plugged(2) == []
    finally:
        gate.set()


def test_no_guest_starts_with_a_part_of_its_devices(bench):
    bench.plug(1, GPU, FPGA)
    execute(
        file_in(bench.state_path),
        "UPDATE leases SET payload = payload || ' '"
        f""" WHERE payload LIKE '%"address":"{FPGA}"%'""",
    )
    with raises(exception.ObjectKind.LEASE, match="1 of 2 accelerators"):
        bench.manager.plug(instance(1), None, None)
    release(bench, FPGA)
    adopt(bench, FPGA, "")
    assert len(bench.manager.plug(instance(1), None, None)) == 2
    assert bench.unplug(1) == 2


# -- log ---------------------------------------------------------------------


def test_the_log_names_the_instance(bench, caplog):
    """Specification: "The instance name is needed for better logging"."""
    caplog.set_level(logging.INFO)
    guest = instance(1) | {"name": "web-1"}
    named = f"{uuid_of(1)} ('web-1')"
    bench.manager.plug(guest, *request(bench.provider(GPU), bench.provider(FPGA)))
    assert f"attached {GPU}, {FPGA} to instance {named}" in caplog.messages
    bench.kernel.hold(GPU)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    assert f"released {FPGA} of instance {named}" in caplog.messages
    (waits,) = (each for each in caplog.messages if "cannot release" in each)
    assert named in waits
    bench.kernel.let_go(GPU)
    for attempt in bench.manager.retrier.retry():
        attempt.result()
    assert f"a retry has released {GPU} of instance {named}" in caplog.messages


def test_a_name_cannot_forge_a_line_of_the_log(bench, caplog):
    caplog.set_level(logging.INFO)
    guest = instance(1) | {"name": "x\nERROR os_acc"}
    bench.manager.plug(guest, *request(bench.provider(GPU)))
    assert f"attached {GPU} to instance {uuid_of(1)}" in caplog.text
    assert not any("\n" in each for each in caplog.messages)
