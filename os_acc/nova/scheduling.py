# SPDX-License-Identifier: Apache-2.0

"""Nova's objects as the filter and the weigher need them.

Nova claims the first candidate of a host, in cells that it chooses without regard to
accelerators. The filter orders the candidates, and binds the claim to cells.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions as keystone_exceptions
from nova import objects
from nova.conf import CONF
from nova.scheduler.client import report
from nova.virt import hardware
from oslo_log import log

from os_acc import exception
from os_acc.conf import SchedulerSettings
from os_acc.nova import conversion
from os_acc.nova.host_providers import HostProviders, Providers, record_of
from os_acc.numa import convert
from os_acc.objects.instance import IMAGE_NUMA_POLICY
from os_acc.scheduling import candidate_order
from os_acc.scheduling.candidate_order import (
    Candidate,
    GroupRequirements,
    HostView,
    Use,
)

LOG = log.getLogger(__name__)

#: Suffixes of groups in mappings: 1.34; that of Nova's own candidates.
_MICROVERSION = "1.36"


def read_summaries(host: str, resource_class: str) -> Mapping[str, Any]:
    """Return the ``provider_summaries`` of a host with a free unit of a class.

    :param host: the UUID of its root provider.
    :raises ServiceUnavailable: Placement gives no usable answer.
    """
    query = {"resources": f"{resource_class}:1", "in_tree": host, "limit": 1}
    url = f"/allocation_candidates?{parse.urlencode(query)}"
    try:
        client = report.report_client_singleton()
        response = client.get(url, version=_MICROVERSION)
        if response.status_code != 200:
            raise ValueError(f"HTTP status {response.status_code}")
        found: Mapping[str, Any] = response.json()["provider_summaries"]
    except (
        keystone_exceptions.ClientException,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise exception.ServiceUnavailable(
            f"cannot read the providers of host {host}: {error}",
            service=exception.ServiceType.PLACEMENT,
        ) from error
    return found


@functools.cache
def host_providers() -> HostProviders:
    """Return the cache that the filter and the weigher of this process share."""
    return HostProviders(read_summaries, SchedulerSettings.load(CONF).cached_hosts)


class ServerRequest:
    """A server that Nova schedules.

    :param spec_obj: its ``nova.objects.RequestSpec``.
    :param settings: the options of the scheduler.
    :ivar groups: its groups with accelerators, by suffix.
    """

    def __init__(self, spec_obj: Any, settings: SchedulerSettings) -> None:
        self._spec, self._settings = spec_obj, settings
        self._deadline = time.monotonic() + settings.placement_timeout
        self._has_warned = False
        image = spec_obj.image
        self.groups: Mapping[str, GroupRequirements] = conversion.groups_of(
            spec_obj.flavor.extra_specs,
            None if image is None else image.properties.get(IMAGE_NUMA_POLICY),
            settings.numa_policy,
        )

    def uses(self, candidates: Iterable[Candidate]) -> list[Use]:
        """Return the providers of accelerators in candidates."""
        return [
            use
            for each in candidates
            for use in candidate_order.uses_of(each, self.groups)
        ]

    def providers(self, host_state: Any, uses: Sequence[Use], age: float) -> Providers:
        """Return the providers of a host.

        :param age: the age in seconds that a cached answer may have.
        :raises ServiceUnavailable: Placement gives no usable answer in time.
        :raises DeviceStuck: there is no thread for the request.
        """
        name = min(name for use in uses for name in use.units)
        cache, host = host_providers(), host_state.uuid
        found = cache.get(host, name, age, self._deadline)
        if all(use.provider in found for use in uses):
            return found
        # The provider is younger than the answer.
        return cache.get(host, name, 0.0, self._deadline)

    def has_cells(self, host_state: Any) -> bool:
        """Return whether Nova chooses cells of a host for the guest."""
        return bool(self._spec.numa_topology and host_state.numa_topology)

    def choose(self, host_state: Any) -> Any | None:
        """Leave to Nova the candidates of a host that suit the server, best first.

        :returns: the state of the host, for this server; None: no candidate is left.
        """
        host_state = record_of(host_state).next(host_state)
        record = record_of(host_state)
        candidates = record.candidates(host_state)
        uses = self.uses(candidates)
        if not uses:
            return host_state
        known: Providers = {}
        has_functions = any(each.function for each in self.groups.values())
        if record.claimed or self.has_cells(host_state) or has_functions:
            known = self._known(host_state, uses)
        view = HostView(
            convert.host_from_nova(host_state.numa_topology), known, record.claimed
        )
        choices = candidate_order.order(
            candidates, self.groups, view, self._fit(host_state)
        )
        limits = host_state.limits.get("numa_topology")
        if choices and choices[0].cells and limits is not None:
            # The claim has to use the cells of the choice.
            host_state.limits["numa_topology"] = bound_to_cells(
                limits, choices[0].cells
            )
        record.keep(host_state, [each.candidate for each in choices], candidates)
        return host_state if choices else None

    def _known(self, host_state: Any, uses: Sequence[Use]) -> Providers:
        """Return the providers of a host; none if Placement does not answer."""
        try:
            return self.providers(host_state, uses, self._settings.trait_lifetime)
        except exception.OsAccError as error:
            # A line for each host would hide the others.
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            LOG.log(level, "host %s passes unchecked: %s", host_state.host, error)
            return {}

    def _fit(self, host_state: Any) -> candidate_order.Fit:
        """Return the fit that Nova makes in its claim on the host."""
        if not self.has_cells(host_state):
            return lambda _candidate, _cells: ()
        limits = host_state.limits.get("numa_topology")
        devices = self._spec.pci_requests
        requests = devices.requests if devices else None
        cached: dict[tuple[frozenset[int], int], tuple[int, ...] | None] = {}

        def fit(candidate: Candidate, cells: frozenset[int]) -> tuple[int, ...] | None:
            # Only Nova's own devices depend on the candidate.
            key = cells, id(candidate) if requests else 0
            if key not in cached:
                cached[key] = fit_cells(
                    host_state.numa_topology,
                    self._spec.numa_topology,
                    provider_mapping=candidate["mappings"],
                    limits=bound_to_cells(limits, cells),
                    pci_requests=requests,
                    pci_stats=host_state.pci_stats,
                )
            return cached[key]

        return fit


def fit_cells(host: Any, guest: Any, **criteria: Any) -> tuple[int, ...] | None:
    """Return the host cells that Nova chooses for a guest, or None.

    None, too, for a choice that Nova cannot claim: its function reuses the result of an
    earlier combination of cells, with the pinned CPUs of another one
    (``fit_cache`` of ``numa_fit_instance_to_host``, Nova 34).

    :param host: a ``nova.objects.NUMATopology``.
    :param guest: a ``nova.objects.InstanceNUMATopology``; it is not changed.
    :param criteria: further parameters of ``numa_fit_instance_to_host``.
    """
    found = hardware.numa_fit_instance_to_host(host, guest.obj_clone(), **criteria)
    if not found:
        return None
    own = {cell.id: cell.pcpuset for cell in host.cells}
    if any(not own[cell.id].issuperset(_pinned(cell)) for cell in found.cells):
        return None
    return tuple(cell.id for cell in found.cells)


def _pinned(cell: Any) -> set[int]:
    """Return the CPUs of the host to which a cell of a guest is pinned."""
    return {*(cell.cpu_pinning or {}).values(), *(cell.cpuset_reserved or ())}


def _network_of(cell: int) -> str:
    return f"os-acc:numa-cell-{cell}"


def declare_cell_networks(topology: Any) -> None:
    """Add to each cell of a host a network that no port uses.

    Nova places a guest that uses a physical network in the cells of this network
    ("NUMA-aware vSwitches"), in the scheduler and in the claim on the host alike. A
    claim whose limits name the network of a cell binds the guest to the cell. On a host
    without such networks, the limits have no effect
    (``_numa_cells_support_network_metadata`` in ``nova/virt/hardware.py``).

    :param topology: a ``nova.objects.NUMATopology``; it is changed.
    """
    for cell in topology.cells:
        metadata = cell.network_metadata
        metadata.physnets = {*metadata.physnets, _network_of(cell.id)}


def bound_to_cells(limits: Any, cells: Iterable[int]) -> Any:
    """Return limits that bind a guest to cells; unlimited resources cannot.

    :param limits: a ``nova.objects.NUMATopologyLimits``, or None; it is not changed.
    """
    names = set(map(_network_of, cells))
    if limits is None or not names:
        return limits
    found = limits.network_metadata if "network_metadata" in limits else None
    result = limits.obj_clone()
    result.network_metadata = objects.NetworkMetadata(
        physnets=names | (set(found.physnets) if found else set()),
        tunneled=bool(found and found.tunneled),
    )
    return result
