# SPDX-License-Identifier: Apache-2.0

"""Rules of eligibility: may a device that the operator named be given to a guest?

Each rule returns the reason of a rejection, or None. A leased device is checked only
against rules that its lease cannot affect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from os_acc.exception import HostStepFailed, is_exhaustion, nearest
from os_acc.host import mdev, pci, usage, vfio
from os_acc.host.pci import Host
from os_acc.objects.device import (
    DeviceTags,
    MatchedFunction,
    RejectedDevice,
    RejectReason,
    UsableFunction,
)
from os_acc.objects.device_spec import DeviceSpec, OperatorRules
from os_acc.objects.drivers import AUTO, NVIDIA, VFIO_PCI, is_vfio_driver
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState
from os_acc.plugins.pci import keeps_data_beside


class HostEvidence:
    """The facts that the rules check.

    :ivar named: the functions that ``[os_acc] device_spec`` names, with their tags; the
        NUMA policy of Nova's alias takes precedence.
    :ivar nova: the functions that Nova's options also name.
    :ivar usage: the host's uses of the named functions and of their groups.
    :ivar helper_claims: see :class:`.RecordedState`, as for ``leased``, ``taken``,
        ``in_parts`` (``leased_in_parts``) and ``mdev_parents`` (``leased_parents``).
    :ivar twins: see :func:`.pci.twins`.
    :ivar lease_drivers: the driver that each function of a guest's lease has.
    :ivar nodes: see :func:`.vfio.nodes`.
    :ivar offered: the functions that their drivers offer to guests, including drivers
        on which a function stays. A vGPU of NVIDIA's driver counts as one of the host's
        uses.
    """

    def __init__(
        self, root: str, rules: OperatorRules, recorded: RecordedState, host: Host
    ) -> None:
        self.root, self.rules, self.host = root, rules, host
        policies = dict(matches(rules.nova_policies, host))
        self.named = {
            address: dataclasses.replace(tags, numa_policy=alias.numa_policy)
            if (alias := policies.get(address))
            else tags
            for address, tags in matches(rules.named, host)
        }
        claimed = (address for address, _ in matches(rules.nova, host))
        self.nova = rules.nova_mdev_parents.union(claimed)
        # Each is computed anew by the records.
        self.leased, self.taken = recorded.leased, recorded.taken
        self.in_parts = recorded.leased_in_parts
        self.mdev_parents = recorded.leased_parents
        self.helper_claims = recorded.helper_claims
        known = (each for lease in recorded.leases for each in lease.prior)
        self.twins = pci.twins(host.functions, known)
        self.lease_drivers = {
            function: lease.driver_of(function)
            for lease in recorded.leases
            if lease.is_the_guests and lease.slot is None
            for function in lease.functions
        }
        self.offered = vfio.offered_functions(root, host.functions)
        self.nodes = vfio.nodes(root)
        functions, groups = host.functions, host.groups
        numbers = {functions[address].iommu_group for address in self.named}
        found = [
            groups[each] for each in numbers if each is not None and each in groups
        ]
        used = set(self.named).union(*[group.members for group in found])
        used_functions = {each: functions[each] for each in used if each in functions}
        self.usage = usage.read_usage(root, used_functions, pci.netdevs(root))


def matches(spec: DeviceSpec, host: Host) -> Iterator[tuple[PciAddress, DeviceTags]]:
    """Yield the functions that a specification names, each with its tags."""
    for address, function in host.functions.items() if spec.entries else ():
        tags = spec.match(function, host.netdevs, host.functions)
        if tags is not None:
            yield address, tags


def check(
    evidence: HostEvidence, matched: MatchedFunction
) -> RejectedDevice | UsableFunction:
    """Return a matched function with the rest of its group, or its rejection."""
    function = matched.function
    try:
        for rule in _RULES:
            refused = rule(evidence, function)
            if refused is not None:
                return refused
        group = evidence.host.group_of(function)
        members: tuple[PciAddress, ...] = (function.address,)
        if len(group.members) > 1:
            others = _others(evidence, function)
            for other in others:
                detail = _in_the_way(evidence, function, other)
                if detail is not None:
                    return _no(function, RejectReason.NOT_ISOLATED, detail)
            members = _members(evidence, function, others)
        driver, number = driver_of(evidence, function), group.number
        return UsableFunction(
            function, matched.parent, matched.tags, members, number, driver
        )
    except HostStepFailed as error:
        if is_exhaustion(error):
            raise
        # The others are checked all the same.
        return _no(function, RejectReason.UNREADABLE, error.message)


def _no(
    function: PciFunction, reason: RejectReason, detail: str = ""
) -> RejectedDevice:
    return RejectedDevice(function.address, reason, detail)


def _bridge(evidence: HostEvidence, function: PciFunction) -> RejectedDevice | None:
    # Listing a directory is expensive, and a VF never has a bus behind it.
    if function.is_bridge or (
        function.physfn is None and pci.has_bus(evidence.root, function.address)
    ):
        return _no(function, RejectReason.BRIDGE)
    return None


def _has_vfs(evidence: HostEvidence, function: PciFunction) -> RejectedDevice | None:
    count = len(function.vfs)
    requested = evidence.named[function.address].num_vfs
    if requested is not None and requested != count:
        why = "" if function.driver or count else "; no driver is bound to it"
        if not function.total_vfs:
            # Linux shows none either if the firmware has switched it off.
            why = "; it has no SR-IOV"
        return _no(function, RejectReason.NO_VFS, f"{count} of {requested}{why}")
    if count:
        return _no(function, RejectReason.HAS_VFS, f"{count} of them")
    return None


def claims_of_nova(
    evidence: HostEvidence, function: PciFunction
) -> RejectedDevice | None:
    """Reject a function that Nova's own options claim, itself or by its PF."""
    if function.address in evidence.nova:
        return _no(function, RejectReason.NOVA_CLAIMS)
    if function.physfn in evidence.nova:
        # A guest that gets the PF has the VFs, or ends them.
        return _no(function, RejectReason.NOVA_CLAIMS, f"its PF {function.physfn}")
    # Nova claims these types of mediated devices on every function.
    if types := evidence.rules.nova_mdev_types:
        offered = types & pci.mdev_types(evidence.root, function.address)
        if offered:
            detail = f"it offers {', '.join(sorted(offered))}"
            return _no(function, RejectReason.NOVA_CLAIMS, detail)
    return None


def _iommu(evidence: HostEvidence, function: PciFunction) -> RejectedDevice | None:
    if function.iommu_group is None:
        return _no(function, RejectReason.NO_IOMMU)
    group = evidence.host.groups.get(function.iommu_group)
    if group is None:
        return _no(function, RejectReason.NO_IOMMU, "the group cannot be read")
    if group.unsafe:
        return _no(function, RejectReason.UNSAFE_IOMMU)
    for start, end, kind in group.reserved:
        # Firmware needs these mapped one to one. No other type prevents an assignment
        # (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
        if kind == "direct":
            detail = f"{start:#x} to {end:#x}"
            return _no(function, RejectReason.RESERVED_REGION, detail)
    return None


def driver_of(evidence: HostEvidence, function: PciFunction) -> str:
    """Return the driver of a function in a guest, by its lease, or else by its tags.

    The host may lack that of the tags.
    """
    leased = evidence.lease_drivers
    # Most functions of a large host are asked for while few are leased.
    if leased and function.address in leased:
        return leased[function.address]
    root, tags = evidence.root, evidence.named[function.address]
    if tags.vgpu_type:
        return NVIDIA
    if tags.vfio_driver != AUTO:
        return tags.vfio_driver
    module = vfio.best_vfio_module(root, function)
    if module is None:
        return VFIO_PCI
    # Most drivers have the name of their module; that of xe_vfio_pci has hyphens.
    other = module.replace("_", "-")
    return other if vfio.has_driver(root, other) else module


def _missing_driver(
    root: str, function: PciFunction, tags: DeviceTags, driver: str
) -> str | None:
    """Return why a function cannot have a driver for a guest, or None."""
    if is_vfio_driver(driver):
        return None if vfio.has_driver(root, driver) else _unloaded(root, driver)
    if tags.vfio_driver == AUTO:
        return f"modules.alias names {driver}, which is no variant of {VFIO_PCI}"
    if function.driver != driver:
        found = function.driver or "no driver"
        near = nearest(driver, {AUTO, VFIO_PCI, *vfio.drivers(root)})
        meant = f"; did you mean {near!r}?" if near not in (None, driver) else ""
        return f"it is bound to {found}, not to {driver}{meant}"
    return None


def _unloaded(root: str, driver: str) -> str:
    for name in (driver.replace("_", "-"), driver.replace("-", "_")):
        if vfio.has_driver(root, name):
            return f"the name of the driver is {name}"
    return vfio.load_hint(driver)


def _without_vgpus(root: str, function: PciFunction) -> str | None:
    """Return why a function cannot be a vGPU on NVIDIA's driver, or None."""
    if function.physfn is None:
        return "it is no VF; enable VFs with NVIDIA's sriov-manage"
    if function.driver != NVIDIA:
        return f"it is bound to {function.driver or 'no driver'}, not to nvidia"
    if mdev.vgpu_type(root, function.address) is None:
        return "it has no nvidia/current_vgpu_type; its card may have mdev_types"
    return None


def _stays(evidence: HostEvidence, function: PciFunction) -> bool:
    """Return whether a function has one driver on the host and in a guest."""
    if function.address in evidence.lease_drivers:
        return not is_vfio_driver(evidence.lease_drivers[function.address])
    return evidence.named[function.address].stays


def _vfio_driver(
    evidence: HostEvidence, function: PciFunction
) -> RejectedDevice | None:
    """Reject a function without a driver for guests, or without a reset on VFIO's."""
    driver, tags = driver_of(evidence, function), evidence.named[function.address]
    if driver == VFIO_PCI and vfio.denylisted(evidence.root, function):
        return _no(function, RejectReason.DENYLISTED)
    # Its variants have the resets of vfio-pci (vfio_pci_core.c).
    is_accepted = tags.allow_no_reset or function.resets_alone
    needs_bus = is_vfio_driver(driver) and not is_accepted
    if needs_bus and not _is_reset_with_bus(evidence, function):
        return _no(function, RejectReason.NO_RESET)
    if driver == VFIO_PCI:
        return None
    # Accept a leased function, also without its driver, or if libvirt manages it.
    if function.address in evidence.leased:
        return None
    if tags.vgpu_type:
        detail = _without_vgpus(evidence.root, function)
        reason = RejectReason.NO_VGPU
    else:
        detail = _missing_driver(evidence.root, function, tags, driver)
        reason = RejectReason.NO_VFIO_DRIVER
    if detail is not None:
        return _no(function, reason, detail)
    if evidence.rules.unmanaged:
        return None
    detail = (
        f"libvirt would replace {driver}; the caller has to pass unmanaged=True to "
        "initialize(), as os_acc.LibvirtDriver does"
    )
    return _no(function, RejectReason.MANAGED, detail)


def _untagged_vgpu(
    evidence: HostEvidence, function: PciFunction
) -> RejectedDevice | None:
    """Reject a VF that can be a vGPU, and is tagged with no type.

    On vfio-pci it is no vGPU, and the card's driver does not serve it: no plugin may
    offer it, also if ``nvidia`` is not enabled.
    """
    is_vf = function.identity.vendor == mdev.NVIDIA_VENDOR and function.physfn
    if not is_vf or evidence.named[function.address].vgpu_type:
        return None
    if mdev.vgpu_type(evidence.root, function.address) is None:
        return None
    hint = "set vgpu_type in device_spec to a type in nvidia/creatable_vgpu_types"
    return _no(function, RejectReason.UNSUPPORTED, hint)


def _is_reset_with_bus(evidence: HostEvidence, function: PciFunction) -> bool:
    """Return whether a function is reset together with its bus.

    VFIO resets a bus if it has all functions of it, and there is a bridge above
    (vfio_pci_dev_set_resettable() in drivers/vfio/pci/vfio_pci_core.c). The helper does
    so if the first function of the bus has no other reset.
    """
    functions = evidence.host.functions
    bus = [each for each in functions if each.parts[:2] == function.address.parts[:2]]
    if len(bus) == 1:
        return bool(function.reset_methods)
    return (
        not functions[min(bus)].resets_alone
        and set(bus) <= {*_members(evidence, function, _others(evidence, function))}
        and bool(pci.read_parents(evidence.root, [function.address]))
    )


def _host_uses(evidence: HostEvidence, function: PciFunction) -> RejectedDevice | None:
    if function.address in evidence.leased and _stays(evidence, function):
        # The use is the vGPU of the lease.
        return None
    what = evidence.usage.get(function.address)
    return _no(function, RejectReason.HOST_USES, what) if what else None


def _unknown(evidence: HostEvidence, function: PciFunction) -> RejectedDevice | None:
    detail = _why_unknown(evidence, function, evidence.named[function.address])
    return _no(function, RejectReason.UNKNOWN_STATE, detail) if detail else None


def _why_unknown(
    evidence: HostEvidence, function: PciFunction, tags: DeviceTags
) -> str | None:
    """Return why a function may be prepared for a guest, but not by a lease."""
    address, driver = function.address, function.driver
    if address in evidence.leased:
        return None
    if address in evidence.helper_claims and not _has_leased_vfs(evidence, function):
        lost = evidence.helper_claims[address]
        return f"claimed by lease {lost}, which the store has lost"
    if driver is None:
        is_leaving = _is_leaving(evidence, function)
        return "its driver cannot leave yet" if is_leaving else None
    if tags.prebound:
        return None
    if is_vfio_driver(driver):
        return f"bound to {driver}"
    return f"{driver} offers it to guests" if address in evidence.offered else None


def _is_leaving(evidence: HostEvidence, function: PciFunction) -> bool:
    """Return whether an unbind from vfio-pci waits for a guest.

    The kernel removes the link to the driver first, and the node of the group
    last (drivers/base/dd.c, drivers/vfio/vfio_main.c). In between, a read of
    ``driver_override`` would block as well.
    """
    if str(function.iommu_group) not in evidence.nodes:
        return False
    others = _others(evidence, function)
    return not any(is_vfio_driver(other.driver) for other in others)


def _otherwise_leased(
    evidence: HostEvidence, function: PciFunction
) -> RejectedDevice | None:
    """Reject a VF of a leased PF, a PF with leased parts, and drives of one number.

    Others may create and remove VFs at any time, also while a guest has the PF; a
    lease may outlive its VF.
    """
    if function.address in evidence.leased:
        return None
    if twin := evidence.twins.get(function.physfn or function.address):
        return _no(function, RejectReason.EQUAL_NUMBER, f"that of {twin} is equal")
    if function.physfn is not None and function.physfn in evidence.taken:
        return _no(function, RejectReason.PF_LEASED, str(function.physfn))
    if _has_leased_vfs(evidence, function):
        vf = evidence.in_parts[function.address]
        return _no(function, RejectReason.VFS_LEASED, str(vf))
    if function.address in evidence.mdev_parents:
        slot = evidence.mdev_parents[function.address]
        return _no(function, RejectReason.MDEVS_LEASED, str(slot))
    return None


def _has_leased_vfs(evidence: HostEvidence, function: PciFunction) -> bool:
    return function.physfn is None and function.address in evidence.in_parts


def _in_the_way(
    evidence: HostEvidence, function: PciFunction, other: PciFunction
) -> str | None:
    """Return the function that prevents the group's assignment, and the reason."""
    is_novas = claims_of_nova(evidence, other) is not None
    is_concerned = is_novas or _is_related(evidence, function, other)
    if other.is_bridge or not is_concerned:
        if vfio.leaves_group_viable(other.driver) and not is_vfio_driver(other.driver):
            return None
        return f"{other.address} ({other.driver}) shares its group"
    for one in (function, other):
        if one.address in evidence.named and _stays(evidence, one):
            # The rest of the group would go to vfio-pci.
            return f"{other.address} shares its group, but {one.address} stays"
    # Bound or not, Nova may bind it at any time.
    novas = RejectReason.NOVA_CLAIMS.value if is_novas else None
    why = novas or _kept(evidence, function, other)
    return f"{other.address}: {why}" if why else None


def _kept(
    evidence: HostEvidence, function: PciFunction, other: PciFunction
) -> str | None:
    """Return the reason why a sibling cannot be assigned with the function."""
    if pci.has_bus(evidence.root, other.address):
        return RejectReason.BRIDGE.value
    if vfio.denylisted(evidence.root, other):
        return RejectReason.DENYLISTED.value
    own = evidence.named.get(other.address)
    if other.vfs or (own and own.num_vfs is not None):
        return "a PF with VFs"
    if own and own.mdev_types:
        return "offered as mediated devices"
    tags = evidence.named.get(other.address, evidence.named[function.address])
    if _why_unknown(evidence, other, tags) is not None:
        return RejectReason.UNKNOWN_STATE.value
    if (leased := _otherwise_leased(evidence, other)) is not None:
        return str(leased)
    return _unerased(evidence, function, other) or evidence.usage.get(other.address)


def _unerased(
    evidence: HostEvidence, function: PciFunction, other: PciFunction
) -> str | None:
    """Return the reason why nothing erases a sibling, or why it must not be erased.

    The plugin that offers the function erases siblings of its class with it, and no
    others. A sibling that is not named has the tags of the function, as elsewhere.
    """
    if not keeps_data_beside(function, other):
        return None
    own = evidence.named[function.address]
    tags = evidence.named.get(other.address, own)
    if function.class_code != other.class_code:
        return None if tags.allow_no_erase else RejectReason.NO_ERASE.value
    if tags.allow_no_erase != own.allow_no_erase:
        return f"only one of it and {function.address} has the tag allow_no_erase"
    return None


_RULES: tuple[Callable[[HostEvidence, PciFunction], RejectedDevice | None], ...] = (
    _bridge,
    _has_vfs,
    claims_of_nova,
    _iommu,
    _vfio_driver,
    _host_uses,
    _unknown,
    _otherwise_leased,
    _untagged_vgpu,
)


def _others(evidence: HostEvidence, function: PciFunction) -> tuple[PciFunction, ...]:
    """Return the rest of the group."""
    functions = evidence.host.functions
    members = evidence.host.group_of(function).members
    others = [each for each in members if each != function.address]
    return tuple([functions[each] for each in others if each in functions])


def _is_related(
    evidence: HostEvidence, function: PciFunction, other: PciFunction
) -> bool:
    """Return whether a sibling is named, or of the same card.

    An operator who names a graphics card means its audio function as well.
    """
    address = other.address
    return address in evidence.named or address.same_slot(function.address)


def _members(
    evidence: HostEvidence, function: PciFunction, others: Iterable[PciFunction]
) -> tuple[PciAddress, ...]:
    """Return a function and the siblings that are assigned too, sorted.

    :param others: the rest of the group.
    """
    along = [
        each.address
        for each in others
        if _is_related(evidence, function, each)
        and not each.is_bridge
        and not claims_of_nova(evidence, each)
    ]
    return tuple(sorted((function.address, *along)))
