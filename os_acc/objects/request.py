# SPDX-License-Identifier: Apache-2.0

"""What a flavor asks for: granular request groups."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Final

from os_acc.objects.image import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy

#: The largest amount of a resource that Placement can store.
MAX_AMOUNT: Final = 0x7FFF_FFFF
#: What Placement accepts as the name of a resource class or trait.
PLACEMENT_NAME: Final = re.compile(r"[A-Z0-9_]{1,255}")
#: What Placement accepts as the suffix of a numbered group, since 1.33.
NUMBERED_SUFFIX: Final = "[a-zA-Z0-9_-]{1,64}"


def title(suffix: str) -> str:
    """What messages call the group with a suffix."""
    return f"group {suffix!r}" if suffix else "the unnumbered group"


class GroupPolicy(enum.Enum):
    """``group_policy``: may numbered groups share a provider?"""

    NONE = "none"
    ISOLATE = "isolate"


class AttachTarget(enum.Enum):
    """``accel:attach_target``: who is to have the accelerators of a group.

    Cyborg's specification of device profiles names the three; what they mean
    is :doc:`/user/extra-specs`.
    """

    #: The guest, by VFIO.
    VM = "VM"
    #: The host, on the guest's behalf: they stay with the host's driver.
    HOST = "host"
    #: Nobody; they are kept for the guest, and programmed if it asks for that.
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class RequestGroup:
    """One granular request group; the unnumbered one has suffix ''.

    ``resources`` are (resource class, amount), sorted by class. ``wish`` is
    what its accelerators are to be programmed with, ``numa_policy`` how near
    to the guest they have to be; None: as it is for the whole guest.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...] = ()
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    wish: BitstreamRequest | None = None
    attach_target: AttachTarget = AttachTarget.VM
    numa_policy: NUMAPolicy | None = None

    def amount(self, resource_class: str) -> int:
        """How many units of a resource class this group asks for."""
        return dict(self.resources).get(resource_class, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class FlavorRequest:
    """All groups of one flavor, sorted by suffix, and their policy.

    ``zeroed`` are the resource classes of which it says that none is asked
    for: Nova asks for none of these on its own, not even VCPU.
    ``pci_numa_policy`` is ``hw:pci_numa_affinity_policy`` as it was given, for
    all devices of the guest.
    ``profile`` is the name of the device profile that some of them are of, or '';
    ``unread_profile`` that of one whose groups are missing, as nobody has said where
    it is, or ''.
    """

    groups: tuple[RequestGroup, ...] = ()
    policy: GroupPolicy | None = None
    zeroed: frozenset[str] = frozenset()
    pci_numa_policy: object = None
    profile: str = ""
    unread_profile: str = ""
