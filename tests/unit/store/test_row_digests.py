# SPDX-License-Identifier: Apache-2.0

"""A row of plain columns whose digest does not match is damage."""

import pytest

from os_acc.objects.epoch import DAY
from os_acc.objects.pci import PciAddress
from os_acc.store import Store, StoreDamaged, snapshot
from tests.unit.store.store_files import execute, fill, reopened

#: A change of one value in each table of plain columns.
CHANGES = (
    "UPDATE meta SET epoch = epoch | (1 << 61)",
    "UPDATE meta SET epoch = 'soon'",
    "UPDATE meta SET store = CAST(store AS BLOB)",
    "UPDATE meta SET version = version - 1",
    "UPDATE meta SET digest = ''",
    "UPDATE claims SET address = '0000:3b:1f.0'",
    "UPDATE claims SET lease = 'another'",
    "UPDATE providers SET resource_class = CAST(resource_class AS BLOB)",
    "UPDATE providers SET uuid = 'another'",
    "UPDATE provider_origins SET key = CAST(key AS BLOB)",
    "UPDATE provider_origins SET address = CAST(address AS BLOB)",
    "UPDATE provider_origins SET address = '0000:3b:1f.0'",
    "UPDATE provider_origins SET provider = 'another'",
    "UPDATE provider_plugins SET plugin = 7",
    "UPDATE mdev_totals SET total = 23",
    "UPDATE mdev_totals SET type = 'mtty-2'",
    "UPDATE published_names SET name = 'CUSTOM_ANOTHER'",
    "UPDATE published_names SET kind = x'ff'",
    "UPDATE created_names SET in_use_at = 'soon'",
    "UPDATE created_names SET name = 'CUSTOM_ANOTHER'",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_row_is_damage_when_the_store_is_opened(
    store, state_path, file, make_lease, change
):
    lease = fill(store, make_lease)
    execute(file, change)
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.leases() == (lease,)
    assert store.lease_of(lease.address) == lease
    assert store.damaged_claims() == ()
    assert lease.epoch < store.next_epoch() < lease.epoch + DAY


READS = (
    Store.next_epoch,
    Store.recorded_state,
    Store.providers,
    Store.published_names,
    lambda store: store.lease_of(PciAddress(0, 0x3B, 1, 0)),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_row_is_damage_when_it_is_read(store, file, make_lease, change):
    lease = fill(store, make_lease)
    execute(file, change)
    refusals = []
    for read in READS:
        try:
            read(store)
        except StoreDamaged as error:
            refusals.append(error)
    # No read selects a claim at another address before the next start.
    assert len(refusals) == ("claims SET address" not in change)
    assert store.leases() == (lease,)


def test_a_changed_row_is_damage_to_a_snapshot(store, state_path, file, make_lease):
    fill(store, make_lease)
    execute(file, "UPDATE provider_origins SET key = CAST(key AS BLOB)")
    before = file.read_bytes()
    with pytest.raises(StoreDamaged, match="a row of provider_origins"):
        snapshot.read(state_path)
    assert file.read_bytes() == before


def test_a_changed_claim_of_a_damaged_lease_keeps_its_device(
    store, state_path, file, make_lease
):
    (lease,) = store.add([make_lease(1)])
    execute(
        file,
        "UPDATE leases SET payload = payload || ' '",
        "UPDATE claims SET digest = ''",
    )
    store = reopened(state_path)
    assert store.leases() == ()
    assert store.damaged_claims() == (lease.address,)
