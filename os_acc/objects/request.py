# SPDX-License-Identifier: Apache-2.0

"""The request of a flavor: granular request groups."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Final

from os_acc.objects.image import BitstreamRequest
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
