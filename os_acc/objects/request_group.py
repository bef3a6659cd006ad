# SPDX-License-Identifier: Apache-2.0

"""Request groups of flavors and device profiles, and their allocations."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from os_acc.objects.bitstream import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy

#: The largest amount of a resource that Placement can store.
MAX_AMOUNT: Final = 0x7FFF_FFFF
#: Placement's format for the name of a resource class or trait.
PLACEMENT_NAME: Final = re.compile(r"[A-Z0-9_]{1,255}")
#: Placement's standard classes of accelerators; Nova and Neutron provide the others.
ACCELERATOR_CLASSES: Final = frozenset({"FPGA", "PGPU"})
#: Placement's format for the suffix of a numbered group, since 1.33.
NUMBERED_SUFFIX: Final = "[a-zA-Z0-9_-]{1,64}"


def title(suffix: str) -> str:
    """Return the name of a group in messages."""
    return f"group {suffix!r}" if suffix else "the unnumbered group"


class GroupPolicy(enum.Enum):
    """``group_policy``: whether numbered groups may share a provider."""

    NONE = "none"
    ISOLATE = "isolate"


class AttachTarget(enum.Enum):
    """``accel:attach_target``: the user of the accelerators of a group.

    Cyborg's specification of device profiles defines the three names; their
    meaning is described in :doc:`/user/extra-specs`.
    """

    #: The guest, through VFIO.
    VM = "VM"
    #: The host, on the guest's behalf: they keep the host's driver.
    HOST = "host"
    #: No user; they are reserved for the guest, and programmed on request.
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class RequestGroup:
    """One granular request group; the unnumbered one has suffix ''.

    ``resources`` are (resource class, amount), sorted by class.
    ``bitstream_request`` applies to its accelerators; ``numa_policy`` is their NUMA
    policy; None: the policy of the guest.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...] = ()
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    bitstream_request: BitstreamRequest | None = None
    attach_target: AttachTarget = AttachTarget.VM
    numa_policy: NUMAPolicy | None = None

    def amount(self, resource_class: str) -> int:
        """Return the requested amount of a resource class."""
        return dict(self.resources).get(resource_class, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class FlavorRequest:
    """All groups of one flavor, sorted by suffix, and their policy.

    ``zeroed`` are the resource classes requested with amount 0: Nova does not
    add its own amounts of these, not even VCPU.
    ``pci_numa_policy`` is ``hw:pci_numa_affinity_policy``, not validated, for all
    devices of the guest.
    ``profile`` is the name of the device profile that defines some of the groups,
    or ''; ``unreadable_profile`` is the name of a profile whose groups are missing
    because no source of profiles is configured, or ''.
    """

    groups: tuple[RequestGroup, ...] = ()
    policy: GroupPolicy | None = None
    zeroed: frozenset[str] = frozenset()
    pci_numa_policy: object = None
    profile: str = ""
    unreadable_profile: str = ""


#: The prefix of Nova's name for the n-th group of a profile in a request to Placement
#: (``get_device_profile_group_requester_id()`` in nova/accelerator/cyborg.py).
_REQUESTER: Final = "device_profile_"
_SUFFIX: Final = re.compile(rf"{_REQUESTER}(0|[1-9][0-9]{{0,8}})")


def profile_index(suffix: str) -> int | None:
    """Return the index of the group with Nova's name; None: no such name."""
    found = _SUFFIX.fullmatch(suffix)
    return int(found[1]) if found else None


def profile_suffix(index: int) -> str:
    """Return Nova's name for a group, by its index in the profile."""
    return f"{_REQUESTER}{index}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGroup:
    """One request group of a profile.

    :ivar index: its index in the profile, from 0; accelerator requests and Nova
        identify the group by it.
    :ivar properties: as in the profile, in its order.
    :ivar request: the parsed properties, with Nova's suffix for the group.
    """

    index: int
    properties: tuple[tuple[str, str], ...]
    request: RequestGroup

    @property
    def suffix(self) -> str:
        """Nova's name for the group, used in mappings of allocations."""
        return profile_suffix(self.index)

    @property
    def accelerators(self) -> int:
        """The number of accelerators that it requests."""
        return sum(amount for _name, amount in self.request.resources)

    def extra_specs(self, suffix: str, namespace: str) -> Iterator[tuple[str, str]]:
        """Yield the group as extra specs of a flavor.

        :param suffix: the suffix of the group in the flavor.
        :param namespace: replaces the profile's namespace ``accel:``.
        """
        for key, value in self.properties:
            kind, _, name = key.partition(":")
            yield f"{namespace if kind == 'accel' else kind}{suffix}:{name}", value


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device profile.

    :ivar uuid: canonical.
    :ivar groups: in the order of the profile.
    """

    name: str
    uuid: str
    description: str
    groups: tuple[ProfileGroup, ...]

    @property
    def accelerators(self) -> int:
        """The number of accelerator requests created from it: N groups of M each."""
        return sum(group.accelerators for group in self.groups)


@dataclasses.dataclass(frozen=True, slots=True)
class SingleProvider:
    """One provider for all groups: the form of the specification."""

    uuid: str
    #: Whether the assignment of providers to groups is missing.
    is_unmapped: ClassVar[bool] = False


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
