# SPDX-License-Identifier: Apache-2.0

"""Root's configuration limits the calls that a helper accepts."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc.bitstreams import options
from os_acc.objects.pci import PciAddress
from os_acc.privsep import (
    binding,
    claims,
    fpga,
    images,
    pci_functions,
    privileged_conf,
    record,
    xrt,
)
from os_acc.privsep.images import directory as image_directory
from os_acc.privsep.kernel import COPIES
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.privileged_conf import LimitMode
from os_acc.privsep.xrt import tools_directory
from os_acc.testing import FakeKernel, HostSpec, TestHost, hosts
from tests.unit.fpga_host import PORTED, SECOND, VFS
from tests.unit.privsep.root_config import (
    AUDIO,
    DENIED,
    DISK,
    GPU,
    LEASE,
    NIC,
    OK,
    SHARED,
    UP,
    give_back,
    make_vfs,
    named,
    take,
    targets,
    write,
)

__all__ = ["write"]

#: The other port of the NIC's card.
SECOND_PORT = PciAddress(0, 0x3B, 0, 1)


def limit(root: str, entry: str) -> None:
    """Write root's configuration of a host, with one entry."""
    path = Path(root, *privileged_conf.PATH)
    path.parent.mkdir(parents=True)
    path.write_text(f"[os_acc]\ndevice_spec = {entry}\n")


# -- allowed functions -----------------------------------------------------------


def test_what_is_named_is_taken_with_the_rest_of_its_card(fake, write):
    write(named(GPU))
    assert take(GPU, AUDIO) == [Outcome.OK, Outcome.OK]


def test_a_sibling_is_not_taken_without_the_function_that_is_named(fake, write):
    write(named(GPU))
    assert take(AUDIO) == [DENIED]
    assert fake.writes() == []


def test_a_group_with_a_card_that_is_not_named_is_not_taken(make_bench):
    fake = make_bench(hosts.shared_group_host()).kernel
    limit(fake.root, named(SHARED[0]))
    before = fake.writes()
    assert take(*SHARED) == [Outcome.UNREACHED, Outcome.UNREACHED, DENIED]
    assert fake.writes() == before


def test_what_is_not_named_is_not_taken_beside_what_is(fake, write):
    write(named(GPU))
    calls = [
        (pci_functions.group(first), targets(first, *more), 1, 30_000, LEASE)
        for first, *more in ((NIC,), (GPU, AUDIO), (DISK,))
    ]
    answers = binding.several("take", calls)
    assert [[outcome for outcome, *_ in each] for each in answers] == [
        *([DENIED], [Outcome.OK, Outcome.OK], [DENIED])
    ]
    assert record.read(GPU).lease == LEASE
    for place, driver in ((NIC, "ice"), (DISK, "nvme")):
        assert fake.state(str(place)).driver == driver
        assert record.read(place) is None


@pytest.fixture
def divided(make_bench: Callable[..., TestHost]) -> FakeKernel:
    """Return a host with a named GPU, and a NIC of its card in another IOMMU group."""
    display, _ = hosts.gpu("0000:17")
    interface = hosts.nic("0000:17", name="eno1", up=True)
    interface = dataclasses.replace(interface, address=str(AUDIO))
    port = hosts.root_port("0000:16:00.0")
    kernel = make_bench(HostSpec((port, display, interface))).kernel
    limit(kernel.root, named(GPU))
    return kernel


@pytest.mark.parametrize("places", [(AUDIO,), (AUDIO, GPU), (GPU, AUDIO)])
def test_a_sibling_of_another_group_is_not_taken(divided, places):
    assert pci_functions.group(AUDIO) != pci_functions.group(GPU)
    take(*places)
    assert divided.state(str(AUDIO)).driver == "ice"
    assert record.read(AUDIO) is None
    group = pci_functions.group(places[0])
    claims.reserve(group, targets(*places), 1, 30_000, LEASE, "host", "")
    assert record.read(AUDIO) is None


def test_a_pf_that_is_named_for_its_vfs_is_not_taken(fake, write):
    write(named(NIC, ', "num_vfs": 2'))
    assert make_vfs(2) == OK
    assert take(NIC) == [DENIED]
    assert fake.state(str(NIC)).driver == "ice"


@pytest.mark.parametrize("count", [0, 2])
def test_a_pf_that_is_named_for_its_vfs_names_no_sibling(make_bench, count):
    second = dataclasses.replace(
        hosts.nic("0000:3b", name="ens1f1", up=True),
        address=str(SECOND_PORT),
        group_of=str(NIC),
    )
    port = hosts.root_port("0000:3a:00.0")
    spec = HostSpec((port, hosts.nic("0000:3b", name="ens1f0", vfs=8), second))
    kernel = make_bench(spec).kernel
    limit(kernel.root, named(NIC, ', "num_vfs": 2'))
    if count:
        assert make_vfs(count) == OK
    assert take(SECOND_PORT, NIC)[0] == DENIED
    assert kernel.state(str(SECOND_PORT)).driver == "ice"


def test_a_card_without_sr_iov_is_not_taken_instead_of_its_vfs(make_bench):
    card = dataclasses.replace(hosts.nic("0000:3b", name="eno1"), sriov=None)
    kernel = make_bench(HostSpec((hosts.root_port("0000:3a:00.0"), card))).kernel
    limit(kernel.root, named(NIC, ', "num_vfs": 2'))
    assert take(NIC) == [DENIED]
    assert kernel.state(str(NIC)).driver == "ice"


def test_a_pf_that_has_vfs_is_not_taken(fake, write):
    assert make_vfs(2) == OK
    write(named(NIC))
    assert take(NIC) == [DENIED]
    assert fake.state(str(NIC)).driver == "ice"


def test_vfs_are_named_by_their_pf(fake, write):
    write(named(NIC, ', "num_vfs": 2'))
    assert make_vfs(2) == OK
    vf, _ = sorted(
        PciAddress.parse(os.path.basename(os.readlink(link)))
        for link in Path(pci_functions.directory(NIC)).glob("virtfn*")
    )
    assert take(vf) == [Outcome.OK]


def test_a_network_interface_names_its_function(fake, write):
    write('{"devname": "ens1f0"}')
    assert take(NIC) == [Outcome.OK]


def test_vfs_are_made_of_a_named_function_alone(fake, write):
    write(named(UP, ', "num_vfs": 2'))
    denied = make_vfs(2)
    assert (denied.outcome, denied.errno) == (DENIED, errno.EPERM)
    assert fake.writes() == []


def test_what_is_not_named_is_neither_taken_nor_recorded(fake, write):
    write(named(UP))
    assert take(GPU) == [DENIED]
    assert fake.writes() == []
    assert record.read(GPU) is None
    (answer,) = claims.reserve(
        pci_functions.group(GPU), targets(GPU), 1, 30_000, LEASE, "host", ""
    )
    assert CallResult(*answer).outcome == DENIED
    assert record.read(GPU) is None


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_guests_function_stays_recorded_while_it_is_on_vfio_pci(fake, write, first):
    """The record has the driver to restore."""

    def reserve() -> None:
        group = pci_functions.group(GPU)
        (answer,) = claims.reserve(group, targets(GPU), 1, 30_000, LEASE, "host", "")
        assert CallResult(*answer) == OK

    write(named(GPU))
    if first:
        reserve()
    assert take(GPU) == [Outcome.OK]
    if not first:
        reserve()
    (answer,) = claims.forget((GPU.parts,), 1, 30_000, LEASE)
    assert CallResult(*answer).outcome == Outcome.REFUSED
    assert give_back() == OK
    assert fake.state(str(GPU)).driver == "nouveau"


# -- the file in effect ------------------------------------------------------------


def test_without_a_file_a_caller_decides_and_the_log_says_so(fake, caplog):
    with caplog.at_level(logging.WARNING):
        assert take(NIC) == [Outcome.OK]
    assert privileged_conf.current().mode is LimitMode.ABSENT
    assert "the service's user decides" in caplog.text


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_ignored_aloud(fake, write, caplog, mode):
    path = write(named(UP), mode=mode)
    with caplog.at_level(logging.WARNING):
        assert take(NIC) == [Outcome.OK]
    assert privileged_conf.current().mode is LimitMode.IGNORED
    assert f"{path} is IGNORED" in caplog.text


@pytest.mark.parametrize("place", [".", "etc", "etc/os-acc"])
def test_a_file_in_a_directory_that_others_can_write_is_ignored(fake, write, place):
    write(named(UP))
    Path(fake.root, place).chmod(0o777)
    assert privileged_conf.current().mode is LimitMode.IGNORED


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
    conf = privileged_conf.current()
    assert conf.mode is LimitMode.IGNORED
    assert f"{found} belongs to user" in conf.why


@pytest.mark.parametrize("foreign", ["directory", "file"])
def test_root_believes_no_record_that_another_user_may_have_written(
    fake, write, foreign
):
    write(named(GPU))
    identity = pci_functions.identity(NIC)
    forged = record.present(NIC, identity, LEASE, record.FunctionUse.HOST)
    record.write(dataclasses.replace(forged, eraser="acme"))
    Path(record._file(NIC).path).unlink()
    assert claims.is_recorded(NIC, identity, LEASE)
    copies = Path(fake.path(COPIES))
    if foreign == "file":
        (copies / record.copy_name(identity, str(NIC))).chmod(0o666)
        assert claims.lease_of(NIC, identity) == record.UNREADABLE
        assert take(GPU, AUDIO) == [Outcome.OK, Outcome.OK]
    else:
        copies.chmod(0o777)
        mode, _path, why = privileged_conf.limits()
        assert (mode, str(copies) in why) == (LimitMode.BROKEN, True)
        assert take(GPU, AUDIO) == [DENIED, Outcome.UNREACHED]
    assert not claims.is_recorded(NIC, identity, LEASE)
    assert take(NIC) != [Outcome.OK]


def test_a_release_removes_a_copy_that_does_not_count(fake, write):
    """It must not count again once the directory is root's."""
    identity = pci_functions.identity(NIC)
    own = record.present(NIC, identity, LEASE, record.FunctionUse.HOST)
    record.write(dataclasses.replace(own, eraser="acme"))
    copies = Path(fake.path(COPIES))
    copies.chmod(0o777)
    record.remove(NIC)
    copies.chmod(0o700)
    assert record.copies() == []


def test_a_link_is_ignored(fake, write, tmp_path):
    path = write(named(UP))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert privileged_conf.current().mode is LimitMode.IGNORED


@pytest.mark.parametrize("value", [b"{", b"$nothing", b"\xff\xfe"])
def test_with_a_file_that_cannot_be_read_nothing_is_allowed(fake, write, value):
    write(named(GPU)).write_bytes(b"[os_acc]\ndevice_spec = %s\n" % value)
    assert privileged_conf.current().mode is LimitMode.BROKEN
    assert take(GPU) == [DENIED]
    assert make_vfs(1).outcome == DENIED
    assert fake.writes() == []


def test_a_change_counts_from_the_next_call_on(fake, write):
    write(named(NIC))
    assert take(GPU) == [DENIED]
    write(named(NIC), named(GPU))
    assert take(GPU) == [Outcome.OK]


def test_paths_come_from_roots_file_if_there_is_one(fake, write):
    write(named(GPU), more="state_path = /srv/state\n[os_acc_xrt]\ntools = /srv/xrt\n")
    privileged_conf.current()
    assert image_directory() == "/srv/state/bitstreams"
    assert tools_directory() == "/srv/xrt"


def test_a_path_of_the_callers_configuration_does_not_count(fake, write):
    cfg.CONF.register_opt(options.STATE_PATH, group=options.STATE_GROUP)
    cfg.CONF.set_override("state_path", "/home/nova", group=options.STATE_GROUP)
    try:
        assert image_directory() == "/home/nova/bitstreams"
        write(named(GPU))
        assert image_directory() == "/var/lib/os_acc/bitstreams"
    finally:
        cfg.CONF.clear_override("state_path", group=options.STATE_GROUP)


def test_a_path_that_roots_file_leaves_out_has_its_default(fake, write):
    write(named(GPU))
    privileged_conf.current()
    assert image_directory() == "/var/lib/os_acc/bitstreams"
    assert tools_directory() == "/opt/xilinx/xrt/bin"


# -- programming --------------------------------------------------------------------


@pytest.mark.parametrize("entry", [named(PciAddress.parse(SECOND)), "{"])
def test_a_card_that_is_not_named_is_not_programmed(host, entry):
    limit(host.kernel.root, entry)
    assert host.program().outcome == DENIED
    assert host.release(1).outcome == DENIED
    assert host.assign().outcome == DENIED
    assert host.kernel.writes() == []


def test_no_image_is_read_for_a_card_that_is_not_named(fake, write, monkeypatch):
    # Each thread of each helper would keep an image in memory.
    read: list[object] = []
    monkeypatch.setattr(images, "sealed", lambda *given: read.append(given))
    write(named(UP))
    card, image = (GPU.parts, pci_functions.identity(GPU)), ("sha512", "0" * 128)
    rest = (LEASE, image, 0, 1, 1, 60_000, ("",) * 4)
    for answer in (fpga.program(*card, 0, *rest), xrt.program(*card, 1, *rest)):
        assert CallResult(*answer).outcome == DENIED
    assert read == []


@pytest.mark.parametrize(
    ("entrypoint", "number", "change"),
    [
        (fpga.program, 0, Path.unlink),
        (xrt.program, 1, lambda file: file.chmod(0o666)),
    ],
    ids=["removed", "writable for others"],
)
def test_a_change_while_an_image_is_read_skips_no_signature(
    fake, write, monkeypatch, entrypoint, number, change
):
    requires = "[os_acc_bitstreams]\nsignature = required\ncertificates = /signers\n"
    file = write(named(GPU), more=requires)

    @contextlib.contextmanager
    def read(*_given: object) -> Iterator[images.Sealed]:
        change(file)
        with tempfile.TemporaryFile() as image:
            yield images.Sealed(image.fileno(), 1)

    monkeypatch.setattr(images, "sealed", read)
    call = (
        GPU.parts,
        pci_functions.identity(GPU),
        number,
        LEASE,
        ("sha512", "0" * 128),
    )
    answer = CallResult(*entrypoint(*call, 0, 1, 1, 60_000, ("",) * 4))
    assert (answer.outcome, answer.step) == (Outcome.REFUSED, "signature")


def test_a_card_is_programmed_for_a_vf_that_is_named(host):
    assert host.release(2) == OK
    host.make_vfs(2)
    limit(host.kernel.root, named(PciAddress.parse(VFS[0])))
    assert host.program(PORTED).outcome == Outcome.OK


def test_ports_are_released_for_the_vfs_that_it_asks_for(host):
    limit(host.kernel.root, named(PciAddress.parse(PORTED), ', "num_vfs": 2'))
    assert host.release(1).outcome == DENIED
    assert host.release(2) == OK
    assert host.assign() == OK


def test_the_sample_that_is_shipped_is_understood(fake, write):
    sample = Path(__file__).parents[3] / "etc/os-acc/privileged.conf.sample"
    path = write()
    path.write_text(sample.read_text())
    assert privileged_conf.current().mode is LimitMode.ENFORCED
    assert take(GPU) == [DENIED]
    path.write_text(re.sub(r"^#(\w+ = )", r"\1", sample.read_text(), flags=re.M))
    assert privileged_conf.current().allows_vfs(NIC, 4)
