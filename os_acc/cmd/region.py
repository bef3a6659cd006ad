# SPDX-License-Identifier: Apache-2.0

"""``os-acc region``: the FPGA regions of this host, and what they hold."""

from __future__ import annotations

import argparse
from typing import Any

from os_acc.cmd import arguments, base
from os_acc.inspection import HostInspection
from os_acc.objects.region import Region, UnverifiedRegions, functions_held

_COLUMNS = ("Address", "Region", "Interface", "Functions", "State", "Recorded Image")
_HELP = "PCI address of the region in 'os-acc region list'"
_ADDRESS = arguments.FUNCTION | {"help": _HELP}


class RegionList(base.Listing):
    """List the FPGA regions that os_acc offers, and what they hold.

    Changes nothing, and needs no privileged helper.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        self.remark_if_none_named()
        return _COLUMNS, sorted(_rows(look).values())


class RegionProgram(base.Showing):
    """Program a free FPGA region with a verified image, and read it back.

    The function of the image is then published, until a guest can program the
    region again.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **_ADDRESS)
        parser.add_argument(
            "--image",
            metavar="IMAGE",
            default="",
            help="the id of an image, or the name of one with the tag FPGA; default: "
            "the image with which os_acc last programmed the region",
        )
        parser.add_argument(
            "--timeout",
            **arguments.SECONDS,
            help="time limit; default: [os_acc] plug_timeout",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        manager, deadline = self.manager(), self.deadline(parsed_args.timeout)
        region = manager.regions.program(
            parsed_args.address, deadline, parsed_args.image
        )
        return _COLUMNS, _rows(self.look())[region.key]


class RegionVerify(base.Showing):
    """Publish the function of a free FPGA region whose hardware authenticates it.

    Nothing is programmed. A card that accepts bitstreams without a signature is
    refused: a guest can have chosen the function that it reports.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **_ADDRESS)

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        regions = self.manager().regions
        region = regions.verify(parsed_args.address, self.deadline())
        return _COLUMNS, _rows(self.look())[region.key]


def _rows(look: HostInspection) -> dict[str, tuple[Any, ...]]:
    """Return the row of each region, by its key."""
    unverified = look.inventory.recorded_state.unverified_regions
    rows: dict[str, tuple[Any, ...]] = {}
    for provider in look.inventory.providers.values():
        if (region := provider.device.region) is not None:
            image = unverified.images.get(region.key)
            rows[region.key] = (
                str(provider.device.handles[0].address),
                region.number,
                region.interface_id,
                sorted(functions_held(region)),
                _status(region, unverified),
                image.id if image else None,
            )
    return rows


def _status(region: Region, unverified: UnverifiedRegions) -> str:
    """Return whether the function that a region reports is known to be the real one."""
    if region in unverified:
        return "unverified"
    if unverified.is_verified(region):
        return "verified"
    # A guest can program it; the operator may accept what that leaves.
    return "accepted" if unverified.trusts(region) else "guest-writable"
