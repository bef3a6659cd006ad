# SPDX-License-Identifier: Apache-2.0

"""The accelerators of hosts for Nova's scheduler: in Placement, and claimed meanwhile.

Nova passes neither the traits nor the usage of providers to filters and weighers. One
request reads those of all providers of a host; the answers are cached.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from types import MappingProxyType
from typing import Any, Final

from os_acc import deadlines, exception
from os_acc.objects.bitstream import canonical_function_id, names_function
from os_acc.placement import device_traits
from os_acc.scheduling.candidate_order import Candidate, ProviderState

#: Requests of a process that have no answer yet, at most. A request that hangs
#: occupies a thread.
_MOST_PENDING: Final = 16
_ATTRIBUTE: Final = "os_acc_candidates"
_LIMIT: Final = "numa_topology"

Providers = Mapping[str, ProviderState]
#: Reads the ``provider_summaries`` of one host: the UUID of its root provider, and a
#: resource class with a free unit there. It raises ServiceUnavailable.
Read = Callable[[str, str], Mapping[str, Any]]


class HostProviders:
    """The providers of hosts; thread-safe.

    :param size: the number of hosts that are kept; those unused for the longest time
        are dropped.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self, read: Read, size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._size, self._clock = read, size, clock
        self._lock = threading.Lock()
        #: The providers of each host, and when they were read.
        self._hosts = collections.OrderedDict[str, tuple[Providers, float]]()
        self._pending: dict[str, futures.Future[Providers]] = {}
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """In a forked child, replace the lock, and the requests of the parent."""
        self._lock, self._pending = threading.Lock(), {}

    def get(
        self, host: str, resource_class: str, max_age: float, deadline: float
    ) -> Providers:
        """Return the providers of a host.

        :param host: the UUID of the root provider.
        :param resource_class: a class with a free unit on the host.
        :param max_age: the age in seconds that a cached answer may have.
        :param deadline: the latest end, on the clock of :func:`time.monotonic`.
        :raises ServiceUnavailable: Placement gives no usable answer in time.
        :raises DeviceStuck: there is no thread for the request.
        """
        with self._lock:
            if host in self._hosts:
                found, read_at = self._hosts[host]
                if self._clock() - read_at < max_age:
                    self._hosts.move_to_end(host)
                    return found
            # Under the same lock: a request that ends meanwhile serves this call.
            answer = self._begin(host, resource_class)
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise _unavailable("no answer in time") from error

    def _begin(self, host: str, resource_class: str) -> futures.Future[Providers]:
        """Start a request, or return the one that another thread has started.

        The caller has the lock.
        """
        pending = self._pending.get(host)
        if pending is not None and not pending.done():
            return pending
        if len(self._pending) >= _MOST_PENDING:
            raise _unavailable(f"{_MOST_PENDING} requests have no answer yet")
        started = deadlines.begin(self._refresh, host, resource_class)
        self._pending[host] = started
        return started

    def _refresh(self, host: str, resource_class: str) -> Providers:
        """Read a host, and keep the answer even if no caller waits for it."""
        began = self._clock()
        try:
            found = parse(self._read(host, resource_class))
        except BaseException:
            with self._lock:
                self._pending.pop(host, None)
            raise
        with self._lock:
            self._pending.pop(host, None)
            self._hosts[host] = found, began
            self._hosts.move_to_end(host)
            while len(self._hosts) > self._size:
                self._hosts.popitem(last=False)
        return found


def parse(summaries: Mapping[str, Any]) -> Providers:
    """Return the providers in the ``provider_summaries`` of Placement.

    :raises ServiceUnavailable: the answer is not one of Placement.
    """
    try:
        return MappingProxyType(
            {uuid: _provider(summary) for uuid, summary in summaries.items()}
        )
    except (AttributeError, LookupError, TypeError) as error:
        raise _unavailable(f"the answer is malformed ({error!r})") from error


def _provider(summary: Mapping[str, Any]) -> ProviderState:
    traits = frozenset(summary["traits"])
    return ProviderState(
        cells=device_traits.cells_of(traits),
        functions=frozenset(
            canonical_function_id(trait) for trait in traits if names_function(trait)
        ),
        is_programmable=device_traits.PROGRAMMABLE in traits,
        free={
            name: each["capacity"] - each["used"]
            for name, each in summary["resources"].items()
        },
    )


def _unavailable(detail: str) -> exception.ServiceUnavailable:
    return exception.ServiceUnavailable(
        f"cannot read providers from Placement: {detail}",
        service=exception.ServiceType.PLACEMENT,
    )


@dataclasses.dataclass
class HostRecord:
    """The record of a host for one request, which may be for several servers.

    Nova reads the candidates once for all servers of a request; it neither counts the
    allocations that it makes for them, nor tries a second candidate of a host, and
    takes the limits of all claims on a host from one ``HostState`` after the last
    server. The ``HostState`` lives as long as the request, and keeps this record.

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
