# SPDX-License-Identifier: Apache-2.0

"""Leases and accelerator requests as the public API returns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.request import AttachTarget


def entry(lease: Lease) -> dict[str, Any]:
    """One accelerator: the specification's ``pci_id``, and beside it a bound
    accelerator request as Nova 34's libvirt driver reads it.

    Nova wants the parts of the address as hexadecimal text, and the slot
    under the name ``device`` (nova/virt/libvirt/driver.py).
    """
    address = lease.address
    # What no guest may be given has no address that libvirt would take.
    pci_id = {"pci_id": str(address)} if lease.is_the_guests else {}
    return {
        **pci_id,
        "uuid": lease.uuid,
        "state": _STATES[lease.state],
        "attach_handle_type": _TYPES[lease.attach_target],
        "attach_handle_uuid": lease.uuid,
        "attach_handle_info": {
            "domain": f"{address.domain:04x}",
            "bus": f"{address.bus:02x}",
            "device": f"{address.slot:02x}",
            "function": f"{address.function:x}",
        },
        "device_rp_uuid": lease.provider,
        "instance_uuid": lease.consumer,
        "request_group": lease.group,
        "numa_node": lease.numa_node,
        "numa_affinity": lease.affinity and lease.affinity.value,
    }


# Nova's libvirt driver passes over those that it does not know.
_TYPES = {
    AttachTarget.VM: "PCI",
    AttachTarget.HOST: "HOST",
    AttachTarget.NONE: "NONE",
}
# Cyborg's names of states, which Nova compares with.
_STATES = {
    LeaseState.PREPARING: "BindStarted",
    LeaseState.HELD: "Bound",
    LeaseState.RELEASING: "Deleting",
    LeaseState.QUARANTINED: "UnbindFailed",
}
_NOTHING: Final[Mapping[str, Any]] = {
    "attach_handle_type": "",
    "attach_handle_uuid": None,
    "attach_handle_info": {},
}


def of_request(request: AcceleratorRequest) -> dict[str, Any]:
    """A request as Cyborg's API has it, and Nova reads it."""
    binding = request.binding
    bound = entry(request.lease) if request.lease else _NOTHING
    return {
        **bound,
        "uuid": request.uuid,
        "state": request.state.value,
        "device_profile_name": request.profile,
        "device_profile_group_id": request.group,
        "hostname": binding.hostname if binding else None,
        "device_rp_uuid": binding.device_rp_uuid if binding else None,
        "instance_uuid": request.instance,
        "reason": request.reason,
    }


def events(requests: Iterable[AcceleratorRequest]) -> dict[str, Any]:
    """The body of Nova's ``POST /os-server-external-events``.

    Of those that are resolved; the others have nothing to tell yet.
    """
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
