# SPDX-License-Identifier: Apache-2.0

"""The free devices of a host, as what a :class:`~os_acc.numa.Question` has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from os_acc.exception import InvalidInput, show
from os_acc.numa.fit.devices import DevicePool
from os_acc.objects.device import Provider
from os_acc.objects.pci import PciAddress


def free_pools(
    provider: Provider, attached: Mapping[str, Iterable[Mapping[str, Any]]]
) -> tuple[DevicePool, ...]:
    """The devices that a provider has left: a pool for each NUMA node.

    What is out of order is in none of them. Nothing of this is allocated or held:
    who asks later may find less.

    :param provider: one of :func:`os_acc.providers`.
    :param attached: what :func:`os_acc.attached` returns of everybody.
    :returns: in the order of the provider's devices; each is named by the
        provider's uuid and the node, which is -1 where the kernel knows of none.
    :raises InvalidInput: an entry is none that :func:`os_acc.plug` returned.
    """
    taken = {_address(entry) for entries in attached.values() for entry in entries}
    free = Counter(
        handle.numa_node
        for handle in provider.device.handles
        if not handle.fault and taken.isdisjoint(handle.members)
    )
    return tuple(
        DevicePool(f"{provider.uuid}/{-1 if node is None else node}", node, count)
        for node, count in free.items()
    )


def _address(entry: Mapping[str, Any]) -> PciAddress:
    # What is not for a guest has an address here, and no pci_id.
    parts: Any = entry.get("attach_handle_info")
    try:
        domain, bus, slot, function = (
            int(parts[name], 16) for name in ("domain", "bus", "device", "function")
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{show(parts)} is no attach_handle_info of an accelerator"
        ) from error
    return PciAddress(domain, bus, slot, function)
