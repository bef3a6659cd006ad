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

"""Which free devices answer a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from os_acc import exception
from os_acc.objects.device import Handle, Provider
from os_acc.objects.pci import PciAddress
from os_acc.objects.selection import Wanted


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """One device for one accelerator of the request."""

    wanted: Wanted
    provider: Provider
    handle: Handle


def choose(
    wanted: Sequence[Wanted],
    providers: Mapping[str, Provider],
    taken: frozenset[PciAddress],
) -> tuple[Chosen, ...]:
    """The first free devices of each provider, in the order of the request.

    What is out of order is left alone.

    :param taken: functions that a lease, or a damaged record of one, claims.
    :raises DeviceGone: a provider has no device at all any more.
    :raises NoDeviceAvailable: a provider has fewer free ones than it should.
    """
    used = set(taken)
    chosen: list[Chosen] = []
    for each in wanted:
        provider = providers.get(each.provider_uuid)
        if provider is None:
            raise exception.DeviceGone(
                f"the device of provider {each.provider_uuid}, "
                f"{each.resource_class}, is not offered any more",
                hint="it was: see 'os-acc device list' for what has become of it",
            )
        for _ in range(each.amount):
            handle = next(_free(provider, used), None)
            if handle is None:
                raise exception.NoDeviceAvailable(
                    f"{provider.name} has no free device left for group "
                    f"{each.group_suffix!r}{_out_of_order(provider)}",
                    hint="see 'os-acc device list' for who has them",
                )
            used.update(handle.members)
            chosen.append(Chosen(each, provider, handle))
    return tuple(chosen)


def _free(provider: Provider, used: set[PciAddress]) -> Iterator[Handle]:
    return (
        handle
        for handle in provider.device.handles
        if not handle.fault and used.isdisjoint(handle.members)
    )


def _out_of_order(provider: Provider) -> str:
    faults = [
        f"{handle.address} {handle.fault}"
        for handle in provider.device.handles
        if handle.fault
    ]
    return f"; out of order: {', '.join(faults)}" if faults else ""
