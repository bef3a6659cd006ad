# SPDX-License-Identifier: Apache-2.0

"""The candidates of a host while Nova schedules several servers of one request.

Nova reads the candidates once for all servers of a request; it neither counts the
allocations that it makes for them, nor tries a second candidate of a host, and takes
the limits of all claims on a host from one ``HostState`` after the last server. The
``HostState`` lives as long as the request, and keeps these records.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from os_acc.scheduling.candidate_order import Candidate

_ATTRIBUTE: Final = "os_acc_candidates"
_LIMIT: Final = "numa_topology"


@dataclasses.dataclass
class HostRecord:
    """The record of a host for one request.

    :ivar claimed: units allocated to earlier servers, by provider and resource class.
    """

    claimed: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    _dropped: Sequence[Candidate] = ()
    _first: Candidate | None = None
    _servers: int = 0
    _limits: Any = None

    def candidates(self, host_state: Any) -> list[Candidate]:
        """Return the candidates that no other filter has dropped.

        Those that did not suit an earlier server are among them: Nova may choose other
        cells for the next one.
        """
        return [*host_state.allocation_candidates, *self._dropped]

    def keep(
        self, host_state: Any, kept: Sequence[Candidate], all_of_them: list[Candidate]
    ) -> None:
        """Leave these candidates to Nova, the first of them for its claim."""
        ids = set(map(id, kept))
        self._dropped = [each for each in all_of_them if id(each) not in ids]
        self._first = kept[0] if kept else None
        self._servers = host_state.num_instances
        self._limits = host_state.limits.get(_LIMIT)
        host_state.allocation_candidates = list(kept)

    def next(self, host_state: Any) -> Any:
        """Return the state of a host for the next server of the request.

        It is another object if the claim of an earlier server has limits of its own.
        """
        if self._first is None or host_state.num_instances == self._servers:
            return host_state
        claimed = self.claimed + _units(self._first)
        following = host_state
        if self._limits is not None:
            following = _copy(host_state)
            # Nova's filter has just replaced the limits of the earlier claim.
            following.limits = dict(host_state.limits)
            host_state.limits[_LIMIT] = self._limits
        setattr(following, _ATTRIBUTE, HostRecord(claimed, self._dropped))
        return following


def _copy(host_state: Any) -> Any:
    """Return a copy that equals every state of the same host.

    Nova searches its selected hosts with ``in``, to find alternates that are others.
    """
    found, kind = copy.copy(host_state), type(host_state)
    if not hasattr(kind, "is_equal_by_uuid"):
        members = {
            "is_equal_by_uuid": True,
            "__eq__": lambda self, other: self.uuid == getattr(other, "uuid", None),
            "__hash__": kind.__hash__,
        }
        found.__class__ = type(kind.__name__, (kind,), members)
    return found


def record_of(host_state: Any) -> HostRecord:
    """Return the record of a ``nova.scheduler.host_manager.HostState``."""
    found: HostRecord | None = getattr(host_state, _ATTRIBUTE, None)
    if found is None:
        found = HostRecord()
        setattr(host_state, _ATTRIBUTE, found)
    return found


def _units(candidate: Candidate) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (provider, name): units
            for provider, each in candidate["allocations"].items()
            for name, units in each["resources"].items()
        }
    )
