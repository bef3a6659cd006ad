# SPDX-License-Identifier: Apache-2.0

"""A drawing, before it is known where it is drawn."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress


class Mark(enum.Enum):
    """What a line is about; it has a colour where there are colours."""

    PLACE = "place"
    HOST = "host"
    FREE = "free"
    LEASED = "leased"
    UNDER_WAY = "under-way"
    TROUBLE = "trouble"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line, and what is below it.

    :ivar state: one word of ``os-acc device list``; empty where it has none.
    :ivar framed: whether there is a frame around it and what is below.
    :ivar functions: those that it stands for, without those below.
    """

    label: str
    details: tuple[str, ...] = ()
    state: str = ""
    mark: Mark = Mark.PLACE
    framed: bool = False
    functions: tuple[PciAddress, ...] = ()
    below: tuple[Line, ...] = ()

    def all(self) -> Iterator[Line]:
        """This line and all below it, from the top."""
        yield self
        for line in self.below:
            yield from line.all()

    @property
    def depth(self) -> int:
        """How many lines are below each other, at most."""
        return 1 + max((line.depth for line in self.below), default=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What guests in these cells would have to choose from.

    :ivar cells: that are all alike in this; of one guest in several: as ``0+1``.
    :ivar free: accelerators that are free, for each policy.
    """

    cells: str
    free: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Supply:
    """The accelerators of one resource class that are free."""

    resource_class: str
    free: int
    choices: tuple[Choice, ...]


#: The order of ``Choice.free``: from the strictest.
POLICIES = tuple(NUMAPolicy)


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """A host, and what guests could get of it."""

    host: Line
    supplies: tuple[Supply, ...]
