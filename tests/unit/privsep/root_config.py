# SPDX-License-Identifier: Apache-2.0

"""Root's configuration of a fake host, and the helper calls that it limits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep import binding, pci_functions, privileged_conf, sriov
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import FakeKernel

LEASE = "11111111-1111-4111-8111-111111111111"
OTHERS = "22222222-2222-4222-8222-222222222222"
GPU, AUDIO = PciAddress(0, 0x17, 0, 0), PciAddress(0, 0x17, 0, 1)
NIC, UP = PciAddress(0, 0x3B, 0, 0), PciAddress(0, 0xAF, 0, 0)
DISK = PciAddress(0, 4, 0, 0)
FPGA = PciAddress(0, 0x5E, 0, 0)
#: A GPU, its audio function and a NIC, all in one IOMMU group.
SHARED = (PciAddress(0, 1, 0, 0), PciAddress(0, 1, 0, 1), PciAddress(0, 2, 0, 0))
OK = CallResult(Outcome.OK)
DENIED = Outcome.DENIED

Write = Callable[..., Path]


def limit_to(root: str, *device_spec: str, more: str = "", mode: int = 0o644) -> Path:
    """Let root's configuration name these devices alone; return its path."""
    path = Path(root, *privileged_conf.PATH)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"device_spec = {value}\n" for value in device_spec]
    path.write_text("[os_acc]\n" + "".join(lines) + more)
    path.chmod(mode)
    return path


@pytest.fixture
def write(fake: FakeKernel) -> Write:
    """Return ``write(*device_spec, ...)``, which writes root's configuration."""
    return functools.partial(limit_to, fake.root)


def named(address: PciAddress, more: str = "") -> str:
    return f'{{"address": "{address}"{more}}}'


def targets(*places: PciAddress, more: tuple[str, ...] = ()):
    return tuple(
        (place.parts, pci_functions.identity(place), *more) for place in places
    )


def take(*places: PciAddress, lease: str = LEASE) -> list[str]:
    group = pci_functions.group(places[0])
    answers = binding.take(group, targets(*places), 1, 30_000, lease)
    return [CallResult(*answer).outcome for answer in answers]


def give_back(
    place: PciAddress = GPU, driver: str = "nouveau", override: str = ""
) -> CallResult:
    given = targets(place, more=(driver, override))
    (answer,) = binding.give_back(
        pci_functions.group(place), given, 1, 30_000, True, LEASE
    )
    return CallResult(*answer)


def make_vfs(count: int, place: PciAddress = NIC) -> CallResult:
    identity = pci_functions.identity(place)
    return CallResult(*sriov.set_num_vfs(place.parts, identity, count, 1, 30_000))
