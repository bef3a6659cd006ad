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

"""``os-acc provider``: what Placement is told of this host."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc.cmd import base


class ProviderList(base.Listing):
    """List the resource providers of this host's accelerators.

    Changes nothing, and needs no privileged helper.
    """

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        look = self.look()
        self.remark_if_none_named()
        used = Counter(lease.provider for lease in look.recorded.leases)
        return _COLUMNS, [
            (
                each.uuid,
                each.name,
                each.device.resource_class,
                len(each.device.handles),
                used[each.uuid],
                each.device.numa_node,
                each.device.plugin,
                sorted(each.device.traits),
            )
            for each in sorted(
                look.stock.providers.values(), key=lambda each: each.device.address
            )
        ]


_COLUMNS = (
    "UUID",
    "Name",
    "Resource Class",
    "Total",
    "Used",
    "NUMA Node",
    "Plugin",
    "Traits",
)
