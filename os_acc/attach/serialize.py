# SPDX-License-Identifier: Apache-2.0

"""The values of the public API, made from leases, requests and providers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from os_acc import exception
from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.api import (
    AcceleratorEntry,
    AttachHandleInfo,
    ExternalEvents,
    ProviderEntry,
    RequestEntry,
    SyncReport,
)
from os_acc.objects.device import Provider
from os_acc.objects.drivers import VFIO_PCI
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.objects.request_group import AttachTarget
from os_acc.placement.changes import RefusedChange

#: Returns the node of a device for iommufd, or None, by its name.
Cdev: TypeAlias = Callable[[str], str | None]
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
# Nova's libvirt driver ignores types that it does not know.
_TYPES: Final[Mapping[AttachTarget, str]] = {
    AttachTarget.VM: "PCI",
    AttachTarget.HOST: "HOST",
    AttachTarget.NONE: "NONE",
}
# The names of states in Cyborg's API, with which Nova compares.
_STATES: Final[Mapping[LeaseState, str]] = {
    LeaseState.PREPARING: "BindStarted",
    LeaseState.HELD: "Bound",
    LeaseState.RELEASING: "Deleting",
    LeaseState.ERASING: "Deleting",
    LeaseState.QUARANTINED: "UnbindFailed",
}


def accelerator(
    lease: Lease, cdev: Cdev = lambda _name: None, provider: str = ""
) -> AcceleratorEntry:
    """Return the accelerator of a lease, as plug returns it.

    :param cdev: returns ``vfio_cdev`` of a function or a mediated device, by its name.
    :param provider: its resource provider, if the lease may not name it.
    """
    is_guests = lease.is_the_guests
    is_mdev = lease.slot is not None and is_guests
    entry: AcceleratorEntry = {
        "uuid": lease.request_uuid,
        "state": _STATES[lease.state],
        "attach_handle_type": "MDEV" if is_mdev else _TYPES[lease.wanted.attach_target],
        "attach_handle_uuid": lease.request_uuid if lease.slot is None else lease.uuid,
        "attach_handle_info": _handle_info(lease),
        "device_rp_uuid": provider or lease.provider,
        "instance_uuid": lease.consumer,
        "request_group": lease.group,
        "numa_node": lease.handle.numa_node,
        "numa_affinity": lease.affinity.value if lease.affinity else None,
        "created_at": (_EPOCH + lease.created_at * _MICROSECOND).isoformat(
            timespec="microseconds"
        ),
    }
    # Without this key, libvirt is not given a device that stays with the host, nor
    # the parent of a mediated device.
    if is_guests and lease.slot is None:
        entry["pci_id"] = lease.device_name
        if held := [str(each) for each in lease.functions if each != lease.address]:
            entry["held_pci_ids"] = held
    if is_guests and lease.driver != VFIO_PCI:
        entry["vfio_driver"] = lease.driver
    if is_guests and (node := cdev(lease.device_name)) is not None:
        entry["vfio_cdev"] = node
    if lease.programming is not None and lease.programming.function_id:
        entry["function_id"] = lease.programming.function_id
    if lease.is_spare:
        entry["is_spare"] = True
    return entry


def _handle_info(lease: Lease) -> AttachHandleInfo:
    """Return the address in the form that Nova puts into names of node devices."""
    info, slot = AttachHandleInfo(), lease.slot
    address = lease.address if slot is None else slot.type.function
    if isinstance(address, PciAddress):
        info = AttachHandleInfo(
            domain=f"{address.domain:04x}",
            bus=f"{address.bus:02x}",
            device=f"{address.slot:02x}",
            function=f"{address.function:x}",
        )
    if slot is not None:
        info["asked_type"] = slot.type.name
        info["parent"] = slot.type.parent
    elif lease.handle.physical_network:
        # Nova reads this key of a port's accelerator.
        info["physical_network"] = lease.handle.physical_network
    return info


def by_consumer(
    leases: Iterable[Lease], entry: Callable[[Lease], AcceleratorEntry] = accelerator
) -> dict[str, list[AcceleratorEntry]]:
    """Return the accelerators of each consumer, by the consumer's UUID.

    A device that is being erased has none.

    :param entry: returns the accelerator of a lease.
    """
    found: dict[str, list[AcceleratorEntry]] = {}
    for lease in leases:
        if lease.erasure:
            continue
        found.setdefault(lease.consumer, []).append(entry(lease))
    return found


def held_seconds(entry: object) -> float:
    """See :func:`os_acc.held_seconds`."""
    text = entry.get("created_at") if isinstance(entry, Mapping) else None
    try:
        created = datetime.datetime.fromisoformat(text if type(text) is str else "")
        age = datetime.datetime.now(datetime.UTC) - created
    # A time without a zone cannot be compared.
    except (TypeError, ValueError) as error:
        raise exception.InvalidInput(
            f"created_at of an entry is {exception.show(text)}, not an ISO 8601 time "
            "with a zone",
            hint="pass an entry that os_acc returned",
        ) from error
    return max(0.0, age.total_seconds())


def request(made: AcceleratorRequest) -> RequestEntry:
    """Return an accelerator request, with its accelerator while it is bound."""
    binding = made.binding
    entry: RequestEntry = {
        "uuid": made.uuid,
        "state": made.state.value,
        "device_profile_name": made.profile,
        "device_profile_group_id": made.group,
        "hostname": binding.hostname if binding else None,
        "device_rp_uuid": binding.device_rp_uuid if binding else None,
        "instance_uuid": made.instance,
        "reason": made.reason,
        "attach_handle_type": "",
        "attach_handle_uuid": None,
        "attach_handle_info": {},
    }
    if made.lease is not None:
        bound = accelerator(made.lease)
        entry["attach_handle_type"] = bound["attach_handle_type"]
        entry["attach_handle_uuid"] = bound["attach_handle_uuid"]
        entry["attach_handle_info"] = bound["attach_handle_info"]
        entry["request_group"] = bound["request_group"]
        entry["numa_node"] = bound["numa_node"]
        entry["numa_affinity"] = bound["numa_affinity"]
        entry["created_at"] = bound["created_at"]
        if "pci_id" in bound:
            entry["pci_id"] = bound["pci_id"]
        if "held_pci_ids" in bound:
            entry["held_pci_ids"] = bound["held_pci_ids"]
        if "vfio_driver" in bound:
            entry["vfio_driver"] = bound["vfio_driver"]
    return entry


def events(requests: Iterable[AcceleratorRequest]) -> ExternalEvents:
    """Return Nova's events for the requests that are resolved."""
    return {
        "events": [
            {
                "name": "accelerator-request-bound",
                "tag": each.uuid,
                "server_uuid": each.instance,
                "status": "completed" if each.state is RequestState.BOUND else "failed",
            }
            for each in requests
            if each.instance and each.is_resolved
        ]
    }


def provider(offered: Provider) -> ProviderEntry:
    """Return a resource provider of this host."""
    device = offered.device
    return {
        "uuid": offered.uuid,
        "name": offered.name,
        "parent": offered.card.name if offered.card else "",
        "plugin": device.plugin,
        "resource_class": device.resource_class,
        "total": len(device.handles),
        "traits": sorted(device.traits),
        "addresses": sorted(str(each.address) for each in device.handles),
        "numa_node": device.numa_node,
    }


def sync_report(
    done: Iterable[object],
    refused: Iterable[RefusedChange],
    reads: int,
    writes: int,
) -> SyncReport:
    """Return the result of a synchronization with Placement."""
    return {
        "done": [str(each) for each in done],
        "refused": [
            {
                "change": each.what,
                "error": str(each.error),
                "retryable": each.error.retryable,
            }
            for each in refused
        ],
        "reads": reads,
        "writes": writes,
    }
