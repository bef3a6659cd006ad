# SPDX-License-Identifier: Apache-2.0

"""Values of Nova as os_acc expects them, and the reverse.

The objects are those of Nova 34: ``nova.objects.Instance``, ``nova.objects.ImageMeta``,
``nova.network.model.NetworkInfo``. Nothing here changes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from os_acc import exception
from os_acc.numa import policies
from os_acc.objects.api import (
    AcceleratorEntry,
    InstanceDict,
    NetworksDict,
    ProviderEntry,
)
from os_acc.objects.instance import IMAGE_NUMA_POLICY
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import function_named
from os_acc.objects.request_group import ACCELERATOR_CLASSES
from os_acc.scheduling import accel_keys, extra_specs
from os_acc.scheduling.candidate_order import GroupRequirements

_RESOURCES: Final = re.compile(r"resources[^:]*:(\w+)")
#: Nova's PCI devices in Placement.
_OF_NOVA: Final = "CUSTOM_PCI_"


def instance_info(
    instance: Any, image_meta: Any = None, network_info: Iterable[Any] | None = None
) -> InstanceDict:
    """Return an instance for :func:`os_acc.plug`.

    :param image_meta: the ``nova.objects.ImageMeta`` that it boots, if it is known.
    :param network_info: its VIFs, if they are known.
    """
    info: InstanceDict = {
        "uuid": instance.uuid,
        "name": instance.display_name or "",
        "project_id": instance.project_id or "",
        "image_id": instance.image_ref or "",
    }
    if instance.numa_topology is not None:
        # After the claim the ids are those of the host's cells.
        info["numa_cells"] = [cell.id for cell in instance.numa_topology.cells]
    if image_meta is not None:
        policy = image_meta.properties.get(IMAGE_NUMA_POLICY)
        if policy is not None:
            info["image_properties"] = {IMAGE_NUMA_POLICY: policy}
    if network_info is not None:
        info["networks"] = _networks(network_info)
    return info


def _networks(network_info: Iterable[Any]) -> NetworksDict:
    # A VIF without a network is one whose port has just been deleted.
    metas = [vif["network"]["meta"] for vif in network_info if vif["network"]]
    physnets = {meta.get("physical_network") for meta in metas} - {None}
    return {
        "physnets": sorted(physnets),
        "tunneled": any(meta.get("tunneled") for meta in metas),
    }


def may_be_accelerator(resource_class: str) -> bool:
    """Return whether os_acc can be the provider of a resource class."""
    return resource_class in ACCELERATOR_CLASSES or (
        resource_class.startswith("CUSTOM_") and not resource_class.startswith(_OF_NOVA)
    )


def requested_classes(flavor: Any) -> frozenset[str]:
    """Return the resource classes that a flavor requests."""
    found = map(_RESOURCES.fullmatch, flavor.extra_specs)
    return frozenset(match[1] for match in found if match)


def may_request_accelerators(flavor: Any) -> bool:
    """Return whether a flavor has a resource class that os_acc can provide."""
    return any(map(may_be_accelerator, requested_classes(flavor)))


def memory_encryption(instance: Any) -> str:
    """Return the model of a guest's memory encryption (SEV, TDX); '' for none."""
    # The rest of this module needs no Nova.
    from nova.virt import hardware

    found = hardware.get_mem_encryption_constraint(instance.flavor, instance.image_meta)
    # Before Nova 33 the answer is True, for SEV.
    return str(getattr(found, "model", "amd-sev")) if found else ""


def check_encryption(
    instance: Any, providers: Iterable[ProviderEntry], *, iommufd: bool
) -> None:
    """Check that a guest with encrypted memory gets its devices through iommufd.

    :param providers: those of its devices. libvirt has no iommufd for mediated devices,
        whose addresses are not of PCI.
    :raises InvalidExtraSpec: it would get one without iommufd.
    """
    others = [
        each["name"]
        for each in providers
        if not (iommufd and all(map(function_named, each["addresses"])))
    ]
    if others:
        raise exception.InvalidExtraSpec(
            f"the guest's memory is encrypted ({memory_encryption(instance)}), and the "
            f"devices of {', '.join(others)} are attached without iommufd",
            hint="set [os_acc_driver] iommufd, and request PCI functions",
        )


def check_one_service(instance: Any) -> None:
    """Check that a flavor is either Cyborg's or of os_acc.

    :raises InvalidExtraSpec: it has a device profile of Cyborg and groups of os_acc.
    """
    if accel_keys.DEVICE_PROFILE in instance.flavor.extra_specs:
        raise exception.InvalidExtraSpec(
            f"{accel_keys.DEVICE_PROFILE} of the flavor is Cyborg's, and its resource "
            "groups request accelerators of os_acc",
            hint="use one of both in a flavor",
        )


def accelerator_amounts(allocations: Mapping[str, Any]) -> Counter[str]:
    """Return the units of each provider that may be of accelerators."""
    return Counter(
        {
            provider: units
            for provider, each in allocations.items()
            if (units := sum(_of_accelerators(each["resources"].items()).values()))
        }
    )


def allocated_flavor(instance: Any, allocations: Mapping[str, Any]) -> Any:
    """Return the flavor of an instance whose accelerators are allocated.

    After a failed resize Nova restores the flavor of a server, not its allocation.
    Without a flavor that requests the allocated amounts it is the present one.

    :param allocations: those of os_acc's providers, by the UUID of the provider.
    """
    allocated: Counter[str] = Counter()
    for each in allocations.values():
        allocated.update(each["resources"])
    for flavor in filter(None, (instance.flavor, instance.new_flavor)):
        # Other providers may have further custom classes of a flavor.
        requested = _requested(flavor)
        if all(requested[name] == amount for name, amount in allocated.items()):
            return flavor
    return instance.flavor


def _requested(flavor: Any) -> Counter[str]:
    """Return the units that a flavor requests of each class, in all its groups."""
    found: Counter[str] = Counter()
    for key, value in flavor.extra_specs.items():
        if (match := _RESOURCES.fullmatch(key)) and value.isdecimal():
            found.update(_of_accelerators([(match[1], int(value))]))
    return found


def _of_accelerators(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    return {
        name: amount for name, amount in amounts if amount and may_be_accelerator(name)
    }


def accel_info(entries: Iterable[AcceleratorEntry]) -> list[dict[str, Any]]:
    """Return the entries that Nova's driver makes a ``hostdev`` of.

    Entries without ``pci_id`` stay with the host.
    """
    return [dict(entry) for entry in entries if "pci_id" in entry]


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
    if accel_keys.DEVICE_PROFILE in flavor_extra_specs:
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
                name for name, _amount in group.resources if may_be_accelerator(name)
            )
        )
    }
