# SPDX-License-Identifier: Apache-2.0

"""Plan and record other devices for a guest, where its NUMA policy requires them.

Another free device of the same provider takes the place of one that was selected for
other cells. Its lease is a new one, since the privileged helper records each device
under the UUID of its lease; the two leases swap their requests in the transaction that
commits the new one. After a crash, the new lease is rolled back if it was not
committed; else the release of the old one continues.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from os_acc import exception
from os_acc.attach import device_state, planning
from os_acc.inventory import discovery
from os_acc.numa.policies import GuestCells, Policies
from os_acc.objects.bitstream import BitstreamRequest
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.objects.request_group import AttachTarget, GroupAllocation
from os_acc.scheduling.device_selection import DeviceSelector, Reaching

# Request group, provider, resource class, attach target.
_Key: TypeAlias = tuple[str, str, str, AttachTarget]


def planner(
    root: str, instance: InstanceInfo, guest: GuestCells, wrong: Sequence[Lease]
) -> planning.LeasePlanner:
    """Return a planner of other devices for the leases of a guest in these cells."""
    if not all(lease.provider for lease in wrong):
        # A device adopted by hand belongs to no request group of a provider.
        raise _refusal(wrong, "its provider is unknown")
    ports = {each.group: port for each in wrong if (port := each.policies.port)}
    policies = Policies(ports, wrong[0].policies.guest)
    return planning.LeasePlanner(
        root,
        wrong[0].owner,
        instance,
        _allocations(wrong),
        wrong[0].request,
        DeviceSelector(guest, policies, _reaching(wrong)),
    )


def planned(
    planner: planning.LeasePlanner,
    wrong: Sequence[Lease],
    inventory: discovery.Inventory,
    deadline: float,
) -> list[tuple[Lease, Lease]]:
    """Return each lease with the planned one on another device."""
    try:
        found = planner.plan(inventory, deadline)
    except (exception.NoDeviceAvailable, exception.DeviceGone) as error:
        raise _refusal(wrong, error.message) from error
    free: defaultdict[_Key, list[Lease]] = defaultdict(list)
    for each in found:
        free[_key(each)].append(each)
    return [(old, _moved(old, _taken(old, free[_key(old)]))) for old in wrong]


def _refusal(wrong: Sequence[Lease], reason: str) -> exception.NoDeviceAvailable:
    """Return the error for devices that are not allowed and cannot be replaced."""
    policies = sorted({lease.policies.effective.value for lease in wrong})
    return exception.NoDeviceAvailable(
        f"instance {wrong[0].consumer} holds devices that the NUMA policy "
        f"{' or '.join(policies)} does not allow in guest cells "
        f"{planning.cells(wrong[0])}: {', '.join(map(planning.placement, wrong))}; "
        f"there is no other one: {reason}",
        reason=exception.NoDeviceReason.NUMA_POLICY,
    )


def _key(lease: Lease) -> _Key:
    return (
        lease.group,
        lease.provider,
        lease.wanted.resource_class,
        lease.wanted.attach_target,
    )


def _allocations(wrong: Sequence[Lease]) -> list[GroupAllocation]:
    amounts = Counter(map(_key, wrong))
    found = {_key(lease): lease for lease in wrong}
    return [
        GroupAllocation(
            lease.group,
            lease.provider,
            lease.wanted.resource_class,
            amounts[key],
            bitstream_request=(
                BitstreamRequest(function_id=lease.programming.function_id)
                if lease.programming and lease.programming.function_id
                else None
            ),
            attach_target=lease.wanted.attach_target,
            numa_policy=lease.policies.group,
        )
        for key, lease in sorted(found.items(), key=lambda each: each[0][:3])
    ]


def _serving(lease: Lease) -> frozenset[PciAddress] | None:
    """Return the PCI functions that reach the function of a lease; None: unknown.

    The recorded contents decide: a reboot may have emptied the region, and the plug
    programs the recorded image again.
    """
    before = lease.programming
    if before is None or before.function_id is None or not before.region.functions:
        return None
    return frozenset(
        place for place, each in before.region.functions if each == before.function_id
    )


def _reaching(wrong: Sequence[Lease]) -> Reaching:
    """Return the PCI functions that may replace those of each group and provider."""
    found: defaultdict[tuple[str, str], set[PciAddress]] = defaultdict(set)
    for lease in wrong:
        if (serving := _serving(lease)) is not None:
            found[lease.group, lease.provider] |= serving
    return {key: frozenset(each) for key, each in found.items()}


def _taken(old: Lease, free: list[Lease]) -> Lease:
    """Remove and return the first planned lease that can take over from an old one."""
    serving = _serving(old)
    for each in free:
        if serving is None or each.address in serving:
            free.remove(each)
            return each
    raise _refusal([old], "the others reach another function of its region")


def _moved(old: Lease, planned: Lease) -> Lease:
    """Return a spare lease like the old one, on the planned device.

    A vGPU keeps the type of the old one: the tag may have changed since.
    """
    return dataclasses.replace(
        old,
        uuid=planned.uuid,
        epoch=planned.epoch,
        state=planned.state,
        handle=dataclasses.replace(planned.handle, vgpu_type=old.handle.vgpu_type),
        affinity=planned.affinity,
        prior=planned.prior,
        boot_id=planned.boot_id,
        physfns=planned.physfns,
        parent=planned.parent,
        policies=dataclasses.replace(old.policies, device=planned.policies.device),
        arq="",
        is_spare=True,
    )


def commit(
    placed: Sequence[Lease], olds: Mapping[str, Lease]
) -> Callable[[Sequence[Lease]], Sequence[Lease]]:
    """Return the function that makes the records of the commit.

    A new lease takes over the request of the old lease, which gets the new one's UUID.
    """
    gone = {old.uuid for old in olds.values()}

    def committed(ready: Sequence[Lease]) -> Sequence[Lease]:
        taking_over = [
            dataclasses.replace(
                device_state.verified(new),
                state=LeaseState.HELD,
                arq=olds[new.uuid].request_uuid,
                is_spare=False,
            )
            for new in ready
        ]
        given_up = [
            dataclasses.replace(
                olds[new.uuid], state=LeaseState.RELEASING, arq=new.uuid, is_spare=True
            )
            for new in ready
        ]
        others = [each for each in placed if each.uuid not in gone]
        return [*taking_over, *given_up, *others]

    return committed
