# SPDX-License-Identifier: Apache-2.0

"""Reasons why a guest cell does not fit a host cell."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from os_acc.objects.numa import PageSize


class ReasonKind(enum.Enum):
    """A kind of mismatch; each value is its message."""

    #: In KiB, or one of :class:`~os_acc.objects.numa.PageSize`.
    PAGE_SIZE = "it has no pages of {wanted} KiB"
    #: The request in KiB, and the page size in KiB.
    UNEVEN_PAGES = "{wanted} KiB are not a whole number of pages of {there} KiB"
    #: In MiB.
    FREE_PAGES = "{wanted} MiB are requested, but pages for {there} MiB are free"
    #: In MiB, total.
    MEMORY = "{wanted} MiB are requested, but it has {there} MiB"
    #: In MiB.
    FREE_MEMORY = "{wanted} MiB are requested, but {there} MiB are free"
    #: Total, used or not.
    CPUS = "{wanted} shared CPUs are requested, but it has {there}"
    #: Total, used or not.
    PCPUS = "{wanted} dedicated CPUs are requested, but it has {there}"
    FREE_PCPUS = "{wanted} dedicated CPUs are requested, but {there} are free"
    NO_THREADS = "siblings are required, but its cores have one thread each"
    #: The most CPUs available in groups of equally many siblings.
    SIBLINGS = "{wanted} CPUs on siblings are required, but {there} are available"
    #: Cores whose threads are all free.
    WHOLE_CORES = "{wanted} whole cores are requested, but {there} are free"
    #: Nova isolates CPUs on a host with threads only if shared and dedicated CPUs
    #: are the same set (``vcpu_pin_set``).
    THREADS = "a whole core is requested, but its cores have several threads"
    EMULATOR = "no dedicated CPU is left for the emulator's threads"
    #: Shared guest CPUs in total, and their limit.
    CPU_LIMIT = "{wanted} CPUs would share its CPUs; the limit is {there}"
    #: In MiB.
    RAM_LIMIT = "{wanted} MiB would be used; the limit is {there} MiB"


_NAMED: Final = {
    PageSize.SMALL: "it has no pages of a known size",
    PageSize.LARGE: "it has no large pages",
    PageSize.ANY: "it has no pages of a known size",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """The amounts requested and available, in the units of :class:`ReasonKind`."""

    why: ReasonKind
    wanted: int = 0
    there: int = 0

    def __str__(self) -> str:
        if self.why is ReasonKind.PAGE_SIZE and self.wanted in _NAMED:
            return _NAMED[PageSize(self.wanted)]
        return self.why.value.format(wanted=self.wanted, there=self.there)
