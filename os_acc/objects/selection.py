# SPDX-License-Identifier: Apache-2.0

"""The scheduler's selection: one provider, or an allocation request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request import AttachTarget


@dataclasses.dataclass(frozen=True, slots=True)
class SingleProvider:
    """One provider for all groups: the form of the specification."""

    uuid: str

    @property
    def is_unmapped(self) -> bool:
        """Whether the assignment of providers to groups is missing."""
        return False


#: (provider, ((resource class, amount), ...)), all sorted.
AllocationEntries: TypeAlias = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Allocations:
    """One allocation request of Placement.

    :ivar entries: (provider, ((resource class, amount), ...)), all sorted.
    :ivar mappings: (suffix of the request group, (provider, ...)), all
        sorted; None if the caller has none: Nova compute has no mappings for the
        groups of a flavor.
    """

    entries: AllocationEntries
    mappings: tuple[tuple[str, tuple[str, ...]], ...] | None = None

    @property
    def is_unmapped(self) -> bool:
        """Whether the assignment of providers to groups is missing."""
        return self.mappings is None


Selection: TypeAlias = SingleProvider | Allocations


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class GroupAllocation:
    """The allocation of one request group on one provider of this host.

    ``amount`` counts accelerators; ``bitstream_request`` applies to them,
    ``attach_target`` their user, ``required`` the traits that select their FPGA
    region and its function, ``numa_policy`` the NUMA policy of the group.
    """

    group_suffix: str
    provider_uuid: str
    resource_class: str
    amount: int
    # Group and provider are unique in a request, so these never affect the order.
    bitstream_request: BitstreamRequest | None = None
    attach_target: AttachTarget = AttachTarget.VM
    required: tuple[str, ...] = ()
    numa_policy: NUMAPolicy | None = None


def fingerprint(allocations: Sequence[GroupAllocation], *, found: bool = False) -> str:
    """Return a digest that identifies a request, independent of its devices.

    :param found: the request came without mappings; the provider of each group was
        computed.
    """
    how = ["found"] if found else []
    plain = json.dumps([*how, *(_plain(each) for each in allocations)])
    return hashlib.sha256(plain.encode()).hexdigest()


def _plain(each: GroupAllocation) -> tuple[Any, ...]:
    *fields, requested, _target, required, near = dataclasses.astuple(each)
    # Unset fields are left out: the fingerprints on record have to stay valid.
    if requested:
        fields.append(requested)
    if each.attach_target is not AttachTarget.VM:
        fields.append(each.attach_target.value)
    if required:
        fields.append(required)
    if near:
        fields.append(near.value)
    return tuple(fields)
