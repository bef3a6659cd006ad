# SPDX-License-Identifier: Apache-2.0

"""Checks of devices that are configured but not offered."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from os_acc import exception
from os_acc.cmd.checks import CheckContext, Finding, failed, ok, warning
from os_acc.cmd.device_states import DeviceStatus, device_states, vfs_hint
from os_acc.helper import client
from os_acc.host import vfio
from os_acc.inventory.health_steps import HealthStepReader
from os_acc.inventory.monitor import FaultTracker
from os_acc.inventory.snapshots import Snapshots
from os_acc.objects.device import AttachHandle, RejectedDevice, RejectReason
from os_acc.objects.drivers import VFIO_PCI
from os_acc.objects.mdev import MdevSlot, function_of
from os_acc.store import state_files


def iommu_on(context: CheckContext) -> Iterator[Finding]:
    """Check that IOMMU groups exist."""
    if vfio.iommu_on(context.root):
        yield ok(f"{len(context.host.groups)} IOMMU groups")
    else:
        yield failed(
            "the IOMMU is off: there are no IOMMU groups",
            "switch it on in the firmware, and with intel_iommu=on on the kernel's "
            "command line (AMD's and Arm's need no option)",
        )


def vfio_ready(context: CheckContext) -> Iterator[Finding]:
    """Check that vfio-pci is available, if an accelerator needs it."""
    if vfio.has_driver(context.root, VFIO_PCI):
        yield ok("the driver is loaded")
    elif _needs_vfio_pci(context):
        vfio.require_drivers(context.root, (VFIO_PCI,))
    else:
        yield ok("not loaded: no accelerator that is offered or in use needs it")


def _needs_vfio_pci(context: CheckContext) -> bool:
    try:
        inventory = context.look.inventory
    except exception.OsAccError:
        # Other checks report the cause. Most accelerators need the driver.
        return True
    handles = [handle for _provider, handle in context.offered]
    leases = inventory.recorded_state.leases
    if not handles and not leases:
        return True
    return any(map(_goes_to_vfio_pci, handles)) or any(
        VFIO_PCI in lease.vfio_drivers for lease in leases
    )


def _goes_to_vfio_pci(handle: AttachHandle) -> bool:
    if isinstance(handle.address, MdevSlot):
        return False
    # The other functions of its IOMMU group go to vfio-pci in any case.
    return handle.driver == VFIO_PCI or len(handle.members) > 1


_ISOLATION = {
    RejectReason.NO_IOMMU: "switch on the IOMMU in the firmware, and on Intel with "
    "intel_iommu=on on the kernel's command line",
    RejectReason.UNSAFE_IOMMU: "switch on the IOMMU, and load vfio without "
    "enable_unsafe_noiommu_mode",
    RejectReason.RESERVED_REGION: (
        "disable the mapping of memory for that slot in the firmware "
        "(shared memory or RMRR of the server's management), or "
        "remove the device from [os_acc] device_spec"
    ),
    RejectReason.NOT_ISOLATED: (
        "move the card to another slot, or enable ACS in the "
        "firmware; name all devices of the group if all may go to "
        "one guest, a disk beside another device with allow_no_erase"
    ),
}
_TAG = "tag the device {} in [os_acc] device_spec, if " + (
    "the next guest may see data of the previous one"
)
_TAGS = {
    RejectReason.NO_RESET: _TAG.format("allow_no_reset"),
    RejectReason.NO_ERASE: _TAG.format("allow_no_erase")
    + "; NVMe devices are erased by the plugin nvme with [os_acc_nvme] erase_methods",
}
_NOT_MEANT = (
    "see 'os-acc device list --state refused', and remove "
    "unintended devices from [os_acc] device_spec"
)
_REPORTED_ELSEWHERE = (
    RejectReason.NOVA_CLAIMS,
    RejectReason.DENYLISTED,
    RejectReason.UNKNOWN_STATE,
    *_ISOLATION,
    # Expected: the VFs are offered instead, or the card is in use.
    RejectReason.HAS_VFS,
    RejectReason.NO_VFS,
    RejectReason.PF_LEASED,
    RejectReason.VFS_LEASED,
    # A finding of its own has the rule.
    RejectReason.INVALID,
)
_SHOWN = 4
# udev(7); the manual has the rules (doc/source/admin/nvme.rst).
_RULES = "50-os-acc.rules"
_RULE_DIRECTORIES = (
    *("etc/udev/rules.d", "run/udev/rules.d"),
    *("usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"),
)


def claims(context: CheckContext) -> Iterator[Finding]:
    """Check that Nova claims no device of os_acc."""
    both = _refused(context, (RejectReason.NOVA_CLAIMS,))
    if both:
        yield failed(
            f"claimed by Nova as well: {_addresses(both)}",
            "give each device to one service: remove it from [os_acc] "
            "device_spec, or from Nova's [pci] device_spec and [mdev_*] "
            "device_addresses; set device_addresses for each mdev type",
        )
    else:
        yield ok("Nova claims none of the devices in [os_acc] device_spec")


def isolation(context: CheckContext) -> Iterator[Finding]:
    """Check that the IOMMU isolates the offered devices from all others."""
    found = []
    for each in _refused(context, _ISOLATION):
        hint, (other, _, why) = _ISOLATION[each.reason], each.detail.partition(": ")
        if why == RejectReason.UNKNOWN_STATE.value:
            hint = f"if no guest has {other}, run 'os-acc device release {other}'"
        found.append(warning(f"{each.address}: {each}", hint))
    fine = ok("every checked device of device_spec can be isolated")
    yield from _first(found) if found else [fine]


def vfs(context: CheckContext) -> Iterator[Finding]:
    """Check that each PF has the VFs that ``num_vfs`` requests."""
    found = _refused(context, (RejectReason.NO_VFS,))
    for refused in found:
        yield warning(f"{refused.address}: {refused}", vfs_hint(refused))
    if not found and context.named.requests_vfs:
        yield ok("each PF has the VFs that num_vfs requests")


def denylist(context: CheckContext) -> Iterator[Finding]:
    """Check that vfio-pci denies no device because of its errata."""
    found = _refused(context, (RejectReason.DENYLISTED,))
    if found:
        yield warning(
            f"refused by vfio-pci: {_addresses(found)}",
            "if the erratum is acceptable, unload vfio-pci, run "
            "'modprobe vfio-pci disable_denylist=1', and set that option "
            "in /etc/modprobe.d",
        )
    else:
        yield ok("vfio-pci refuses none")


def unknown(context: CheckContext) -> Iterator[Finding]:
    """Check that no device is prepared for a guest without a lease."""
    found = [
        each
        for each in device_states(context.look)
        if each.state is DeviceStatus.UNKNOWN
    ]
    claims = {str(at): each for at, each in context.look.recorded.helper_claims.items()}
    seen = set[str]()
    for device in found:
        # The helper's record has the drivers of a lease, and all of its functions.
        known = claims.get(str(device.address))
        if known in seen:
            continue
        seen.update(filter(None, [known]))
        yield warning(
            f"{device.address}: {device.reason}",
            f"os-acc device adopt {device.address} --consumer UUID, if an instance has "
            f"it; else os-acc device release {device.address}",
        )
    if not found:
        yield ok("none")


def others(context: CheckContext) -> Iterator[Finding]:
    """Report all other devices that are not offered, and the number offered."""
    inventory = context.look.inventory
    for aside in inventory.set_aside:
        yield failed(
            f"plugin {aside.name} offers no device: {aside.reason}",
            "report it to the vendor, or leave it out of [os_acc] enabled_plugins",
        )
    yield from _broken_rules(context)
    # The records say which plugin has to release them.
    to_release = inventory.recorded_state.outstanding_releases
    by_reason: dict[str, list[RejectedDevice]] = defaultdict(list)
    for each in inventory.refused:
        if each.reason not in _REPORTED_ELSEWHERE and each.address not in to_release:
            by_reason[each.phrase].append(each)
    for phrase, found in by_reason.items():
        yield warning(
            f"not offered ({phrase}): {_addresses(found)}",
            _TAGS.get(found[0].reason, _NOT_MEANT),
        )
    if offered := len(list(context.offered)):
        yield ok(f"{offered} accelerators are offered or in use")
    else:
        yield warning("no accelerator is offered", "see 'os-acc device list'")


def _broken_rules(context: CheckContext) -> Iterator[Finding]:
    found: dict[str, list[RejectedDevice]] = defaultdict(list)
    for each in context.look.inventory.refused:
        if each.reason is RejectReason.INVALID:
            found[each.detail].append(each)
    for rule in context.look.inventory.broken_rules:
        found.setdefault(rule, [])
    yield from _first(
        [
            failed(
                f"a plugin broke a rule of the contract: {rule}"
                + (f"; not offered: {_addresses(devices)}" if devices else ""),
                "report it to the vendor, or leave it out of [os_acc] enabled_plugins",
            )
            for rule, devices in found.items()
        ]
    )


def health(context: CheckContext) -> Iterator[Finding]:
    """Ask the offered devices for the reasons why no guest would get them."""
    inventory, settings = context.look.inventory, context.settings
    offered = Snapshots(lambda: None)
    providers = inventory.providers.values()
    offered.note(offered.begin(), inventory.recorded_state, providers)
    helper = client.Helper(settings.write_timeout, settings.helper_start_timeout)
    reader = HealthStepReader(
        *(context.root, helper, context.plugins, offered),
        *(FaultTracker(), settings.state_path),
    )
    faults, _certain = reader.examine()
    refusals = state_files.recorded_refusals(settings.state_path, context.root)
    refused = {address for address, _options in refusals}
    for _provider, handle in context.offered:
        places = filter(None, map(function_of, handle.members))
        found = [f"{each} {faults[each]}" for each in places if each in faults]
        if handle.fault or found:
            again = f"; then run 'os-acc device release {handle.address}'"
            yield warning(
                f"{handle.address} is reserved: {handle.fault or '; '.join(found)}",
                "repair or replace the device, or change the options of its plugin"
                + (again if str(handle.address) in refused else ""),
            )


def guest_contents(context: CheckContext) -> Iterator[Finding]:
    """Report the devices whose guests can choose the function that is published."""
    regions = context.look.inventory.recorded_state.unverified_regions
    forgeable = sorted(
        str(handle.address)
        for provider, handle in context.offered
        if (region := provider.device.region) is not None
        and region.key in regions.accepted
        and region.interface_id is not None
        and region.card in handle.members
    )
    if forgeable:
        yield warning(
            f"guests can forge the function of {exception.some(forgeable, _SHOWN)}",
            "to prevent it, remove the tag trust_guest_contents from [os_acc] "
            "device_spec, and set [os_acc_bitstreams] reprogram_at_release",
        )


def udev_rules(context: CheckContext) -> Iterator[Finding]:
    """Report that udev would scan what guests have written to NVMe devices."""
    erased = context.erased_nvme
    paths = (os.path.join(context.root, each, _RULES) for each in _RULE_DIRECTORIES)
    if erased and not any(map(os.path.exists, paths)):
        yield warning(
            f"udev and LVM would scan the data of guests on "
            f"{exception.some(erased, _SHOWN)}: {_RULES} is missing",
            f"install {_RULES} in /etc/udev/rules.d, then run 'udevadm control "
            "--reload'",
        )


def _first(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first findings of one kind, and the number of the others."""
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        more = f"{len(found) - _SHOWN} more like these"
        yield Finding(found[0].result, more, "see 'os-acc device list'")


def _refused(
    context: CheckContext, reasons: Iterable[RejectReason]
) -> list[RejectedDevice]:
    wanted = frozenset(reasons)
    return [each for each in context.look.inventory.refused if each.reason in wanted]


def _addresses(found: Sequence[RejectedDevice]) -> str:
    return exception.some((str(each.address) for each in found), _SHOWN)
