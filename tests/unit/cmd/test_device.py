# SPDX-License-Identifier: Apache-2.0

"""``os-acc device`` lists devices and their events, and releases or adopts them."""

import dataclasses
import datetime
import json
import os
from pathlib import Path

import pytest

from os_acc.objects.lease import LeaseState
from os_acc.store import StoreDamaged
from os_acc.testing import HostSpec, TestHost, hosts, uuid_of
from os_acc.testing.mdevs import mtty
from tests.unit import acme
from tests.unit.cmd.console import Console
from tests.unit.plugins import mdev_vendor
from tests.unit.store.store_files import execute, file_in

GPU, AUDIO, NIC, FPGA = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0", "0000:5e:00.0"
UNKNOWN = "unknown devices"
GPU_CLASS = "CUSTOM_ACCELERATOR_GPU"
OTHER_GPU, OTHER_AUDIO = "0000:b1:00.0", "0000:b1:00.1"


def make_unknown(bench: TestHost, number: int, address: str) -> None:
    """Leave a device as another program would: prepared, and without a lease."""
    bench.plug(number, address)
    bench.manager.store.delete(bench.manager.store.leases(uuid_of(number)))
    bench.remove_records()


def lose_store(bench: TestHost) -> None:
    """Remove the store of a running service, which detects it."""
    file_in(bench.state_path).unlink()
    with pytest.raises(StoreDamaged):
        bench.manager.store.leases()
    bench.manager.discover()


def make_quarantined(bench: TestHost, number: int, address: str) -> None:
    """Quarantine a device that does not return to its driver."""
    bench.plug(number, address)
    bench.kernel.ignore(address, "drivers_probe", times=None)
    with pytest.raises(Exception, match="cannot release"):
        bench.unplug(number)
    assert bench.manager.store.leases()[0].state is LeaseState.QUARANTINED


def damage(bench: TestHost) -> None:
    """Change one byte of the record of every lease."""
    execute(file_in(bench.state_path), "UPDATE leases SET payload = payload || ' '")


def contents(directory: str) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in Path(directory).rglob("*")
        if path.is_file()
    }


def test_the_listing_says_what_is_free_and_why_the_rest_is_not(console):
    rows = {row["Address"]: row for row in console.json("device", "list")}
    assert rows[GPU] == {
        "Address": GPU,
        "Model": "10de:2235",
        "Resource Class": "CUSTOM_ACCELERATOR_GPU",
        "State": "free",
        "Consumer": None,
        "NUMA Node": 0,
        "Driver": "nouveau",
        "Reason": None,
    }
    assert rows[AUDIO]["Reason"] == f"assigned with {GPU}"
    assert rows["0000:04:00.0"]["State"] == "refused"
    assert "mounted at /" in rows["0000:04:00.0"]["Reason"]
    assert rows["0000:e3:00.0"]["NUMA Node"] is None


def test_the_long_listing_adds_the_provider_and_the_place(console):
    (gpu,) = (
        row
        for row in console.json("device", "list", "--long")
        if row["Address"] == OTHER_GPU
    )
    assert gpu["Provider"] == console.bench.provider(OTHER_GPU).uuid
    assert gpu["IOMMU Group"] == console.bench.kernel.group(OTHER_GPU)
    assert gpu["Identity"].startswith("10de:2235:")


@pytest.mark.parametrize(
    "arguments",
    [("device", "list"), ("device", "history"), ("provider", "list"), ("attached",)],
)
def test_looking_at_a_fresh_host_makes_nothing(console, arguments):
    console.json(*arguments)
    assert os.listdir(console.bench.state_path) == []
    assert console.bench.kernel.writes() == []


def test_listing_replays_nothing(console):
    bench = console.bench
    bench.plug(1, GPU)
    (lease,) = bench.manager.store.leases()
    bench.manager.store.replace(
        [dataclasses.replace(lease, state=LeaseState.PREPARING)]
    )
    before = contents(bench.state_path), bench.kernel.snapshot()
    assert console.state(GPU) == "preparing"
    assert console.json("device", "show", GPU)["State"] == "preparing"
    assert (contents(bench.state_path), bench.kernel.snapshot()) == before


def test_a_function_that_nobody_named_is_not_shown(console):
    console.configure(f'{{"address": "{GPU}"}}')
    ran = console.run("device", "show", FPGA)
    assert ran.status == 1
    assert "os_acc does not manage" in ran.err
    assert "hint: add the device" in ran.err


def test_after_a_reboot_a_lease_is_shown_as_of_an_earlier_boot(console):
    console.bench.plug(1, GPU)
    shown = console.json("device", "show", GPU)
    assert (shown["Owner"], shown["Recorded In This Boot"]) == ("nova", True)
    console.bench.kernel.reboot()
    assert console.json("device", "show", GPU)["Recorded In This Boot"] is False


def test_a_leased_device_that_was_pulled_out_is_still_listed(console):
    console.bench.plug(1, FPGA)
    console.bench.kernel.hot_unplug(FPGA)
    row = console.device(FPGA)
    assert row["State"] == "leased"
    assert row["Driver"] is None
    assert row["Reason"] == "no longer on this host"


def test_what_the_store_has_lost_is_shown_adopted_and_released(console):
    console.bench.plug(1, GPU)
    console.bench.plug(2, FPGA)
    leases = console.bench.manager.store.leases()
    lose_store(console.bench)
    for lease in leases:
        row = console.device(str(lease.address))
        assert row["State"] == "unknown"
        assert f"claimed by lease {lease.uuid}, which" in row["Reason"]
    findings = [row["What"] for row in console.checks()[UNKNOWN]]
    assert sum("which the store has lost" in each for each in findings) == 2
    adopted = console.json("device", "adopt", FPGA, "--consumer", uuid_of(2))
    assert (adopted["State"], adopted["Consumer"]) == ("leased", uuid_of(2))
    after = console.json("device", "release", GPU)
    assert (after["State"], after["Driver"]) == ("free", "nouveau")
    assert console.bench.drivers(GPU, AUDIO) == ["nouveau", "snd_hda_intel"]
    findings = [row["What"] for row in console.checks()[UNKNOWN]]
    assert not any("which the store has lost" in each for each in findings)


def test_the_drivers_of_all_that_goes_back_have_to_be_named(console):
    make_unknown(console.bench, 1, GPU)
    assert (console.state(GPU), console.state(AUDIO)) == ("unknown", "unknown")
    ran = console.run("device", "release", GPU, "--driver", "nouveau")
    assert ran.status == 1
    assert f"the prior driver of {AUDIO}" in ran.err
    assert console.bench.drivers(GPU, AUDIO) == ["vfio-pci", "vfio-pci"]


def test_a_leased_device_is_neither_released_nor_adopted(console):
    console.bench.plug(1, FPGA)
    ran = console.run("device", "release", FPGA)
    assert ran.status == 1
    assert uuid_of(1) in ran.err
    ran = console.run(
        *("device", "adopt", FPGA, "--consumer", uuid_of(2), "--driver", "")
    )
    assert ran.status == 1
    row = console.device(FPGA)
    assert (row["State"], row["Consumer"]) == ("leased", uuid_of(1))


def test_a_card_is_not_free_while_a_part_of_it_is_unknown(console):
    make_unknown(console.bench, 1, GPU)
    kernel = console.bench.kernel
    kernel.write(kernel.path(f"sys/bus/pci/devices/{GPU}/driver/unbind"), GPU)
    assert console.state(GPU) == "refused"
    assert f"{AUDIO}: prepared for a guest" in console.device(GPU)["Reason"]


def test_a_prebound_device_is_free(console):
    make_unknown(console.bench, 1, FPGA)
    console.configure(f'{{"address": "{FPGA}", "prebound": true}}')
    assert console.state(FPGA) == "free"


@pytest.mark.parametrize("driver", ["nouveau", ""])
def test_what_nova_claims_is_not_taken_along_with_its_sibling(
    make_bench, tmp_path, driver
):
    display, audio = hosts.gpu("0000:17")
    spec = HostSpec(
        (
            dataclasses.replace(display, driver=driver),
            dataclasses.replace(audio, reset_methods=("flr",)),
        ),
        mounts=("/dev/sda1 / ext4 rw 0 0",),
    )
    console = Console(make_bench(spec), tmp_path)
    console.configure(more=f'[pci]\ndevice_spec = {{"address": "{GPU}"}}')
    row = console.device(AUDIO)
    assert row["State"] == "refused"
    assert f"{GPU}: claimed by Nova" in row["Reason"]


def test_a_device_that_os_acc_may_not_touch_is_left_alone(console):
    make_unknown(console.bench, 1, FPGA)
    console.configure(f'{{"address": "{GPU}"}}')
    for more in ((), ("--force",)):
        ran = console.run("device", "release", FPGA, "--driver", "", *more)
        assert ran.status == 1
        assert "device_spec" in ran.err
    assert console.bench.drivers(FPGA) == ["vfio-pci"]


def test_a_device_that_nova_claims_is_left_alone(console):
    make_unknown(console.bench, 1, FPGA)
    console.configure(more=f'[pci]\ndevice_spec = {{"address": "{FPGA}"}}')
    assert console.run("device", "release", FPGA, "--driver", "").status == 1
    assert console.bench.drivers(FPGA) == ["vfio-pci"]


def test_a_lost_mediated_device_is_listed_and_adopted(tmp_path, install_plugins):
    install_plugins(vendor=f"{mdev_vendor.HERE}:Stepping")
    spec = HostSpec(mdev_parents=(mtty(),))
    slot, named = f"{mdev_vendor.TYPES[0]}/0", mdev_vendor.NAMED[0]
    with TestHost(tmp_path, spec, device_spec=[named]) as host:
        console = Console(host, tmp_path)
        console.configure(named)
        host.plug(1, mdev_vendor.TYPES[0])
        lose_store(host)
        host.manager.discover(float("inf"))
        row = console.device(slot)
        assert (row["State"], "which the store has lost" in row["Reason"]) == (
            "unknown",
            True,
        )
        adopted = console.json("device", "adopt", slot, "--consumer", uuid_of(1))
        assert (adopted["State"], adopted["Consumer"]) == ("leased", uuid_of(1))
        assert console.json("unplug", uuid_of(1))["Released"] == 1
        assert console.state(slot) == "free"


def test_force_forgets_a_device_that_cannot_be_given_back(console):
    make_quarantined(console.bench, 1, NIC)
    ran = console.run("device", "release", NIC)
    assert ran.status == 1
    assert "; repair the cause, then release it again; with --force" in ran.err
    assert console.state(NIC) == "quarantined"
    assert console.run("device", "release", NIC, "--force").status == 0
    assert console.json("attached") == []


def test_a_damaged_record_keeps_its_device_until_it_is_released(console):
    bench = console.bench
    bench.plug(1, OTHER_GPU)
    damage(bench)
    before = contents(bench.state_path)
    row = console.device(OTHER_GPU)
    assert row["State"] == "unknown"
    assert "the record of its lease is damaged" in row["Reason"]
    assert contents(bench.state_path) == before
    console.json("device", "release", OTHER_GPU)
    assert "damaged" not in console.device(OTHER_GPU)["Reason"]
    console.json(
        *("device", "release", OTHER_GPU, "--driver", "nouveau"),
        *("--sibling", f"{OTHER_AUDIO}=snd_hda_intel"),
    )
    assert console.state(OTHER_GPU) != "leased"
    assert bench.drivers(OTHER_GPU) == ["nouveau"]


def test_a_device_waits_for_the_plugin_that_has_prepared_it(console, install_plugins):
    install_plugins(acme="tests.unit.acme:Marks")
    console.bench.plug(1, FPGA)
    install_plugins()
    # Before the unplug, 'os-acc check' warns.
    (waiting, _readable) = console.checks()["records"]
    assert waiting["What"].startswith(f"{FPGA} was prepared by the plugin acme")
    assert "enabled_plugins" in waiting["Hint"]
    assert not any(FPGA in row["What"] for row in console.checks()["devices"])
    row = console.device(FPGA)
    assert (row["State"], row["Reason"]) == (
        "leased",
        "supported by no plugin: it waits for acme",
    )

    assert console.run("unplug", uuid_of(1)).status == 1
    row = console.device(FPGA)
    assert row["State"] == "quarantined"
    assert "the plugin acme, which prepared" in row["Reason"]
    ran = console.run("device", "release", FPGA)
    assert ran.status == 1
    assert "hint: install the plugin" in ran.err
    assert console.state(FPGA) == "quarantined"

    install_plugins(acme="tests.unit.acme:Marks")
    assert console.json("device", "release", FPGA)["State"] == "free"
    assert acme.marked(console.bench.root) == []


def test_a_device_that_owes_nothing_is_no_warning(console, install_plugins):
    install_plugins(acme="tests.unit.acme:Marks")
    console.bench.plug(1, GPU)
    console.configure(more="enabled_plugins = acme")
    assert console.results("records") == {"ok"}


# -- history -------------------------------------------------------------------


@pytest.fixture
def used(console: Console) -> Console:
    """Return a shell on a host with two devices that had instances."""
    console.bench.plug(1, GPU)
    console.bench.plug(2, FPGA)
    console.bench.unplug(1)
    return console


def test_each_change_of_a_device_is_listed_the_newest_last(used):
    rows = used.json("device", "history", GPU)
    assert [(each["Operation"], each["State"]) for each in rows] == [
        ("add", "preparing"),
        ("replace", "leased"),
        ("replace", "releasing"),
        ("delete", "releasing"),
    ]
    assert {each["Address"] for each in rows} == {GPU}
    assert {each["Consumer"] for each in rows} == {uuid_of(1)}
    times = [datetime.datetime.fromisoformat(each["Time"]) for each in rows]
    assert times == sorted(times)
    assert times[0].tzinfo == datetime.UTC


def test_without_an_address_every_device_is_listed(used):
    rows = used.json("device", "history")
    assert {each["Address"] for each in rows} == {GPU, FPGA}


def test_an_instance_has_a_history_too(used):
    rows = used.json("device", "history", "--consumer", uuid_of(2))
    assert [each["Operation"] for each in rows] == ["add", "replace"]
    assert {each["Address"] for each in rows} == {FPGA}


def test_a_rekey_is_in_the_history_of_both_consumers(used):
    used.bench.manager.rekey(uuid_of(2), uuid_of(3))
    for consumer in (uuid_of(2), uuid_of(3)):
        *_, last = used.json("device", "history", "--consumer", consumer)
        assert last["Operation"] == "rekey"
        assert last["Detail"] == f"from {uuid_of(2)}"


def test_the_newest_events_are_selected(used):
    everything = used.json("device", "history", GPU)
    assert used.json("device", "history", GPU, "--limit", "2") == everything[-2:]


def test_nothing_recorded_is_no_error(console):
    ran = console.run("device", "history", "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    assert ran.err == (
        f"os-acc: no such event is recorded in {console.bench.state_path}\n"
    )


def test_a_member_has_the_history_of_its_device(console):
    audio = "0000:17:00.1"
    assert console.json("device", "show", GPU)["Members"] == [GPU, audio]
    ran = console.run("device", "history", audio, "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    assert ran.err == (
        f"os-acc: {audio} is assigned together with {GPU}, "
        f"which has the events: os-acc device history {GPU}\n"
    )


def test_a_state_directory_that_does_not_exist_is_named(console):
    os.rmdir(console.bench.state_path)
    ran = console.run("device", "history")
    assert ran.status == 1
    assert f"state directory {console.bench.state_path} does not exist" in ran.err
    assert "no such event" not in ran.err
    assert not os.path.exists(console.bench.state_path)


def test_a_host_that_cannot_be_inspected_has_a_history(used):
    used.configure("{")
    assert used.run("device", "list").status == 1
    assert used.json("device", "history", GPU)
    ran = used.run("device", "history", "0000:17:00.1")
    assert ran.status == 0
    assert "no such event is recorded" in ran.err


def test_devices_are_selected_by_class_consumer_node_and_states(console):
    console.bench.plug(1, GPU)

    def found(*arguments: str) -> set[str]:
        return {row["Address"] for row in console.json("device", "list", *arguments)}

    every = {row["Address"]: row for row in console.json("device", "list")}
    gpus = {at for at, row in every.items() if row["Resource Class"] == GPU_CLASS}
    assert found("--class", GPU_CLASS) == gpus
    leased = {at for at, row in every.items() if row["State"] == "leased"}
    assert GPU in leased
    assert found("--consumer", uuid_of(1)) == leased
    free = {at for at, row in every.items() if row["State"] == "free"}
    assert found("--state", "leased", "--state", "free") == leased | free
    node = every[GPU]["NUMA Node"]
    on_node = {at for at, row in every.items() if row["NUMA Node"] == node}
    assert found("--numa-node", str(node)) == on_node
    assert found("--numa-node", str(node), "--state", "leased") == on_node & leased


def test_an_address_needs_no_domain(console):
    shown = console.json("device", "show", GPU.removeprefix("0000:"))
    assert shown["Address"] == GPU


@pytest.mark.parametrize("formatter", ["table", "value"])
def test_a_column_with_empty_cells_can_be_sorted(console, formatter):
    console.bench.plug(1, GPU)
    arguments = ("device", "list", "-f", formatter, "--sort-column", "consumer")
    ran = console.run(*arguments, "-c", "Consumer")
    assert ran.status == 0, ran.err
    assert ran.err == ""
    cells = [each.strip("| ") for each in ran.out.splitlines() if "+" not in each]
    assert uuid_of(1) in cells[:2]


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_an_unplug_without_the_lease_names_the_way_back(console, how):
    """Each command is executed as it is printed."""
    console.configure(f'{{"address": "{GPU}"}}')
    before = console.bench.drivers(GPU, AUDIO)
    console.bench.plug(1, GPU)
    store = file_in(console.bench.state_path)
    if how == "lost":
        store.unlink()
    else:
        store.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    ran = console.run("unplug", uuid_of(1))
    assert ran.status == 1
    (line,) = [each for each in ran.err.splitlines() if each.startswith("os-acc: ")]
    assert "its lease is lost" in line
    adopt = f"device adopt {GPU} --consumer {uuid_of(1)}"
    assert line.endswith(f"os-acc {adopt}")
    (hint,) = [row["Hint"] for row in console.json("check") if row["Check"] == UNKNOWN]
    assert adopt.replace(uuid_of(1), "UUID") in hint
    assert hint.endswith(f"else os-acc device release {GPU}")

    ran = console.run(*adopt.split())
    assert (ran.status, ran.err) == (0, "")
    ran = console.run("unplug", uuid_of(1))
    assert (ran.status, ran.err) == (0, "")
    assert console.bench.drivers(GPU, AUDIO) == before
    assert console.device(GPU)["State"] == "free"
