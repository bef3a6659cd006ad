# SPDX-License-Identifier: Apache-2.0

"""Checks that a region can be given to a guest, or programmed, beside other guests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from os_acc import exception
from os_acc.attach.region_requirements import ProgrammingJob
from os_acc.helper import client
from os_acc.host import pci
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.recorded_state import RecordedState
from os_acc.objects.region import Region
from os_acc.objects.vfio_driver import is_vfio_driver


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
