# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


from nova.scheduler import filters

from os_acc import exception, numa
from os_acc.numa import convert
from os_acc.objects.numa import NUMALimits


class ExactNUMAFilter(filters.BaseHostFilter):
    """Hosts whose cells can carry a guest and its networks, without Nova's quirks."""

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
