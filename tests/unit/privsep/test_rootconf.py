# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Root's configuration limits what a helper does for its callers."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import exception, state_path
from os_acc.objects.pci import PciAddress
from os_acc.privsep import (
    binding,
    functions,
    images,
    record,
    rootconf,
    sriov,
    tools,
    worker,
)
from os_acc.privsep.outcome import Outcome, Result
from os_acc.privsep.rootconf import Mode
from os_acc.testing import FakeKernel, hosts
from tests.stress.hostile_client import RETURNED, connected
from tests.unit.fpga_host import CARD, PORTED, SECOND, VFS, FpgaHost

LEASE = "11111111-1111-4111-8111-111111111111"
OTHERS = "22222222-2222-4222-8222-222222222222"
GPU, AUDIO = PciAddress(0, 0x17, 0, 0), PciAddress(0, 0x17, 0, 1)
NIC, UP = PciAddress(0, 0x3B, 0, 0), PciAddress(0, 0xAF, 0, 0)
DISK = PciAddress(0, 4, 0, 0)
FPGA = PciAddress(0, 0x5E, 0, 0)
#: A GPU, its audio function and a NIC, all of one IOMMU group.
SHARED = (PciAddress(0, 1, 0, 0), PciAddress(0, 1, 0, 1), PciAddress(0, 2, 0, 0))
OK = Result(Outcome.OK)
DENIED = Outcome.DENIED

Write = Callable[..., Path]


@pytest.fixture
def write(fake: FakeKernel) -> Write:
    """``write(*device_spec, ...)`` writes root's configuration of the fake host."""

    def write(*device_spec: str, more: str = "", mode: int = 0o644) -> Path:
        path = Path(fake.root, *rootconf.PATH)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"device_spec = {value}\n" for value in device_spec]
        path.write_text("[os_acc]\n" + "".join(lines) + more)
        path.chmod(mode)
        return path

    return write


def named(address: PciAddress, more: str = "") -> str:
    return f'{{"address": "{address}"{more}}}'


def targets(*places: PciAddress, more: tuple[str, ...] = ()):
    return tuple((place.parts, functions.identity(place), *more) for place in places)


def take(*places: PciAddress, lease: str = LEASE) -> list[str]:
    group = functions.group(places[0])
    answers = binding.take(group, targets(*places), 1, 30_000, lease)
    return [Result(*answer).outcome for answer in answers]


def give_back(
    place: PciAddress = GPU, driver: str = "nouveau", override: str = ""
) -> Result:
    told = targets(place, more=(driver, override))
    (answer,) = binding.give_back(functions.group(place), told, 1, 30_000, True, LEASE)
    return Result(*answer)


def make_vfs(count: int, place: PciAddress = NIC) -> Result:
    identity = functions.identity(place)
    return Result(*sriov.set_num_vfs(place.parts, identity, count, 1, 30_000))


def taken_by_an_older_version(fake: FakeKernel, *places: PciAddress) -> None:
    """The functions are on vfio-pci, and no record says since when."""
    assert take(*places) == [Outcome.OK] * len(places)
    for place in places:
        record.remove(place)


# -- what is allowed -------------------------------------------------------------


def test_what_is_named_is_taken_with_the_rest_of_its_card(fake, write):
    write(named(GPU))
    assert take(GPU, AUDIO) == [Outcome.OK, Outcome.OK]


@pytest.mark.parametrize("place", [GPU, NIC, DISK])
def test_what_is_not_named_is_not_taken(fake, write, place):
    write(named(UP))
    assert take(place) == [DENIED]
    assert fake.writes() == []
    assert record.read(place) is None


def test_a_sibling_is_not_taken_without_the_function_that_is_named(fake, write):
    write(named(GPU))
    assert take(AUDIO) == [DENIED]
    assert fake.writes() == []


def test_of_a_group_only_the_card_that_is_named_is_taken(make_bench):
    fake = make_bench(hosts.shared_group_host()).kernel
    path = Path(fake.root, *rootconf.PATH)
    path.parent.mkdir(parents=True)
    path.write_text(f"[os_acc]\ndevice_spec = {named(SHARED[0])}\n")
    assert take(*SHARED) == [Outcome.OK, Outcome.OK, DENIED]
    assert fake.state(str(SHARED[2])).driver == "ice"


def test_vfs_are_named_by_their_pf(fake, write):
    write(named(NIC, ', "num_vfs": 2'))
    assert make_vfs(2) == OK
    vf, _ = sorted(
        PciAddress.parse(os.path.basename(os.readlink(link)))
        for link in Path(functions.directory(NIC)).glob("virtfn*")
    )
    assert take(vf) == [Outcome.OK]


def test_a_network_interface_names_its_function(fake, write):
    write('{"devname": "ens1f0"}')
    assert take(NIC) == [Outcome.OK]


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        (named(UP, ', "num_vfs": 2'), 2),
        (named(NIC), 2),
        (named(NIC, ', "num_vfs": 4'), 2),
    ],
    ids=["another function", "no number", "another number"],
)
def test_vfs_are_made_as_it_says_alone(fake, write, entry, count):
    write(entry)
    denied = make_vfs(count)
    assert (denied.outcome, denied.errno) == (DENIED, errno.EPERM)
    assert fake.writes() == []


def test_what_is_not_named_is_not_recorded_either(fake, write):
    write(named(UP))
    (answer,) = binding.reserve(
        functions.group(GPU), targets(GPU), 1, 30_000, LEASE, "host", ""
    )
    assert Result(*answer).outcome == DENIED
    assert record.read(GPU) is None


# -- which file counts -------------------------------------------------------------


def test_without_a_file_a_caller_decides_and_the_log_says_so(fake, caplog):
    with caplog.at_level(logging.WARNING):
        assert take(NIC) == [Outcome.OK]
    assert rootconf.current().mode is Mode.ABSENT
    assert "the service's user decides" in caplog.text


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_ignored_aloud(fake, write, caplog, mode):
    path = write(named(UP), mode=mode)
    with caplog.at_level(logging.WARNING):
        assert take(NIC) == [Outcome.OK]
    assert rootconf.current().mode is Mode.IGNORED
    assert f"{path} is IGNORED" in caplog.text


@pytest.mark.parametrize("place", [".", "etc", "etc/os-acc"])
def test_a_file_in_a_directory_that_others_can_write_is_ignored(fake, write, place):
    write(named(UP))
    Path(fake.root, place).chmod(0o777)
    assert rootconf.current().mode is Mode.IGNORED


@pytest.mark.parametrize("place", ["etc/os-acc/privileged.conf", "etc/os-acc"])
def test_a_file_of_another_user_is_ignored(fake, write, monkeypatch, place):
    write(named(UP))
    found, lstat = Path(fake.root, place), os.lstat

    def owned_by_another(path):
        result = lstat(path)
        if str(path) != str(found):
            return result
        return os.stat_result((*result[:4], os.geteuid() + 1, *result[5:]))

    monkeypatch.setattr(os, "lstat", owned_by_another)
    conf = rootconf.current()
    assert conf.mode is Mode.IGNORED
    assert f"{found} belongs to user" in conf.why


def test_a_link_is_ignored(fake, write, tmp_path):
    path = write(named(UP))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert rootconf.current().mode is Mode.IGNORED


@pytest.mark.parametrize(
    "text",
    ["{", '{"adress": "0000:17:00.0"}', '{"vendor_id": ""}', "$nothing"],
)
def test_with_a_file_that_cannot_be_read_nothing_is_allowed(fake, write, text):
    write(text)
    assert rootconf.current().mode is Mode.BROKEN
    assert take(GPU) == [DENIED]
    assert make_vfs(1).outcome == DENIED
    assert fake.writes() == []


def test_bytes_that_are_no_text_allow_nothing(fake, write):
    write(named(GPU)).write_bytes(b"[os_acc]\ndevice_spec = \xff\xfe\n")
    assert take(GPU) == [DENIED]


def test_a_change_counts_from_the_next_call_on(fake, write):
    write(named(NIC))
    assert take(GPU) == [DENIED]
    write(named(NIC), named(GPU))
    assert take(GPU) == [Outcome.OK]


def test_paths_come_from_roots_file_if_there_is_one(fake, write, monkeypatch):
    write(named(GPU), more="state_path = /srv/state\n[os_acc_xrt]\ntools = /srv/xrt\n")
    rootconf.current()
    assert images.Images().directory() == "/srv/state/bitstreams"
    assert tools.Tools().directory() == "/srv/xrt"


def test_a_path_of_the_callers_configuration_does_not_count(fake, write):
    cfg.CONF.register_opt(state_path.OPTION, group=state_path.GROUP)
    cfg.CONF.set_override("state_path", "/home/nova", group=state_path.GROUP)
    try:
        assert images.Images().directory() == "/home/nova/bitstreams"
        write(named(GPU))
        assert images.Images().directory() == "/var/lib/os_acc/bitstreams"
    finally:
        cfg.CONF.clear_override("state_path", group=state_path.GROUP)


def test_a_path_that_roots_file_leaves_out_has_its_default(fake, write):
    write(named(GPU))
    rootconf.current()
    assert images.Images().directory() == "/var/lib/os_acc/bitstreams"
    assert tools.Tools().directory() == "/opt/xilinx/xrt/bin"


# -- restoring ---------------------------------------------------------------------


def test_what_has_left_device_spec_while_leased_goes_back_as_recorded(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write(named(UP))
    assert give_back(driver="pci-stub", override="pci-stub") == OK
    assert fake.state(str(GPU)).driver == "nouveau"
    assert fake.state(str(GPU)).driver_override is None


def test_a_function_of_vfio_pci_keeps_the_override_that_is_recorded(fake, write):
    """A function that the host bound at its boot goes back as it was."""
    functions.rebind(GPU, "vfio-pci")
    functions.set_override(GPU, "vfio-pci")
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    assert give_back(driver="vfio-pci", override="nouveau") == OK
    assert fake.state(str(GPU)).driver == "vfio-pci"
    assert fake.state(str(GPU)).driver_override == "vfio-pci"


def test_what_has_left_device_spec_while_leased_stays_taken(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write(named(UP))
    assert take(GPU) == [Outcome.OK]
    assert give_back() == OK
    assert take(GPU) == [DENIED]


def test_another_helper_goes_by_the_record_as_well(fake, write):
    """A restart of the service starts other helpers."""
    write(named(GPU))
    assert served(fake, "take", targets(GPU), 1, 30_000, LEASE) == [Outcome.OK]
    write(named(UP))
    told = targets(GPU, more=("pci-stub", ""))
    answers = served(fake, "give_back", told, 1, 30_000, True, LEASE)
    assert answers == [Outcome.OK]
    assert fake.state(str(GPU)).driver == "nouveau"


def served(fake: FakeKernel, name: str, *given: object) -> list[str]:
    """What a helper of its own answers to a call."""
    with connected("base", fake.root) as client:
        group = functions.group(GPU)
        kind, answers, *_ = client.call(f"os_acc.privsep.binding.{name}", group, *given)
    assert kind == RETURNED, answers
    return [Result(*answer).outcome for answer in answers]


def test_a_broken_file_does_not_stop_what_is_recorded_from_going_back(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    write("{")
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


@pytest.mark.parametrize("driver", ["", "pci-stub", "snd_hda_intel"])
def test_a_caller_cannot_take_a_function_from_its_driver_by_restoring_it(
    fake, write, driver
):
    write(named(GPU))
    assert give_back(driver=driver).outcome == DENIED
    assert give_back(NIC, driver).outcome == DENIED
    assert fake.writes() == []


def test_a_function_that_is_pulled_out_while_it_is_held_is_in_use(fake, write):
    write(named(FPGA))
    taken_by_an_older_version(fake, FPGA)
    fake.hold(str(FPGA))
    fake.hot_unplug(str(FPGA))
    told = targets(FPGA, more=("", ""))
    group, count = functions.group(FPGA), len(fake.writes())
    # Reading its driver_override would wait for the holder.
    (answer,) = binding.give_back(group, told, 1, 3_000, False, LEASE)
    assert Result(*answer).outcome == Outcome.IN_USE
    assert len(fake.writes()) == count


def test_a_function_that_is_as_it_was_needs_no_record(fake, write):
    write(named(UP))
    assert give_back() == OK
    assert fake.writes() == []


def test_what_an_older_version_took_goes_to_the_driver_that_the_kernel_chooses(
    fake, write
):
    taken_by_an_older_version(fake, GPU)
    write(named(GPU))
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


def test_what_an_older_version_took_goes_to_no_driver_that_the_caller_chooses(
    fake, write
):
    taken_by_an_older_version(fake, GPU)
    write(named(GPU))
    assert give_back(driver="pci-stub", override="pci-stub").outcome == DENIED
    refused = give_back(driver="pci-stub")
    assert (refused.outcome, refused.observed) == (Outcome.NO_EFFECT, "nouveau")


def test_what_an_older_version_took_and_is_not_named_stays(fake, write):
    taken_by_an_older_version(fake, GPU)
    done = len(fake.writes())
    write(named(UP))
    assert give_back().outcome == DENIED
    assert fake.writes()[done:] == []


def test_a_damaged_record_counts_as_none(fake, write):
    write(named(GPU))
    assert take(GPU) == [Outcome.OK]
    Path(fake.root, worker.LOCKS, f"{GPU}.lease").write_text("00000000 []\n")
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


# -- what the service makes of it ----------------------------------------------------


def test_a_plug_that_root_denies_fails_and_leaves_nothing(bench, write):
    write(named(UP))
    before = bench.kernel.snapshot()
    with pytest.raises(exception.HostStepFailed, match="root's configuration"):
        bench.plug(1, str(GPU))
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_an_instance_keeps_what_left_device_spec_until_it_is_unplugged(bench, write):
    write(named(GPU))
    before = bench.kernel.snapshot()
    bench.plug(1, str(GPU))
    write(named(UP))
    bench.restart()
    assert bench.drivers(str(GPU), str(AUDIO)) == ["vfio-pci", "vfio-pci"]
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_an_upgrade_with_leases_held_ends_with_the_kernels_drivers(bench, write):
    before = bench.kernel.snapshot()
    bench.plug(1, str(GPU))
    for place in (GPU, AUDIO):
        record.remove(place)
    write(named(GPU))
    bench.restart()
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


# -- programming --------------------------------------------------------------------


@pytest.mark.parametrize("entry", [named(PciAddress.parse(SECOND)), "{"])
def test_a_card_that_is_not_named_is_not_programmed(host: FpgaHost, entry):
    limit(host, entry)
    assert host.program().outcome == DENIED
    assert host.release(1).outcome == DENIED
    assert host.assign().outcome == DENIED
    assert host.kernel.writes() == []


def test_a_card_that_is_named_is_programmed(host: FpgaHost):
    limit(host, named(PciAddress.parse(CARD)))
    assert host.program().outcome == Outcome.OK


def test_a_card_is_programmed_for_a_vf_that_is_named(host: FpgaHost):
    assert host.release(2) == OK
    host.make_vfs(2)
    limit(host, named(PciAddress.parse(VFS[0])))
    assert host.program(PORTED).outcome == Outcome.OK


def test_ports_are_released_for_the_vfs_that_it_asks_for(host: FpgaHost):
    limit(host, named(PciAddress.parse(PORTED), ', "num_vfs": 2'))
    assert host.release(1).outcome == DENIED
    assert host.release(2) == OK
    assert host.assign() == OK


def limit(host: FpgaHost, entry: str) -> None:
    path = Path(host.kernel.root, *rootconf.PATH)
    path.parent.mkdir(parents=True)
    path.write_text(f"[os_acc]\ndevice_spec = {entry}\n")


def test_the_sample_that_is_shipped_is_understood(fake, write):
    sample = Path(__file__).parents[3] / "etc/os-acc/privileged.conf.sample"
    path = write()
    path.write_text(sample.read_text())
    assert rootconf.current().mode is Mode.ENFORCED
    assert take(GPU) == [DENIED]
    path.write_text(re.sub(r"^#(\w+ = )", r"\1", sample.read_text(), flags=re.M))
    assert rootconf.current().allows_vfs(NIC, 4)
