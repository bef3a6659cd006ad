# SPDX-License-Identifier: Apache-2.0

"""Each value of root's configuration, and the steps that have to respect it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.objects.device import DeviceTags
from os_acc.objects.pci import PciAddress
from os_acc.objects.qat import number_of, parse_services
from os_acc.privsep import (
    binding,
    mdev,
    pci_functions,
    privileged_conf,
    qat,
    sriov,
    vgpu,
)
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import DriverSpec, FakeKernel, HostSpec, hosts
from os_acc.testing.helper import privileged_here
from os_acc.testing.mdevs import mtty
from tests.unit import vendor_steps
from tests.unit.privsep.root_config import LEASE, limit_to, named

GPU, NIC = PciAddress(0, 0x17, 0, 0), PciAddress(0, 0x3B, 0, 0)
QAT = PciAddress(0, 0xD8, 0, 0)
VGPU_CARD, VGPU_VF = PciAddress(0, 0xC1, 0, 0), PciAddress(0, 0xC1, 0, 4)
HALF, WHOLE = 1154, 1155
REST = (1, 30_000)
SAMPLE = Path(__file__).parents[3] / "etc/os-acc/privileged.conf.sample"

Call = Callable[[], CallResult]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[FakeKernel]:
    """Return a kernel with a device for each value."""
    display, audio = hosts.gpu("0000:17")
    parent = dataclasses.replace(mtty(), name=str(GPU))
    spec = HostSpec(
        (
            *(dataclasses.replace(display, mdevs=parent), audio),
            *(hosts.nic("0000:3b", name="eno1", vfs=8), hosts.qat_gen4("0000:d8")),
            hosts.vgpu_card("0000:c1"),
        ),
        drivers=(DriverSpec("acme-vfio-pci", manages_dma=True),),
    )
    with privileged_here(), FakeKernel.build(tmp_path, spec).installed() as kernel:
        yield kernel


def target(place: PciAddress, *more: object) -> tuple[object, ...]:
    return (place.parts, pci_functions.identity(place), *more)


def take(place: PciAddress, driver: str = "") -> CallResult:
    group, given = pci_functions.group(place), (target(place, driver),)
    assert group is not None
    (answer,) = binding.take(group, given, *REST, LEASE)
    return CallResult(*answer)


def vfs(count: int) -> CallResult:
    return CallResult(*sriov.set_num_vfs(*target(NIC), count, *REST))


def create_mdev(kind: str) -> CallResult:
    return CallResult(*mdev.create((str(GPU), kind, 0), LEASE, *REST))


def prepare_slot(kind: str) -> CallResult:
    slot, members = (str(GPU), kind, 0), (target(GPU),)
    call = (slot, members, (), *REST, LEASE, (), "prepare", "acme")
    return CallResult(*vendor_steps.describe(*call))


def services(text: str) -> CallResult:
    number = number_of(parse_services(text))
    return CallResult(*qat.set_qat_services(*target(QAT), number, *REST))


def create_vgpu(kind: int) -> CallResult:
    call = (VGPU_VF.parts, (target(VGPU_VF),), (), *REST, LEASE, (kind,), "prepare")
    return CallResult(*vgpu.create_vgpu(*call))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A value, and a step with it and with another value.

    :ivar entry: of ``device_spec``.
    :ivar others: the steps that it has to deny.
    """

    entry: str
    allowed: Call
    others: tuple[Call, ...]


TAKES_VFS = named(NIC, ', "num_vfs": 2')
VGPUS = named(VGPU_CARD, f', "vgpu_type": {HALF}')
#: The tags that steps have to respect.
LIMITING: dict[str, tuple[Row, ...]] = {
    "num_vfs": (
        Row(TAKES_VFS, lambda: vfs(2), (lambda: vfs(1), lambda: take(NIC))),
        Row(named(NIC), lambda: take(NIC), (lambda: vfs(2),)),
    ),
    "mdev_types": (
        Row(
            named(GPU, ', "mdev_types": "mtty-1"'),
            lambda: create_mdev("mtty-1"),
            (
                lambda: create_mdev("mtty-2"),
                lambda: prepare_slot("mtty-2"),
                lambda: take(GPU),
            ),
        ),
        Row(named(GPU), lambda: take(GPU), (lambda: create_mdev("mtty-1"),)),
    ),
    "qat_services": (
        Row(
            named(QAT, ', "num_vfs": 16, "qat_services": "dc"'),
            lambda: services("dc"),
            (lambda: services("asym"),),
        ),
        Row(named(QAT), lambda: take(QAT), (lambda: services("dc"),)),
    ),
    "vfio_driver": (
        Row(
            named(NIC, ', "vfio_driver": "acme-vfio-pci"'),
            lambda: take(NIC, "acme-vfio-pci"),
            (lambda: take(NIC), lambda: take(NIC, "ice")),
        ),
        Row(
            named(NIC),
            lambda: take(NIC),
            (lambda: take(NIC, "acme-vfio-pci"), lambda: take(NIC, "ice")),
        ),
        Row(
            named(NIC, ', "vfio_driver": "auto"'),
            lambda: take(NIC, "acme-vfio-pci"),
            (lambda: take(NIC, "ice"),),
        ),
    ),
    "vgpu_type": (
        Row(
            VGPUS,
            lambda: create_vgpu(HALF),
            (lambda: create_vgpu(WHOLE), lambda: take(VGPU_VF)),
        ),
        Row(VGPUS, lambda: take(VGPU_VF, "nvidia"), ()),
        Row(
            named(VGPU_CARD),
            lambda: take(VGPU_VF),
            (lambda: create_vgpu(HALF), lambda: take(VGPU_VF, "nvidia")),
        ),
    ),
}
#: The tags that concern no step, with the reason.
OF_THE_SERVICE = {
    "resource_class": "a name in Placement",
    "traits": "names in Placement",
    "prebound": "the service asks before it offers a device; a take changes nothing",
    "allow_no_reset": "the service asks before it offers a device; a step resets it",
    "allow_no_erase": "the service asks before it offers a device",
    "trust_guest_contents": "for the function that the service publishes",
    "live_migratable": "the service publishes a trait, and a step asks VFIO alone",
    "numa_policy": "for the choice of a device",
    "physical_network": "for the entry of a device",
    "function": "for the entry of a device",
}
_PATHS = "test_privileged_conf.py"
#: The other options, with the tests of the steps that they limit.
OPTIONS = {
    "device_spec": "test_privileged_conf_values.py",
    "state_path": f"{_PATHS}::test_paths_come_from_roots_file_if_there_is_one",
    "tools": f"{_PATHS}::test_paths_come_from_roots_file_if_there_is_one",
    "signature": "test_signatures.py",
    "certificates": "test_signatures.py",
}


def test_each_tag_has_a_row():
    found = {field.name for field in dataclasses.fields(DeviceTags)}
    assert found == {*LIMITING, *OF_THE_SERVICE}


def test_each_option_has_a_row():
    sample = set(re.findall(r"^#(\w+) = ", SAMPLE.read_text(), re.M))
    read = {field.name for field in dataclasses.fields(privileged_conf.RootConf)}
    assert sample == {*OPTIONS}
    assert read - {"mode", "why"} == {*OPTIONS} - {"device_spec", "signature"} | {
        "devices"
    }
    for place in OPTIONS.values():
        name, _, test = place.partition("::")
        assert f"def {test}" in (Path(__file__).parent / name).read_text()


ROWS = [(name, row) for name, rows in LIMITING.items() for row in rows]


@pytest.mark.parametrize(
    ("row", "call"),
    [
        pytest.param(row, call, id=f"{name}-{number}")
        for name, row in ROWS
        for number, call in enumerate(row.others)
    ],
)
def test_a_step_with_another_value_is_denied(kernel, row, call):
    limit_to(kernel.root, row.entry)
    done = kernel.writes()
    answer = call()
    assert (answer.outcome, answer.step) == (Outcome.DENIED, privileged_conf.STEP)
    assert kernel.writes() == done


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS])
def test_a_step_with_the_value_is_allowed(kernel, row):
    limit_to(kernel.root, row.entry)
    assert row.allowed().outcome == Outcome.OK
