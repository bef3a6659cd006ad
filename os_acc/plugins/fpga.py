# SPDX-License-Identifier: Apache-2.0

"""What the plugins of FPGA cards have in common."""

from __future__ import annotations

from typing import Final

from os_acc import exception
from os_acc.objects.claim import UsableFunction
from os_acc.objects.device import Device, RejectedDevice, RejectReason
from os_acc.objects.region import Region

RESOURCE_CLASS: Final = "CUSTOM_ACCELERATOR_FPGA"


def device(plugin_name: str, claim: UsableFunction, region: Region | None) -> Device:
    """The one function of a region that a guest can be given, as a provider.

    :param region: None: nothing is known of what the function takes or holds.
    """
    identity = claim.function.identity
    trait = f"CUSTOM_PCI_{identity.vendor:04X}_{identity.product:04X}"
    return Device(
        plugin=plugin_name,
        address=claim.function.address,
        identity=identity,
        resource_class=claim.tags.resource_class or RESOURCE_CLASS,
        traits=claim.tags.traits | {trait},
        handles=(claim.handle(),),
        numa_node=claim.function.numa_node,
        region=region,
    )


def unreadable(
    claim: UsableFunction, error: exception.HostStepFailed
) -> RejectedDevice:
    """Refuse a card that cannot be looked into, alone and by this plugin.

    Were the error to leave the plugin, its cards would be any plugin's: one
    that knows of no regions would give them to guests, and what they hold
    afterwards to the next one.
    """
    return RejectedDevice(
        claim.function.address, RejectReason.UNREADABLE, error.message
    )
