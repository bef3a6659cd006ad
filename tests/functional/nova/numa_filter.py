# SPDX-License-Identifier: Apache-2.0

from nova.scheduler import filters

from os_acc import exception, numa
from os_acc.numa.fit import convert
from os_acc.objects.numa import NUMALimits


class ExactNUMAFilter(filters.BaseHostFilter):
    """Pass hosts whose cells fit a guest and its networks, without Nova's quirks."""

    RUN_ON_REBUILD = False

    def host_passes(self, host_state, spec_obj):
        networks = None
        if "network_metadata" in spec_obj:
            networks = spec_obj.network_metadata
        question = numa.Question(
            convert.host_from_nova(host_state.numa_topology),
            convert.guest_from_nova(spec_obj.numa_topology),
            NUMALimits(
                host_state.cpu_allocation_ratio, host_state.ram_allocation_ratio
            ),
            convert.networks_from_nova(networks),
        )
        try:
            return numa.fit_to_host(question, explain=False).fits
        except exception.FitUndecided:
            # The claim on the host decides.
            return True
