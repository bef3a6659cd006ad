# SPDX-License-Identifier: Apache-2.0

"""The model of a drawing, independent of its output format."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress


class Mark(enum.Enum):
    """The meaning of a line, which determines its colour."""

    PLACE = "place"
    HOST = "host"
    FREE = "free"
    LEASED = "leased"
    UNDER_WAY = "under-way"
    TROUBLE = "trouble"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line, and the lines below it.

    :ivar state: a state of ``os-acc device list``; empty for other lines.
    :ivar framed: whether a frame encloses the line and all below it.
    :ivar functions: the functions of the line, without those below.
    """

    label: str
    details: tuple[str, ...] = ()
    state: str = ""
    mark: Mark = Mark.PLACE
    framed: bool = False
    functions: tuple[PciAddress, ...] = ()
    below: tuple[Line, ...] = ()

    def all(self) -> Iterator[Line]:
        """Yield this line and all below it, from the top."""
        yield self
        for line in self.below:
            yield from line.all()

    @property
    def depth(self) -> int:
        """The maximum number of nested lines."""
        return 1 + max((line.depth for line in self.below), default=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The free accelerators for guests in these cells.

    :ivar cells: cells with equal numbers; for one guest in several cells: as
        ``0+1``.
    :ivar free: number of free accelerators, for each policy.
    """

    cells: str
    free: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Supply:
    """The free accelerators of one resource class."""

    resource_class: str
    free: int
    choices: tuple[Choice, ...]


#: The order of ``Choice.free``: from the strictest policy.
POLICIES = tuple(NUMAPolicy)


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """A host, and the accelerators available to guests."""

    host: Line
    supplies: tuple[Supply, ...]
