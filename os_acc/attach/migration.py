# SPDX-License-Identifier: Apache-2.0

"""The devices of an instance at both ends of a live migration.

The source states for each device what the target has to equal; the target plugs its own
allocation, and pairs its devices with those of the source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.inventory import migration
from os_acc.objects.api import MigratingDevice
from os_acc.objects.instance import instance_uuid
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.migration import MigrationSupport
from os_acc.store import state_files

# Seconds for a plugin's answer, which reads only.
_PATIENCE: Final = 10.0


def source(manager: Manager, instance_info: object) -> list[MigratingDevice]:
    """See :func:`os_acc.migration_source`."""
    leases = _leases(manager, instance_info)
    facts = _Facts.read(manager, len(leases))
    found = []
    for lease in leases:
        subject = migration.subject_of_lease(manager.root, lease)
        description = MigratingDevice(
            address=lease.device_name,
            request_group=lease.group,
            reason=facts.why_not(lease, subject),
            profile=_profile(manager, lease),
            state_size=facts.answers.get(subject or "", MigrationSupport()).size,
        )
        found.append(description)
    return found


def pairs(
    manager: Manager, instance_info: object, devices: Sequence[MigratingDevice]
) -> dict[str, str]:
    """See :func:`os_acc.migration_pairs`."""
    free, found = _leases(manager, instance_info), dict[str, str]()
    _check(devices)
    facts = _Facts.read(manager, len(devices))
    # Nova replaces one address after the other: a device of the target that has the
    # address of one at the source takes over that one.
    own = {lease.device_name for lease in free}
    for each in sorted(devices, key=lambda device: device["address"] not in own):
        fitting = [e for e in free if e.group == each["request_group"]]
        fitting.sort(key=lambda lease: lease.device_name != each["address"])
        reasons = []
        for lease in fitting:
            why = _why_not_to(manager, lease, facts, each)
            if not why:
                break
            reasons.append(f"{lease.address} {why}")
        else:
            raise exception.NoDeviceAvailable(
                f"no device of request group {exception.show(each['request_group'])} "
                f"can take over {exception.show(each['address'])}: "
                f"{'; '.join(reasons) or 'none is allocated'}",
                hint="live migration needs equal devices, drivers and plugins at both "
                "ends",
            )
        found[each["address"]] = lease.device_name
        free.remove(lease)
    if free:
        raise exception.NoDeviceAvailable(
            f"{free[0].address} replaces no device of the source",
            hint="migrate the server once its resize is confirmed",
        )
    return found


def _check(devices: object) -> None:
    """Check the descriptions of devices, which another release may have made.

    :raises InvalidInput: no list, or a description lacks a key or has another type.
    """
    names = ("address", "request_group", "profile")
    if isinstance(devices, list | tuple) and all(
        isinstance(each, dict) and all(type(each.get(e)) is str for e in names)
        for each in devices
    ):
        return
    raise exception.InvalidInput(
        f"{exception.show(devices)} describes no devices of a live migration",
        hint="both hosts need the same release of os_acc",
    )


def _leases(manager: Manager, instance_info: object) -> list[Lease]:
    found = manager.store.leases(instance_uuid(instance_info))
    held = [each for each in found if not each.erasure and not each.is_spare]
    return sorted(held, key=lambda each: (each.group, each.created_at, each.uuid))


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """What decides whether the devices of a guest can be migrated.

    :ivar answers: those of VFIO, by their subject.
    :ivar tagged: the devices that the last scan found tagged ``live_migratable =
        false``: the tag may be newer than the lease.
    :ivar number: of the devices that move.
    """

    answers: Mapping[str, MigrationSupport]
    tagged: frozenset[DeviceAddress]
    number: int

    @classmethod
    def read(cls, manager: Manager, number: int) -> _Facts:
        """Read the facts of this host."""
        providers, _taken = manager.catalog.snapshots.offered()
        handles = (each for one in providers for each in one.device.handles)
        tagged = (each.address for each in handles if not each.live_migratable)
        answers = state_files.recorded_migrations(manager.settings.state_path)
        return cls(answers, frozenset(tagged), number)

    def why_not(self, lease: Lease, subject: str | None) -> str:
        """Return why a device cannot be migrated; '' if it can."""
        if lease.state is not LeaseState.HELD or not lease.is_the_guests:
            return "is not attached to the guest"
        if not lease.handle.live_migratable or lease.handle.address in self.tagged:
            return "is tagged live_migratable = false in device_spec"
        if subject is None:
            return f"is on {lease.driver}, which cannot migrate a device"
        answer = self.answers.get(subject)
        if answer is None:
            return (
                "has a driver that VFIO was not asked about: run 'os-acc device "
                "migration' with a free device of its kind"
            )
        if not answer.is_migratable:
            return "has a driver that cannot migrate it"
        if self.number > 1 and not answer.is_migratable_beside_others:
            return "has a driver that cannot migrate it beside others: it lacks P2P"
        return ""


def _why_not_to(
    manager: Manager,
    lease: Lease,
    facts: _Facts,
    device: MigratingDevice,
) -> str:
    """Return why a device cannot take over that of the source; '' if it can."""
    if why := facts.why_not(lease, migration.subject_of_lease(manager.root, lease)):
        return why
    own = _profile(manager, lease)
    plugin = manager.plugins.get(lease.plugin)
    is_accepted = own == device["profile"]
    if plugin is not None and not is_accepted:
        accepts = plugin.accepts_migration
        profiles = device["profile"], own
        is_accepted = manager.plugins.call(plugin, _PATIENCE, accepts, *profiles)
    wanted = exception.show(device["profile"])
    return "" if is_accepted else f"is {own!r}, and the source {wanted}"


def _profile(manager: Manager, lease: Lease) -> str:
    """Return what both ends have to have, as the plugin states it, or by default."""
    plugin = manager.plugins.get(lease.plugin)
    stated = None
    if plugin is not None:
        profile = plugin.migration_profile
        stated = manager.plugins.call(plugin, _PATIENCE, profile, lease)
    if stated is None:
        identity = migration.identity_of(lease)
        stated = migration.profile_of(manager.root, lease.handle, identity) or ""
    return f"{lease.plugin} {lease.wanted.resource_class} {stated}"
