# SPDX-License-Identifier: Apache-2.0

"""Common functions of the plugins for FPGA cards."""

from __future__ import annotations

from typing import Final

from os_acc import exception
from os_acc.objects.candidate import UsableFunction
from os_acc.objects.device import Device, Erasure, RejectedDevice, RejectReason
from os_acc.objects.region import Region

RESOURCE_CLASS: Final = "CUSTOM_ACCELERATOR_FPGA"


def device(plugin_name: str, usable: UsableFunction, region: Region | None) -> Device:
    """Return a provider for the only function of a region.

    :param region: None: the type and contents of the region are unknown.
    """
    identity = usable.function.identity
    trait = f"CUSTOM_PCI_{identity.vendor:04X}_{identity.product:04X}"
    return Device(
        plugin=plugin_name,
        address=usable.function.address,
        identity=identity,
        resource_class=usable.tags.resource_class or RESOURCE_CLASS,
        traits=usable.tags.traits | {trait},
        handles=(usable.handle(),),
        numa_node=usable.function.numa_node,
        region=region,
        # Of the function: the region keeps its own until it is programmed again.
        erasure=Erasure.RESET,
    )


def unreadable(
    usable: UsableFunction, error: exception.HostStepFailed
) -> RejectedDevice:
    """Reject a single unreadable card on behalf of this plugin.

    If the error left the plugin, other plugins could offer its cards: a plugin
    without regions would give them to guests, and their contents to the next
    guest.
    """
    return RejectedDevice(
        usable.function.address, RejectReason.UNREADABLE, error.message
    )
