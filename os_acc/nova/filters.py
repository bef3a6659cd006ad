# SPDX-License-Identifier: Apache-2.0

"""Filters of Nova's scheduler, for accelerators, NUMA cells and networks.

nova-scheduler loads them by ``[filter_scheduler] available_filters``. They belong
beside Nova's ``NUMATopologyFilter``, never in its place: only that filter passes the
guest's networks on to the claim on the host. The interface is
``nova.scheduler.filters.BaseHostFilter``; the values are those of Nova 34.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nova.conf import CONF
from nova.scheduler import filters, utils

from os_acc import exception, numa
from os_acc.conf import SchedulerSettings
from os_acc.nova import scheduling
from os_acc.numa import convert
from os_acc.objects.numa import NUMALimits


class AcceleratorFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Order the allocation candidates of hosts, and drop those that do not serve.

    Nova claims the first candidate of a host; see
    :mod:`os_acc.scheduling.candidate_order`.
    """

    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        self._settings = SchedulerSettings.load(CONF)

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: Any
    ) -> Iterator[Any]:
        """Yield the hosts that have a candidate for a server.

        A host may be another object than the given one.

        :param filter_obj_list: of ``nova.scheduler.host_manager.HostState``.
        :param spec_obj: a ``nova.objects.RequestSpec``.
        """
        if not utils.request_is_rebuild(spec_obj):
            server = scheduling.ServerRequest(spec_obj, self._settings)
            if server.groups:
                yield from filter(None, map(server.choose, filter_obj_list))
                return
        yield from filter_obj_list

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Return whether a host has a candidate for a server."""
        return bool(list(self.filter_all([host_state], spec_obj)))


class ExactNUMAFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Pass the hosts whose cells fit a guest and its networks, and no others."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Return whether the cells of a host fit a guest and its networks.

        A host for which the question is undecided passes: the claim on it decides.

        :param host_state: a ``nova.scheduler.host_manager.HostState``.
        :param spec_obj: a ``nova.objects.RequestSpec``.
        """
        networks = spec_obj.network_metadata if "network_metadata" in spec_obj else None
        question = numa.Question(
            convert.host_from_nova(host_state.numa_topology),
            convert.guest_from_nova(spec_obj.numa_topology),
            NUMALimits(
                host_state.cpu_allocation_ratio, host_state.ram_allocation_ratio
            ),
            convert.networks_from_nova(networks),
        )
        try:
            return numa.fit_to_host(question).fits
        except exception.FitUndecided:
            return True
