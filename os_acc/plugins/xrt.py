# SPDX-License-Identifier: Apache-2.0

"""AMD/Xilinx cards on XRT's drivers.

A card has a management function, which stays on the host, and a user function for
the guest: https://xilinx.github.io/XRT/2024.1/html/platforms.html, "PCIe Based
Platforms". The management function can write the card's flash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.options import XRT_TOOLS
from os_acc.host import xrt
from os_acc.host.pci import read_function
from os_acc.objects.bitstream import Bitstream, ImageFormat
from os_acc.objects.device import Device, RejectedDevice, RejectReason, UsableFunction
from os_acc.objects.drivers import XRT_USER_DRIVER, XRT_VENDOR
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region
from os_acc.plugins import base, pci


class XrtPlugin(base.PluginBase):
    """One provider for each user function."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    options: ClassVar[Sequence[cfg.Opt]] = (XRT_TOOLS,)

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[Device | RejectedDevice]:
        for usable in candidates.usable:
            if usable.function.identity.vendor != XRT_VENDOR:
                continue
            recorded = candidates.leased_regions.get(usable.function.address)
            try:
                found = self._device(usable, recorded)
            except exception.HostStepFailed as error:
                found = pci.unreadable(usable, error)
            if found is not None:
                yield found

    def read_region(self, region: Region) -> Region | None:
        card = xrt.read_management(self.root, region.card)
        place = dataclasses.replace(region.card, function=region.number)
        user = read_function(self.root, place)
        if card is None or user is None or user.driver != XRT_USER_DRIVER:
            return None
        return dataclasses.replace(
            region,
            identity=card.function.identity,
            interface_id=card.interface_id,
            function_id=xrt.read_xclbin(self.root, user.address),
        )

    def program(
        self, region: Region, bitstream: Bitstream, steps: base.ProgrammingSteps
    ) -> None:
        if bitstream.header.format is not ImageFormat.XCLBIN:
            raise exception.ImageUnusable(
                f"image {bitstream.image} is not an xclbin, the only format that "
                f"{region} accepts",
                reason=exception.ImageReason.MISMATCH,
            )
        steps.load_xclbin(region, bitstream)

    def _device(
        self, usable: UsableFunction, recorded: Region | None
    ) -> Device | RejectedDevice | None:
        address = usable.function.address
        management = _management_among(self.root, usable)
        if management == address:
            return RejectedDevice(address, RejectReason.MANAGEMENT)
        if management is not None:
            detail = f"the management function {management} is in it"
            return RejectedDevice(address, RejectReason.NOT_ISOLATED, detail)
        if recorded is not None and recorded.card.same_slot(address):
            return pci.region_device(self.name, usable, recorded)
        if usable.function.driver != XRT_USER_DRIVER:
            return None
        card = xrt.management_of(self.root, usable.function)
        if card is None:
            # Its management function belongs to an outer host, or has no driver: the
            # guest uses the contents as they are.
            return pci.region_device(self.name, usable, None)
        if card.interface_id is None:
            return RejectedDevice(address, RejectReason.NO_INTERFACE, card.why)
        region = Region(
            card=card.function.address,
            identity=card.function.identity,
            number=address.function,
            interface_id=card.interface_id,
            function_id=xrt.read_xclbin(self.root, address),
        )
        return pci.region_device(self.name, usable, region)


def _management_among(root: str, usable: UsableFunction) -> PciAddress | None:
    """Return the management function among the functions to attach, or None."""
    for address in (usable.function.address, *usable.members):
        function = read_function(root, address)
        if function is not None and xrt.is_management(root, function):
            return address
    return None
