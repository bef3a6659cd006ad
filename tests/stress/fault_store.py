# SPDX-License-Identifier: Apache-2.0

"""A store with some tens of leases, and damage to its file."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Region
from os_acc.store import codec, snapshot
from os_acc.store.leases import Store
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.helper import privileged_here
from tests.stress.fault_flows import NEXT
from tests.stress.simulated_host import plug, simulated_host
from tests.unit.store.store_files import file_in

NIC = "0000:3b:00.0"
CONSUMERS = 16
#: VFs of each consumer, and free ones.
EACH, FREE = 2, 1
PAGE = 4096

_CARD, _INTEL = PciAddress.parse("0000:b3:00.0"), PciIdentity(0x8086, 0x0B2B, 0, 0, 0)
#: Regions with a programming that has begun and was not verified.
UNVERIFIED = [
    Region(_CARD, _INTEL, number, hosts.DFL_INTERFACE, None) for number in (0, 5)
]
_IMAGE = "55555555-5555-4555-8555-555555555555"


def build(directory: str) -> TestHost:
    """Build a host with one card of many VFs."""
    count = CONSUMERS * EACH + FREE
    nic = hosts.nic("0000:3b", 0, name="ens1f0", vfs=count, boot_vfs=count)
    return simulated_host(directory, HostSpec((nic,)))


def fill(bench: TestHost) -> None:
    """Plug all VFs but a few; for a process of its own."""
    with privileged_here(), bench.installed():
        manager = bench.start()
        for number in range(CONSUMERS):
            plug(manager, str(uuid.UUID(int=number + 1)), *[NIC] * EACH)
            # As after weeks of use.
            manager.store.replace(manager.store.leases())
        for region in UNVERIFIED:
            manager.store.mark_region_unverified(region.key, _IMAGE)


def file_of(bench: TestHost) -> pathlib.Path:
    return file_in(os.path.join(bench.directory, "state"))


# -- damage -------------------------------------------------------------------

#: Returns a damaged copy of a page.
Damage = Callable[[bytes, random.Random], bytes]


def zeroed(page: bytes, dice: random.Random) -> bytes:
    return bytes(len(page))


def noise(page: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(len(page))


def one_bit(page: bytes, dice: random.Random) -> bytes:
    bit = dice.randrange(len(page) * 8)
    changed = bytearray(page)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGES: Sequence[Damage] = (zeroed, noise, one_bit)


def damage_page(file: pathlib.Path, number: int, damage: Damage) -> None:
    """Change one page of a file, counted from 0; the same each time."""
    content = file.read_bytes()
    start = number * PAGE
    page = content[start : start + PAGE]
    damaged = damage(page, random.Random(number))
    file.write_bytes(content[:start] + damaged + content[start + PAGE :])


def damage_records(
    file: pathlib.Path, leases: Sequence[Lease], dice: random.Random
) -> None:
    """Change one bit of each lease's and region's record, nothing else."""
    content = file.read_bytes()
    stored = [codec.encode(lease).encode() for lease in leases]
    # Changed in the index as well: SQLite finds no damage.
    stored += [region.key.encode() for region in UNVERIFIED]
    for record in stored:
        assert record in content
        changed = bytearray(record)
        # It stays text.
        changed[dice.randrange(len(record))] ^= 1 << dice.randrange(7)
        content = content.replace(record, changed)
    file.write_bytes(content)


# -- checks -------------------------------------------------------------------


def open_store(bench: TestHost) -> Store:
    return Store.open(os.path.dirname(file_of(bench)), 10)


def originals(bench: TestHost) -> tuple[Lease, ...]:
    return open_store(bench).leases()


def check_serves(
    bench: TestHost, leases: Sequence[Lease], *, whole: bool = False
) -> None:
    """Check that a started service plugs free devices and no leased ones.

    :param leases: the leases before.
    :param whole: whether all of them have to be there still.
    """
    manager = bench.start_here()
    found = manager.store.leases()
    known = {lease.uuid: lease for lease in leases}
    for lease in found:
        assert lease == known[lease.uuid], "a lease that never was"
    if whole:
        assert set(found) == set(leases), "a lease is lost"
    check_unverified(bench)
    lost = {a for lease in leases if lease not in found for a in lease.members}
    if lost - set(manager.store.damaged_claims()):
        assert manager.store.damaged, (
            "leases are lost, and the store is not marked damaged"
        )
    check_offers(bench, manager, leases)


def check_unverified(bench: TestHost) -> None:
    """Check that the store and its snapshot trust no unverified region."""
    state = os.path.dirname(file_of(bench))
    unverified = open_store(bench).recorded_state().unverified_regions
    assert all(region in unverified for region in UNVERIFIED), "a region is trusted"
    unverified = snapshot.read(state).unverified_regions
    assert all(region in unverified for region in UNVERIFIED), (
        "a region is shown as known"
    )


def check_offers(bench: TestHost, manager: Manager, leases: Sequence[Lease]) -> None:
    taken = {str(address) for lease in leases for address in lease.members}
    before = bench.kernel.snapshot()
    with pytest.raises(exception.NoDeviceAvailable):
        plug(manager, NEXT, *[NIC] * (FREE + 1))
    entries = plug(manager, NEXT, *[NIC] * FREE)
    got = {entry["pci_id"] for entry in entries}
    assert not got & taken, "what is in use was given"
    assert len(got) == FREE
    assert manager.unplug({"uuid": NEXT}) == FREE
    assert bench.kernel.snapshot() == before


def files(bench: TestHost) -> dict[str, bytes]:
    """Return the contents of the store's files by their names."""
    found = file_of(bench).parent.glob("os_acc.sqlite*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


@contextlib.contextmanager
def changing_nothing(bench: TestHost) -> Iterator[None]:
    before = files(bench)
    yield
    assert files(bench) == before
