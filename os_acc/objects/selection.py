# SPDX-License-Identifier: Apache-2.0

"""What the scheduler selected: providers, or a whole allocation request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from os_acc.objects.image import BitstreamRequest
from os_acc.objects.lease import Lease
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import AttachTarget


@dataclasses.dataclass(frozen=True, slots=True)
class SingleProvider:
    """One provider for the whole request: the specification's form."""

    uuid: str

    @property
    def is_unmapped(self) -> bool:
        """Whether nobody says which provider is for which group."""
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Allocations:
    """One allocation request of Placement.

    :ivar entries: (provider, ((resource class, amount), ...)), all sorted.
    :ivar mappings: (suffix of the request group, (provider, ...)), all
        sorted; None where the caller has none, as Nova compute has none for
        the groups of a flavor.
    """

    entries: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    mappings: tuple[tuple[str, tuple[str, ...]], ...] | None = None

    @property
    def is_unmapped(self) -> bool:
        """Whether nobody says which provider is for which group."""
        return self.mappings is None


Selection: TypeAlias = SingleProvider | Allocations


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class GroupAllocation:
    """What one request group gets from one provider of ours.

    ``amount`` counts accelerators; ``wish`` is what they are to be
    programmed with, ``attach_target`` who is to have them, ``required`` the
    traits by which their FPGA region is named, and what it holds,
    ``numa_policy`` what its group says of NUMA.
    """

    group_suffix: str
    provider_uuid: str
    resource_class: str
    amount: int
    # No two of a request agree in group and provider, so these order nothing.
    wish: BitstreamRequest | None = None
    attach_target: AttachTarget = AttachTarget.VM
    required: tuple[str, ...] = ()
    numa_policy: NUMAPolicy | None = None


def fingerprint(wanted: Sequence[GroupAllocation], *, found: bool = False) -> str:
    """Return a digest that identifies a request, whatever devices serve it.

    :param found: the request came without mappings; the provider of each group was
        computed.
    """
    how = ["found"] if found else []
    plain = json.dumps([*how, *(_plain(each) for each in wanted)])
    return hashlib.sha256(plain.encode()).hexdigest()


def _plain(wanted: GroupAllocation) -> tuple[Any, ...]:
    *fields, wish, _target, required, near = dataclasses.astuple(wanted)
    # Unset fields are left out: the fingerprints on record have to stay valid.
    if wish:
        fields.append(wish)
    if wanted.attach_target is not AttachTarget.VM:
        fields.append(wanted.attach_target.value)
    if required:
        fields.append(required)
    if near:
        fields.append(near.value)
    return tuple(fields)


def answers(held: Sequence[Lease], *fingerprints: str) -> bool:
    """Whether all leases belong to one of the requests with these fingerprints."""
    return all(lease.request in fingerprints for lease in held)
