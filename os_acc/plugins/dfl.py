# SPDX-License-Identifier: Apache-2.0

"""FPGA cards on the kernel's Device Feature List driver (dfl-pci).

A card is programmed through its FPGA Management Engine, one port at a time
(Documentation/fpga/dfl.rst). A guest gets either the entire function, which is then
unbound from dfl-pci, or a VF with the port of the same number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from os_acc import exception
from os_acc.host import dfl
from os_acc.objects.bitstream import Bitstream, ImageFormat
from os_acc.objects.device import Device, RejectedDevice, RejectReason, UsableFunction
from os_acc.objects.drivers import DFL_DRIVER, is_dfl_product, is_vfio_driver
from os_acc.objects.region import Region
from os_acc.plugins import base, pci


class DflPlugin(base.PluginBase):
    """One provider for each region: a card, or one of its ports."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    # ``afu_id`` is unreadable while the port is in reset, as after a failure.
    always_reports_function_id: ClassVar[bool] = True

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[Device | RejectedDevice]:
        for usable in candidates.usable:
            recorded = candidates.leased_regions.get(usable.function.address)
            if recorded is not None:
                if usable.parent.identity.may_be(recorded.identity):
                    yield pci.region_device(self.name, usable, recorded)
            elif usable.function.driver == DFL_DRIVER:
                yield self._port(usable)
            elif is_dfl_product(usable.function.identity):
                yield self._away(usable)

    def read_region(self, region: Region) -> Region | None:
        card = dfl.read_card(self.root, region.card)
        port = card.port(region.number) if card else None
        if card is None or port is None:
            return None
        return dataclasses.replace(
            region, interface_id=card.interface_id, function_id=port.function_id
        )

    def program(
        self, region: Region, bitstream: Bitstream, steps: base.ProgrammingSteps
    ) -> None:
        if bitstream.header.format is ImageFormat.XCLBIN:
            raise exception.ImageUnusable(
                f"image {bitstream.image} is an xclbin, which {region} cannot take",
                reason=exception.ImageReason.MISMATCH,
            )
        steps.program_dfl_port(region, bitstream)

    def _port(self, usable: UsableFunction) -> Device | RejectedDevice:
        address = usable.function.address
        try:
            card = dfl.read_card(self.root, usable.parent.address)
        except exception.HostStepFailed as error:
            return pci.unreadable(usable, error)
        if card is None:
            return _unseen(usable)
        if card.manager is not None and card.interface_id is None:
            # The card could be programmed with a bitstream for another one.
            return RejectedDevice(
                address, RejectReason.NO_INTERFACE, "it has no compat_id"
            )
        ports = [port for port in card.ports if port.function == address]
        if len(ports) != 1 or (address == card.address and card.ports_num != 1):
            # The entire card would give several regions to one guest.
            detail = f"{len(ports)} of the {card.ports_num} ports are its own"
            return RejectedDevice(address, RejectReason.SEVERAL_REGIONS, detail)
        region = Region(
            card=card.address,
            identity=usable.parent.identity,
            number=ports[0].number,
            interface_id=card.interface_id,
            function_id=ports[0].function_id,
        )
        return pci.region_device(self.name, usable, region)

    def _away(self, usable: UsableFunction) -> Device | RejectedDevice:
        """Handle a function whose region the host cannot read now."""
        if is_vfio_driver(usable.function.driver) and not usable.tags.prebound:
            # Only leased functions are candidates on a VFIO driver. Without a recorded
            # region, a guest holds it, and the lease was made later.
            return pci.region_device(self.name, usable, None)
        return _unseen(usable)


def _unseen(usable: UsableFunction) -> RejectedDevice:
    """Reject a function with unknown contents, so that no other plugin offers it."""
    driver, parent = usable.function.driver, usable.parent.address
    detail = f"bound to {driver}" if driver else "it has no driver"
    if driver == DFL_DRIVER:
        detail = f"there is no FPGA Management Engine at {parent}"
    return RejectedDevice(usable.function.address, RejectReason.UNSEEN_REGION, detail)
