# SPDX-License-Identifier: Apache-2.0

"""The plugin of F2 cards: one device for each card, with its VFs as handles."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from os_acc.plugins import base
from oslo_config import cfg

from acme_accelerator import hardware


class AcmePlugin(base.PluginBase):
    """F2 cards: the VFs go to guests, the PF programs their one region."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    # A card that has lost its function while it was programmed reports none.
    always_reports_function_id: ClassVar[bool] = True
    options: ClassVar[Sequence[cfg.Opt]] = (
        cfg.IntOpt(
            "minimum_firmware",
            default=12,
            min=1,
            help="Cards with an older firmware are not offered.",
        ),
        cfg.IntOpt(
            "maximum_temperature",
            default=95,
            help="Hotter cards go to no guest until they have cooled down "
            "(degrees Celsius).",
        ),
    )

    # -- discovery ---------------------------------------------------------------

    def discover(
        self, candidates: base.Candidates
    ) -> Iterable[base.Device | base.RejectedDevice]:
        """Return a device for each card, and reject what goes to no guest."""
        vfs_of: defaultdict[base.PciAddress, list[base.UsableFunction]]
        vfs_of = defaultdict(list)
        for usable in candidates.usable:
            identity = usable.function.identity
            if identity.vendor != hardware.VENDOR:
                continue
            if identity.product == hardware.PF_PRODUCT:
                yield base.RejectedDevice(
                    usable.function.address, base.RejectReason.MANAGEMENT
                )
            elif identity.product == hardware.VF_PRODUCT:
                vfs_of[usable.parent.address].append(usable)
        for vfs in vfs_of.values():
            yield from self._card(vfs)

    def _card(
        self, vfs: Sequence[base.UsableFunction]
    ) -> Iterator[base.Device | base.RejectedDevice]:
        pf, tags = vfs[0].parent, vfs[0].tags
        try:
            card = hardware.read_card(self.root, str(pf.address))
        except (OSError, ValueError) as error:
            yield from _rejected(vfs, base.RejectReason.UNREADABLE, str(error))
            return
        if card.firmware < self.conf.minimum_firmware:
            detail = f"its firmware is {card.firmware}; install a newer one"
            yield from _rejected(vfs, base.RejectReason.UNSUPPORTED, detail)
            return
        if any(
            (each.tags.resource_class, each.tags.traits)
            != (tags.resource_class, tags.traits)
            for each in vfs
        ):
            # A provider has one resource class and one set of traits.
            detail = "the VFs of its card differ in resource_class or traits"
            yield from _rejected(vfs, base.RejectReason.UNSUPPORTED, detail)
            return
        yield base.Device(
            plugin=self.name,
            # The PF names the provider: usable VFs come and go.
            address=pf.address,
            identity=pf.identity,
            resource_class=tags.resource_class or "CUSTOM_ACCELERATOR_FPGA",
            traits=tags.traits | {"CUSTOM_ACME_F2"},
            handles=tuple(self._handle(each, card) for each in vfs),
            numa_node=pf.numa_node,
            region=_holding(
                base.Region(
                    card=pf.address,
                    identity=pf.identity,
                    number=0,
                    interface_id=card.interface_id,
                    function_id=None,
                    pci_functions=pf.vfs,
                ),
                self._functions(pf.address),
            ),
        )

    def _handle(
        self, usable: base.UsableFunction, card: hardware.Card
    ) -> base.AttachHandle:
        handle = usable.handle()
        if card.temperature <= self.conf.maximum_temperature:
            return handle
        # Placement keeps the unit as reserved: the card may cool down.
        fault = f"its card has {card.temperature} degrees"
        return dataclasses.replace(handle, fault=fault)

    def _functions(self, pf: base.PciAddress) -> tuple[str, ...]:
        try:
            return hardware.read_functions(self.root, str(pf))
        except OSError:
            return ()

    # -- plug and unplug ---------------------------------------------------------

    def prepare(
        self, handle: base.AttachHandle, steps: base.PrivilegedSteps
    ) -> None:
        """Keep ``acmed`` off the function."""
        del steps
        marker = hardware.marker(self.root, str(handle.address))
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        with open(marker, "w", encoding="ascii"):
            pass

    def release(
        self, handle: base.AttachHandle, steps: base.PrivilegedSteps
    ) -> None:
        """Let ``acmed`` have the function again."""
        del steps
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hardware.marker(self.root, str(handle.address)))

    # -- programming -------------------------------------------------------------

    def read_region(self, region: base.Region) -> base.Region | None:
        """Ask the card, which also answers while guests have its VFs."""
        address = str(region.card)
        try:
            card = hardware.read_card(self.root, address)
            functions = hardware.read_functions(self.root, address)
        except (OSError, ValueError):
            # Also a malformed attribute: discover() rejects such a card.
            return None
        known = dataclasses.replace(region, interface_id=card.interface_id)
        return _holding(known, functions)

    def functions_of(
        self, region: base.Region, bitstream: base.Bitstream
    ) -> Sequence[tuple[base.PciAddress, str]]:
        """Return the function of the bitstream that each VF will reach."""
        return _reached(region, bitstream.header.function_ids)

    def program(
        self,
        region: base.Region,
        bitstream: base.Bitstream,
        steps: base.ProgrammingSteps,
    ) -> None:
        """Write the payload of a green bitstream to the node of the card."""
        header = bitstream.header
        functions = header.function_ids
        if (
            header.format is not base.ImageFormat.GBS
            or not 1 <= len(functions) <= hardware.MOST_FUNCTIONS
        ):
            raise base.ImageUnusable(
                f"image {bitstream.image} is no green bitstream with 1 to "
                f"{hardware.MOST_FUNCTIONS} functions, which {region} takes",
                reason=base.ImageReason.MISMATCH,
            )
        with open(bitstream.path, "rb") as file:
            file.seek(header.payload_offset)
            payload = file.read(header.payload_size)
        # The node belongs to the user of nova-compute: no privileged step is needed.
        try:
            node = hardware.open_node(self.root, str(region.card))
        except OSError as error:
            raise _node_error(region, error) from error
        # Once something may be written, DeviceGone or DeviceInUse would be wrong.
        try:
            hardware.write_functions(node, functions, payload, steps.seconds_left)
        except OSError as error:
            raise base.ProgrammingFailed(
                f"{region} did not take image {bitstream.image}: {error}",
                address=str(region.card),
                errno=error.errno or 0,
            ) from error
        finally:
            os.close(node)


def _holding(region: base.Region, functions: Sequence[str]) -> base.Region:
    """Return the region with these functions in it."""
    return dataclasses.replace(
        region,
        function_id=functions[0] if functions else None,
        functions=_reached(region, functions),
    )


def _reached(
    region: base.Region, functions: Sequence[str]
) -> tuple[tuple[base.PciAddress, str], ...]:
    """Return each VF of the card with the function that it reaches."""
    if not functions:
        return ()
    return tuple(
        (vf, hardware.reached(functions, number))
        for number, vf in enumerate(region.pci_functions)
    )


def _node_error(region: base.Region, error: OSError) -> base.OsAccError:
    """Return the error for a node that cannot be opened."""
    address = str(region.card)
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return base.DeviceGone(f"{region} has no node: {error}")
    if error.errno == errno.EBUSY:
        return base.DeviceInUse(
            f"another process programs {region}: {error}",
            address=address,
            errno=errno.EBUSY,
            hint="wait until it has ended, then retry",
        )
    # To the library this error leaves the region unverified: it is programmed again.
    return base.HostStepFailed(
        f"cannot open the node of {region}: {error}",
        address=address,
        errno=error.errno or 0,
    )


def _rejected(
    vfs: Sequence[base.UsableFunction], reason: base.RejectReason, detail: str
) -> Iterator[base.RejectedDevice]:
    for each in vfs:
        yield base.RejectedDevice(each.function.address, reason, detail)
