# SPDX-License-Identifier: Apache-2.0

"""Choose the PCI function that leads to an accelerator function of a region.

The devices of a plug are selected before its images are known, and an image decides
what each PCI function reaches. A selection that reaches another function is repeated
among the PCI functions that reach the requested one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from os_acc import exception
from os_acc.attach import plugin_steps
from os_acc.attach.region_requirements import ProgrammingJob, RegionRequirement
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.region import Region, function_at, functions_held
from os_acc.objects.request_group import title
from os_acc.plugins import base
from os_acc.plugins.loader import Plugins
from os_acc.scheduling.device_selection import Reaching


class FunctionElsewhere(exception.RegionUnusable):
    """A planned lease has a PCI function that reaches another function.

    :ivar reaching: the PCI functions for each group and provider.
    """

    reason = exception.RegionReason.MISMATCH

    def __init__(self, message: str, reaching: Reaching) -> None:
        super().__init__(message)
        self.reaching = reaching


def after(
    job: ProgrammingJob, plugins: Plugins, plugin: base.PluginBase, deadline: float
) -> Region:
    """Return a region with the functions that its plugin expects after a job.

    :raises PluginFailed: the plugin fails, or its answer is invalid.
    """
    pairs = plugin_steps.call(
        plugins, plugin, deadline, plugin.functions_of, job.region, job.bitstream
    )
    try:
        functions = tuple((place, each) for place, each in pairs)
        return dataclasses.replace(job.region, functions=functions)
    except (TypeError, ValueError) as error:
        raise exception.PluginFailed(
            f"the plugin {plugin.name} does not state the functions of image "
            f"{job.bitstream.image} in {job.region}: {error}"
        ) from error


def check(
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
        if each.is_served_by(now):
            continue
        address = each.lease.address
        held = f"{now} holds {now.function_id}"
        if now.functions:
            held = f"{address} of {now} reaches {function_at(now, address)}"
        raise exception.ProgrammingFailed(
            f"{held} after {now} was programmed with image {job.bitstream.image}, "
            f"but {title(each.lease.group)} requires {each.function}",
            address=str(now.card),
            reason=exception.ProgrammingReason.WRONG_FUNCTION,
        )
