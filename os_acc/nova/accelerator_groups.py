# SPDX-License-Identifier: Apache-2.0

"""The request groups of a server that os_acc may serve, for Nova's scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from os_acc import exception
from os_acc.nova import conversion
from os_acc.numa import policies
from os_acc.objects.instance import IMAGE_NUMA_POLICY
from os_acc.objects.numa import NUMAPolicy
from os_acc.scheduling import extra_specs
from os_acc.scheduling.candidate_order import GroupRequirements


def groups_of(
    flavor_extra_specs: Mapping[str, str],
    image_policy: object,
    default: NUMAPolicy,
) -> dict[str, GroupRequirements]:
    """Return the requirements of groups with accelerators, by suffix.

    None are returned for a request that os_acc refuses: the user reads the reason from
    nova-compute. Flavors with ``accel:device_profile`` are Cyborg's.

    :param image_policy: the image property ``hw_pci_numa_affinity_policy``, or None.
    :param default: the policy of a request that has none.
    """
    if conversion.CYBORG_PROFILE in flavor_extra_specs:
        return {}
    try:
        request = extra_specs.parse(flavor_extra_specs)
        guest = policies.guest_policy(request.pci_numa_policy, image_policy)
    except exception.InvalidInput:
        return {}
    return {
        group.suffix: GroupRequirements(
            classes,
            group.numa_policy or guest or default,
            group.bitstream_request.function_id if group.bitstream_request else "",
        )
        for group in request.groups
        if (
            classes := frozenset(
                name
                for name, _amount in group.resources
                if conversion.may_be_accelerator(name)
            )
        )
    }


def image_policy(image: Any) -> object:
    """Return the NUMA policy of a ``nova.objects.ImageMeta``, or None."""
    return None if image is None else image.properties.get(IMAGE_NUMA_POLICY)
