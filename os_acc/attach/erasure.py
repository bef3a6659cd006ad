# SPDX-License-Identifier: Apache-2.0

"""Erasure of devices between two consumers, after their release.

A device whose plugin erases it goes from RELEASING to ERASING: it is back with its
driver, and the lease belongs to no consumer any more. The lease and the privileged
helper's record keep the device from all plugs until the plugin has verified the
erasure; each survives the loss of the other. That may take hours: the threads of the
service (:class:`.Retrier`) continue it with short calls, also after a reboot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from oslo_log import log

from os_acc import exception
from os_acc.attach import Services, device_state, plugin_steps
from os_acc.attach.release_result import record_failures
from os_acc.helper import client
from os_acc.host import attributes, pci
from os_acc.objects.device import Erasure, Provider
from os_acc.objects.device_spec import DeviceSpec
from os_acc.objects.lease import (
    Action,
    HelperRecord,
    Lease,
    LeaseState,
    PriorBinding,
    latest,
)
from os_acc.objects.pci import PciAddress, lasting_ids, pf_of_part, physfns
from os_acc.objects.request_group import AttachTarget
from os_acc.plugins.base import PluginBase
from os_acc.privsep import record
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

#: Hours without progress after which an erasure has stalled.
_STALLED_HOURS: Final = 6
# The service itself must have watched for this long: the host may have been off for the
# rest of these hours.
_WATCHED_SECONDS: Final = 600
#: Errors of an erasure that may be repeated without an end.
_MAY_STALL: Final = (exception.DeviceStuck, exception.HostStepFailed)


class Eraser:
    """Record which devices have to be erased, and continue erasures.

    :param offered: returns the devices that the host offers, by its latest scan.
    :param nova: the functions that Nova's options name.
    """

    def __init__(
        self,
        services: Services,
        offered: Callable[[float], Iterable[Provider]],
        nova: DeviceSpec,
    ) -> None:
        self._offered, self._nova = offered, nova
        self._services = services
        self._root = services.root
        self._store = services.store
        self._locks = services.locks
        self._helper = services.helper
        self._plugins = services.plugins
        #: By the UUID of a lease: the part done, and since when on the monotonic clock.
        self._watched: dict[str, tuple[float, float]] = {}

    def noted(self, leases: Sequence[Lease], deadline: float) -> tuple[Lease, ...]:
        """Record for held leases that a newer plugin erases their devices.

        :returns: all the leases, as recorded now.
        :raises OsAccError: the helper or the store cannot record it.
        """
        marked = self._with_erasures(leases, deadline)
        new = [each for each in marked if each not in leases]
        if not new:
            return tuple(leases)
        store = self._store.until(deadline)
        noted = {each.uuid: each for each in store.replace(new)}
        # A device without a record, as after a reboot, is taken with its erasure.
        recorded = {each.lease for each in self._helper.recorded(deadline)}
        for lease in [each for each in noted.values() if each.uuid in recorded]:
            reserve = self._helper.reserve
            noted[lease.uuid] = self._services.with_epoch(reserve, lease, deadline)
        return latest(leases, noted.values())

    def at_release(self, leases: Sequence[Lease], deadline: float) -> list[Lease]:
        """Return leases with the erasures that they need when their release begins.

        A plug that failed before the helper took its device returned no entry. Once the
        helper has a record with the plugin that has to erase the device, the device is
        erased: the safe rule.
        """
        marked = self._with_erasures(self._followed(leases, deadline), deadline)
        if not any(each.needs_erase for each in marked):
            return marked
        try:
            records = self._helper.recorded(deadline)
        except exception.OsAccError as error:
            LOG.debug(
                "cannot read the helper's records, so devices are erased: %s", error
            )
            return marked
        # A record without an eraser is that of a device that was only prepared.
        recorded = {each.lease for each in records if each.eraser}
        this_boot = attributes.boot_id(self._root)
        return [
            each.without(Action.ERASE, Action.RELEASE)
            if _is_superseded(each, records)
            else each.without(Action.ERASE)
            if each.needs_erase
            and each.state is LeaseState.PREPARING
            and each.boot_id == this_boot
            and each.uuid not in recorded
            else each
            for each in marked
        ]

    def _with_erasures(self, leases: Sequence[Lease], deadline: float) -> list[Lease]:
        """Return leases, marked if their plugins, which did not erase, do so by now.

        An erasure is not taken back: a lease keeps that of an earlier plugin version.
        """

        def may_be_erased(lease: Lease) -> bool:
            plugin = self._plugins.get(lease.plugin)
            return (
                plugin is not None
                and type(plugin).erase is not PluginBase.erase
                and not lease.needs_erase
                and not lease.never_held
                and lease.state is not LeaseState.PREPARING
            )

        if not any(map(may_be_erased, leases)):
            return list(leases)
        erasers = {
            handle.address: provider.device.plugin
            for provider in self._offered(deadline)
            if provider.device.erasure is Erasure.PLUGIN
            for handle in provider.device.handles
        }
        return [
            each.needing(Action.ERASE)
            if may_be_erased(each) and erasers.get(each.address) == each.plugin
            else each
            for each in leases
        ]

    def _followed(self, leases: Sequence[Lease], deadline: float) -> list[Lease]:
        """Record the present addresses of drives, which may have moved.

        A lease keeps its old address while another lease, whose drive has not moved,
        has the new one.
        """
        if not (moved := self._moved(leases, deadline)):
            return list(leases)
        store = self._store.until(deadline)
        owners = dict.fromkeys(store.damaged_claims(), "")
        owners |= {at: each.uuid for each in store.leases() for at in each.members}
        while blocked := [
            uuid
            for uuid, now in moved.items()
            if any(owners.get(each, uuid) not in moved for each in now.members)
        ]:
            for uuid in blocked:
                LOG.info("another lease has %s now", moved.pop(uuid).address)
        return list(latest(leases, store.replace(moved.values())))

    def numbered(self, lease: Lease, deadline: float) -> Lease:
        """Return a prepared lease with the serial numbers that only root has read.

        :raises DeviceInUse: it has data of another lease. The helper refuses such a
            device itself, unless it has lost its records.
        """
        if not lacks_number(lease):
            return lease
        lease = _numbered(lease, self._helper.recorded(deadline))
        lease = with_peers(self._root, lease)
        own = {each.identity.key for each in lease.prior}
        for other in self._store.until(deadline).leases():
            for each in other.prior if other.uuid != lease.uuid else ():
                if each.identity.drive and each.identity.key in own:
                    raise exception.DeviceInUse(
                        f"{lease.address} is the device of lease {other.uuid}, which "
                        f"was {other.address}",
                        address=str(lease.address),
                        hint=f"unplug instance {other.consumer_title} first",
                    )
        return lease

    def _moved(self, leases: Sequence[Lease], deadline: float) -> dict[str, Lease]:
        """Return the leases of devices that have moved, as they are now, by UUID.

        Only the helper can read the serial number of a device without a driver, and the
        numbers in its own records.
        """
        records: Sequence[HelperRecord] = ()
        if any(each.needs_erase and each.slot is None for each in leases):
            with contextlib.suppress(exception.OsAccError):
                records = [
                    each for each in self._helper.recorded(deadline) if each.eraser
                ]
        found = (
            (old, followed(self._root, _numbered(old, records), records))
            for old in leases
        )
        return {old.uuid: now for old, now in found if now != old}

    def due(self, deadline: float) -> list[str]:
        """Record where released drives have moved to; return the erasures to continue.

        :returns: the UUIDs of the leases whose devices are being erased, sorted.
        :raises OsAccError: the store or the helper cannot be read.
        """
        over = [e for e in self._store.until(deadline).leases() if e.erasure]
        moved = self._moved(over, deadline)
        # Drives may have changed places: their leases follow them together.
        with self._locks.try_hold(map(consumer_lock, moved)) as is_held:
            if is_held:
                self._followed([e for e in over if e.uuid in moved], deadline)
        return sorted(each.uuid for each in over if each.state is LeaseState.ERASING)

    def advance(self, uuid: str, deadline: float) -> Lease | None:
        """Call the plugin once; release the device if it is erased.

        Do nothing while another thread or process erases the device.

        :param uuid: of the lease.
        :returns: the lease as recorded now; None: it has ended, or another caller
            continues the erasure.
        :raises OsAccError: the call failed. The lease has the reason; a cause that
            cannot pass quarantines the device.
        """
        with self._locks.try_hold([consumer_lock(uuid)]) as is_held:
            if not is_held:
                return None
            for lease in self._store.until(deadline).leases(uuid):
                if lease.state is LeaseState.ERASING:
                    return self._advance(lease, deadline)
        return None

    def restart(self, lease: Lease, deadline: float) -> Lease | None:
        """Erase a quarantined device again, from the start; see :meth:`advance`.

        An erasure that had stalled is quarantined again if the part done is the same.
        """
        again = lease.with_erased(0.0, state=LeaseState.ERASING, reason="")
        store, error = self._store.until(deadline), _stalled(lease)
        had_stalled = lease.reason == str(error)
        store.replace([again])
        # The drive may have moved: its lease follows it.
        self.due(deadline)
        try:
            now = self.advance(lease.uuid, deadline)
        except _MAY_STALL:
            if not had_stalled:
                raise
            (now,) = store.leases(lease.uuid)
            now = now.with_erased(lease.erased)
        if not had_stalled or now is None or now.erased != lease.erased:
            return now
        record_failures([(now, error)], store)
        raise error

    def _advance(self, lease: Lease, deadline: float) -> Lease | None:
        store = self._store.until(deadline)
        try:
            try:
                done = self._step(lease, deadline)
            except client.EpochRefused as error:
                (lease,) = self._services.accepted([lease], error, deadline)
                done = self._step(lease, deadline)
        except exception.OsAccError as error:
            if isinstance(error, _MAY_STALL):
                self._check_progress(lease, deadline, error)
            record_failures([(lease, error)], store)
            raise
        now = lease.with_erased(done, reason="")
        if done < 1.0 and now != lease:
            return store.replace([now])[0]
        if done < 1.0:
            self._check_progress(lease, deadline)
            return lease
        # 3. Record the end: a crash in the next steps does not repeat the erasure.
        (now,) = store.replace([now])
        # 4. Free the device.
        now = self._services.with_epoch(self._forget, now, deadline)
        self._forget_gone_vfs(now, deadline)
        store.delete([now])
        self._watched.pop(lease.uuid, None)
        LOG.info("erased %s after instance %s", now.address, now.consumer_title)
        return None

    def _forget(self, lease: Lease, deadline: float) -> None:
        self._helper.forget(lease.uuid, lease.functions, lease.epoch, deadline)

    def _forget_gone_vfs(self, lease: Lease, deadline: float) -> None:
        """Forget VFs of lost leases whose data the erasure of a PF has reached."""
        drives = {each.identity.drive for each in lease.prior} - {""}
        records = self._helper.recorded(deadline) if drives else ()
        found = self._store.until(deadline).leases()
        known = {uuid for each in found for uuid in each.recorded_uuids}
        for each in records if not _is_superseded(lease, records) else ():
            at = each.address
            if pf_of_part(each.serial) in drives and each.lease not in known:
                assert isinstance(at, PciAddress)
                self._helper.forget(each.lease, [at], lease.epoch, deadline)

    def _check_progress(
        self, lease: Lease, deadline: float, cause: Exception | None = None
    ) -> None:
        """Quarantine a device whose erasure has made no progress for too long.

        The epoch of the lease is the time of its last change, also of its reason, in
        microseconds.
        """
        now = time.monotonic()
        part, since = self._watched.get(lease.uuid, (-1.0, now))
        if part != lease.erased:
            self._watched[lease.uuid] = (lease.erased, now)
            return
        age, watched = time.time_ns() / 10**9 - lease.epoch / 10**6, now - since
        most = _STALLED_HOURS * 3600
        if watched >= most or (age >= most and watched >= _WATCHED_SECONDS):
            error = _stalled(lease)
            record_failures([(lease, error)], self._store.until(deadline))
            raise error from cause

    def _step(self, lease: Lease, deadline: float) -> float:
        """Return the part of the erasure that is done, after one more call."""
        records = self._helper.recorded(deadline)
        if lease.erased >= 1.0 or _is_superseded(lease, records):
            return 1.0
        device_state.check_distinct(self._root, lease)
        present = device_state.remaining(self._root, lease)
        gone = [each for each in lease.prior if each not in present.prior]
        now = followed(self._root, lease)
        if now != lease:
            raise exception.DeviceInUse(
                f"the drive of {lease.address} is now {now.address}, which another "
                "lease has",
                address=str(now.address),
                hint="unplug the instance of that lease: its device has moved as well",
            )
        if gone:
            raise exception.DeviceGone(
                ", ".join(f"{each.address} ({each.identity})" for each in gone)
                + " has left the host, and is not erased",
                hint="put it in again; if a drive on vfio-pci may be it, bind that to "
                "nvme. Run 'os-acc device release --force' if it never comes back",
            )
        device_state.check_not_novas(self._root, present, self._nova)
        # 1. Take over the helper's record of the device, which survives a loss of the
        #    store; a reboot has removed it. Undo: step 4.
        self._reserve(present, records, deadline)
        # 2. Call the plugin. A call is short, also for an operator who waits for it.
        deadline = min(deadline, time.monotonic() + self._helper.write_timeout)
        return plugin_steps.erase(self._services, lease, deadline)

    def _reserve(
        self, lease: Lease, records: Iterable[HelperRecord], deadline: float
    ) -> None:
        """Have the helper record the device for the lease of the erasure."""
        leases = {each.address: each.lease for each in records}
        found = {leases.get(each) for each in lease.functions}
        if found == {lease.uuid}:
            # Do not wait for the lock, which a call of the plugin may hold for hours.
            return
        damaged = record.UNREADABLE in found
        assert lease.erasure is not None
        self._helper.reserve(
            dataclasses.replace(
                lease,
                wanted=dataclasses.replace(
                    lease.wanted, attach_target=AttachTarget.NONE
                ),
            ),
            deadline,
            instead_of=record.UNREADABLE if damaged else lease.erasure.lease,
        )


def lacks_number(lease: Lease) -> bool:
    """Return whether a device has to be erased, and its lease has no serial number."""
    numbers = (each.identity.drive for each in lease.prior)
    return lease.needs_erase and lease.slot is None and not all(numbers)


def with_peers(root: str, lease: Lease) -> Lease:
    """Return a lease with the places of the cards that its device may be."""
    equal = device_state.identical_cards(root, lease) if lacks_number(lease) else ()
    return dataclasses.replace(lease, peers=equal)


def _numbered(lease: Lease, records: Iterable[HelperRecord]) -> Lease:
    """Return a lease with the serial numbers that only the helper has."""
    if not lacks_number(lease):
        return lease
    own = [each for each in records if each.lease in lease.recorded_uuids]
    serials = {each.address: each.serial for each in own}
    if len(own) == len(lease.prior) == 1:
        # It may have moved.
        serials[lease.prior[0].address] = own[0].serial
    prior = tuple(
        dataclasses.replace(
            each,
            identity=dataclasses.replace(
                each.identity,
                drive=each.identity.drive or serials.get(each.address, ""),
            ),
        )
        for each in lease.prior
    )
    return dataclasses.replace(lease, prior=prior)


def followed(root: str, lease: Lease, records: Iterable[HelperRecord] = ()) -> Lease:
    """Return the lease with the present address and ids of each of its drives.

    :param records: the helper's.
    """
    drives = [each for each in lease.prior if each.identity.drive]
    here = device_state.remaining(root, lease).prior if drives else ()
    seen = filter(None, (pci.read_function(root, each.address) for each in here))
    numbers = {each.address: each.identity.numbers for each in seen}
    places = [(each.serial, each.address) for each in records if each.serial]
    old = [
        each
        for each in drives
        if numbers.get(each.address) != each.identity.numbers
        # A record has it in another place, or another drive in this one.
        or any((no == each.identity.drive) != (at == each.address) for no, at in places)
    ]
    if not old:
        return lease
    functions = pci.scan(root).functions
    there = {each.identity.key: each for each in functions.values()}
    for serial, place in places:
        if isinstance(place, PciAddress) and (function := functions.get(place)):
            there[serial, lasting_ids(function.identity.numbers, serial)] = function
    found = {
        each.address: now
        for each in old
        if (now := there.get(each.identity.key)) is not None
        and (now.address, now.identity.numbers) != (each.address, each.identity.numbers)
    }
    now = found.get(lease.address) if isinstance(lease.address, PciAddress) else None
    if now is None:
        return lease
    return dataclasses.replace(
        lease,
        handle=dataclasses.replace(
            lease.handle,
            address=now.address,
            iommu_group=now.iommu_group,
            numa_node=now.numa_node,
        ),
        prior=tuple(
            PriorBinding(
                to.address, to.identity.completed(each.identity), to.driver, None
            )
            if (to := found.get(each.address))
            else each
            for each in lease.prior
        ),
        physfns=physfns([now]),
    )


def _is_superseded(lease: Lease, records: Iterable[HelperRecord]) -> bool:
    """Return whether the helper has the drives of a lease on record for another one.

    The lease is that of an older copy of the store, and has ended since: the helper
    gives no drive to another lease before the drive is erased.
    """
    mine = (*lease.recorded_uuids, record.UNREADABLE)
    others = {each.serial for each in records if each.eraser and each.lease not in mine}
    drives = {each.identity.drive for each in lease.prior}
    return bool(drives) and drives <= others - {""}


def _stalled(lease: Lease) -> exception.HostStepFailed:
    return exception.HostStepFailed(
        f"{lease.address}: its erasure has stood at {lease.erased:.1%} for "
        f"{_STALLED_HOURS} hours",
        address=str(lease.address),
        hint="power-cycle the host, or replace the device; --force offers the device "
        "again with the data of its last guest",
    )
