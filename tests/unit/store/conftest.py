# SPDX-License-Identifier: Apache-2.0

"""Fixtures: leases to store, and other processes that share the store."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.store import Store
from tests.unit import leases
from tests.unit.forked_processes import in_child, paused_child
from tests.unit.store.store_files import file_in, reopened

__all__ = ["in_child", "paused_child"]

INSTANCE = "11111111-1111-4111-8111-111111111111"
_IDENTITY = PciIdentity(0x8086, 0x0953, 0x8086, 0x370A, 0x01, "CVFT1234")


@pytest.fixture
def state_path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def file(state_path: str) -> pathlib.Path:
    """Return the path of the store's file."""
    return file_in(state_path)


@pytest.fixture
def store(state_path: str) -> Store:
    return reopened(state_path)


@pytest.fixture
def make_lease() -> Callable[..., Lease]:
    """Return a function that builds a lease of the functions in a slot."""

    def make(
        slot: int,
        consumer: str = INSTANCE,
        functions: int = 1,
        state: LeaseState = LeaseState.PREPARING,
        name: str = "",
    ) -> Lease:
        members = [PciAddress(0, 0x3B, slot, number) for number in range(functions)]
        return leases.lease(
            *members,
            group="1",
            resource_class="CUSTOM_ACCELERATOR_SSD",
            iommu_group=slot,
            driver="nvme",
            name=name,
            uuid=f"22222222-2222-4222-8222-{slot:012d}",
            consumer=consumer,
            state=state,
        )

    return make
