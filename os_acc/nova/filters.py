# SPDX-License-Identifier: Apache-2.0

"""A filter of Nova's scheduler for NUMA cells and networks, without Nova's quirks.

nova-scheduler loads it by ``[filter_scheduler] available_filters``. It belongs beside
Nova's ``NUMATopologyFilter``, never in its place: only that filter passes the guest's
networks on to the claim on the host. The interface is
``nova.scheduler.filters.BaseHostFilter``; the values are those of Nova 34.
"""

from __future__ import annotations

from typing import Any

from nova.scheduler import filters

from os_acc import exception, numa
from os_acc.numa.fit import convert
from os_acc.objects.numa import NUMALimits


class ExactNUMAFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Pass the hosts whose cells fit a guest and its networks, and no others."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Return whether a host passes; see :func:`passes`."""
        return passes(host_state, spec_obj)


def passes(host_state: Any, spec_obj: Any) -> bool:
    """Return whether the cells of a host fit a guest and its networks.

    A host for which the question is undecided passes: the claim on it decides.

    :param host_state: a ``nova.scheduler.host_manager.HostState``.
    :param spec_obj: a ``nova.objects.RequestSpec``.
    """
    networks = spec_obj.network_metadata if "network_metadata" in spec_obj else None
    question = numa.Question(
        convert.host_from_nova(host_state.numa_topology),
        convert.guest_from_nova(spec_obj.numa_topology),
        NUMALimits(host_state.cpu_allocation_ratio, host_state.ram_allocation_ratio),
        convert.networks_from_nova(networks),
    )
    try:
        return numa.fit_to_host(question, explain=False).fits
    except exception.FitUndecided:
        return True
