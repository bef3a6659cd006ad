# SPDX-License-Identifier: Apache-2.0

"""Why a cell of a guest does not go onto a cell of the host."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from os_acc.objects.numa import PageSize


class ReasonKind(enum.Enum):
    """What a host cell lacks; each value is what is told of it."""

    #: In KiB, or one of :class:`~os_acc.objects.numa.PageSize`.
    PAGE_SIZE = "it has no pages of {wanted} KiB"
    #: What is asked for, in KiB, and the size of the pages.
    UNEVEN_PAGES = "{wanted} KiB are not a whole number of pages of {there} KiB"
    #: In MiB.
    FREE_PAGES = "{wanted} MiB are wanted, and pages for {there} MiB are there"
    #: In MiB, used or not.
    MEMORY = "{wanted} MiB are wanted, and it has {there} MiB"
    #: In MiB.
    FREE_MEMORY = "{wanted} MiB are wanted, and {there} MiB are free"
    #: Used or not.
    CPUS = "{wanted} shared CPUs are wanted, and it has {there}"
    #: Used or not.
    PCPUS = "{wanted} dedicated CPUs are wanted, and it has {there}"
    FREE_PCPUS = "{wanted} dedicated CPUs are wanted, and {there} are free"
    NO_THREADS = "siblings are required, and its cores have one thread each"
    #: The most that whole sets of equally many siblings come to.
    SIBLINGS = "{wanted} CPUs on siblings are required, and there are {there}"
    #: Cores that nobody has a thread of.
    WHOLE_CORES = "{wanted} cores of their own are wanted, and {there} are free"
    #: Nova isolates CPUs of a host with threads only where one set of CPUs is for
    #: shared and for dedicated ones (``vcpu_pin_set``).
    THREADS = "a core to itself is wanted, and its cores have several threads"
    EMULATOR = "no dedicated CPU is left for the emulator's threads"
    #: Guests' CPUs that share the host's, and how many may.
    CPU_LIMIT = "{wanted} CPUs would share its own, and at most {there} may"
    #: In MiB.
    RAM_LIMIT = "{wanted} MiB would be used, and at most {there} MiB may"


_NAMED: Final = {
    PageSize.SMALL: "it has no pages of a known size",
    PageSize.LARGE: "it has no large pages",
    PageSize.ANY: "it has no pages of a known size",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """What is wanted, and what is there; units are those of :class:`ReasonKind`."""

    why: ReasonKind
    wanted: int = 0
    there: int = 0

    def __str__(self) -> str:
        if self.why is ReasonKind.PAGE_SIZE and self.wanted in _NAMED:
            return _NAMED[PageSize(self.wanted)]
        return self.why.value.format(wanted=self.wanted, there=self.there)
