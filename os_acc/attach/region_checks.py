# SPDX-License-Identifier: Apache-2.0

"""Checks of regions: beside other guests, and of the function that each guest reaches.

The devices of a plug are selected before its images are known, and an image decides
what each PCI function reaches. A selection that reaches another function is repeated
among the PCI functions that reach the requested one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from os_acc import exception
from os_acc.attach.region_requirements import ProgrammingJob, RegionRequirement
from os_acc.helper import client
from os_acc.host import pci
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.records import RecordedState
from os_acc.objects.region import Region, function_at, functions_held
from os_acc.objects.request_group import title
from os_acc.scheduling.device_selection import Reaching

# -- beside other guests ---------------------------------------------------


def check_decided(region: Region, recorded: RecordedState) -> None:
    """Check that no rebuild has yet to program the region.

    :raises RegionUnusable: IN_USE: one has.
    """
    lease = recorded.rebuilding(region)
    if lease is not None:
        raise exception.RegionUnusable(
            f"{region} is not programmed yet for the rebuild of {lease.consumer}, "
            f"which has {lease.address}",
            hint="plug that instance to finish its rebuild, or unplug it",
            reason=exception.RegionReason.IN_USE,
        )


def check_free(
    root: str,
    job: ProgrammingJob,
    recorded: RecordedState,
    left: Collection[DeviceAddress] = (),
) -> None:
    """Check that no other guest has a function of the region.

    A function on vfio-pci may be in a guest also without a lease.

    :param left: PCI functions that the guest of the job will give back before.
    :raises RegionUnusable: a guest has one, or may have one.
    """
    refused = f"cannot program {job.region} with image {job.bitstream.image}"
    own = {each.lease.uuid for each in job.requirements}
    for lease in recorded.leases:
        if lease.uuid not in own and lease.uses_region(job.region):
            raise exception.RegionUnusable(
                f"{refused}: its PCI function {lease.address} is leased to "
                f"{lease.consumer}",
                reason=exception.RegionReason.IN_USE,
            )
    members = {each for one in job.requirements for each in one.lease.members}
    for address in sorted(set(job.region.pci_functions) - members.union(left)):
        function = pci.read_function(root, address)
        if address in recorded.taken or (
            function is not None and is_vfio_driver(function.driver)
        ):
            raise exception.RegionUnusable(
                f"{refused}: a guest may have its PCI function {address}",
                hint="see 'os-acc device list': unplug its consumer, or release "
                "or adopt a device in an unknown state",
                reason=exception.RegionReason.IN_USE,
            )


def check_idle(
    job: ProgrammingJob,
    leases: Sequence[Lease],
    others: Sequence[Lease],
    helper: client.Helper,
    deadline: float,
) -> None:
    """Check that no other guest has used the region since the host booted.

    :raises RegionUnusable: another guest has a function of it in this boot.
    :raises DeviceInUse: a process holds a function of another guest.
    """
    own = {lease.uuid for lease in leases}
    for other in others:
        if other.uuid in own or not other.uses_region(job.region):
            continue
        if other.programming and other.programming.boot_id == job.lease.boot_id:
            raise exception.RegionUnusable(
                f"cannot program {job.region} with image {job.bitstream.image}: "
                f"its PCI function {other.address} is leased to {other.consumer}",
                reason=exception.RegionReason.IN_USE,
            )
        helper.check_unused(other, deadline)


# -- the functions that guests reach ----------------------------------------


class FunctionElsewhere(exception.RegionUnusable):
    """A planned lease has a PCI function that reaches another function.

    :ivar reaching: the PCI functions for each group and provider.
    """

    reason = exception.RegionReason.MISMATCH

    def __init__(self, message: str, reaching: Reaching) -> None:
        super().__init__(message)
        self.reaching = reaching


def check_reached(
    requirements: Sequence[RegionRequirement], regions: Mapping[str, Region]
) -> None:
    """Check that each planned lease reaches its function.

    :param regions: by their keys, the regions with the contents that guests will get.
    :raises FunctionElsewhere: a PCI function reaches another function.
    :raises InvalidExtraSpec: several functions are required for one device.
    :raises ImageUnusable: no PCI function reaches the requested function, or the
        image does not state which function that is.
    """
    reaching: dict[tuple[str, str], frozenset[DeviceAddress]] = {}
    elsewhere: list[str] = []
    for each in requirements:
        region = regions[each.region.key]
        _check_one_function(each, region)
        if not region.functions:
            continue
        _check_identified(each, region)
        serving = each.serving(region)
        if not serving:
            raise exception.ImageUnusable(
                f"with {each.title} in {region}, no PCI function reaches "
                f"{each.function}, which {title(each.lease.group)} requires",
                hint="its card needs more VFs (num_vfs in [os_acc] device_spec)",
                reason=exception.ImageReason.MISMATCH,
            )
        reaching[each.lease.group, each.lease.provider] = serving
        if each.lease.address not in serving:
            elsewhere.append(
                f"{each.lease.address} of {region} reaches "
                f"{function_at(region, each.lease.address)}, but "
                f"{title(each.lease.group)} requires {each.function}"
            )
    if elsewhere:
        raise FunctionElsewhere("; ".join(elsewhere), reaching)


def _check_one_function(requirement: RegionRequirement, region: Region) -> None:
    # If the functions of PCI functions are unknown, each counts as reaching each.
    if not region.functions and len(region.pci_functions) > 1:
        return
    if requirement.names_one_function(region):
        return
    raise exception.InvalidExtraSpec(
        f"{title(requirement.lease.group)} requires {requirement.function}, but a "
        f"device of {region} reaches only one function of {requirement.title}",
        hint="request one function; the instance's image may request another one "
        "than the flavor",
    )


def _check_identified(requirement: RegionRequirement, region: Region) -> None:
    if not requirement.unidentified or len(functions_held(region)) < 2:
        return
    raise exception.ImageUnusable(
        f"{requirement.title} has several functions, and does not state which one "
        f"is {requirement.unidentified}",
        hint="list its function_id and its function_name in the same order, with "
        "commas between",
        reason=exception.ImageReason.INVALID,
    )


def check_result(job: ProgrammingJob, now: Region) -> None:
    """Check that a region that was programmed serves each guest of the job.

    :param now: the region as it was read back.
    :raises ProgrammingFailed: WRONG_FUNCTION: a PCI function reaches another function.
    """
    for each in job.requirements:
        address = each.lease.address
        if each.is_served_at(address, now):
            continue
        held = f"{now} holds {now.function_id}"
        if now.functions:
            held = f"{address} of {now} reaches {function_at(now, address)}"
        raise exception.ProgrammingFailed(
            f"{held} after {now} was programmed with image {job.bitstream.image}, "
            f"but {title(each.lease.group)} requires {each.function}",
            address=str(now.card),
            reason=exception.ProgrammingReason.WRONG_FUNCTION,
        )
