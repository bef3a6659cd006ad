# SPDX-License-Identifier: Apache-2.0

"""State transitions of leases: prepare, release, settle after a crash.

The lease is its own journal. Before a device is touched, the lease records the
prior binding of each function. A rollback restores what is recorded and does not
undo steps one by one, so it can be interrupted and repeated at any point. The
caller of each method that changes leases holds the consumer's lock.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import (
    erasure,
    mdev_creation,
    own_drivers,
    peers,
    plugin_steps,
    programming,
    region_requirements,
    verification,
)
from os_acc.attach.release_result import (
    ReleaseResult,
    is_refused_by_store,
    record_failures,
)
from os_acc.attach.services import Services
from os_acc.helper import client
from os_acc.host import attributes
from os_acc.objects.device import Provider
from os_acc.objects.lease import Action, Lease, LeaseState
from os_acc.objects.mdev import MdevSlot
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)
_WORKERS = 8


def held(leases: Sequence[Lease]) -> list[Lease]:
    """Return leases in the state of those whose devices are ready."""
    return [dataclasses.replace(each, state=LeaseState.HELD) for each in leases]


class Lifecycle:
    """Change the state of leases, on disk and on the host.

    :param offered: returns the devices that the host offers, by its latest scan.
    :ivar eraser: continues the erasure of released devices.
    """

    def __init__(
        self,
        services: Services,
        programmer: programming.Programmer,
        offered: Callable[[float], Iterable[Provider]],
    ) -> None:
        self._root, self._state_path = services.root, services.state_path
        self._store = services.store
        self._locks = services.locks
        self._helper = services.helper
        self._plugins = services.plugins
        self._programmer = programmer
        self.eraser = erasure.Eraser(services, offered)

    # -- preparing: a new request ------------------------------------------

    def establish(
        self,
        leases: Sequence[Lease],
        deadline: float,
        jobs: Sequence[region_requirements.ProgrammingJob] = (),
        store_id: str = "",
        committed: Callable[[Sequence[Lease]], Sequence[Lease]] = held,
    ) -> tuple[Lease, ...]:
        """Prepare the devices of new leases: all of them, or none.

        :param jobs: regions to program; the caller holds the locks of their cards.
        :param store_id: the store whose leases the selection of devices considered.
        :param committed: returns the leases to record in one transaction, once the
            devices of the new ones are ready.
        :returns: the leases that were recorded then.
        :raises StoreReplaced: the store has been replaced since.
        :raises OsAccError: the error of the step that failed. The host is as it
            was before; notes of the error name the exceptions.
        """
        store = self._store.until(deadline)
        plugin_steps.check_loaded(self._plugins, leases)
        # Before the intent: the recovery of a crash would wait for the process.
        for each in leases:
            own_drivers.check_free(self._root, self._helper, each, deadline)
        # 1. Record the intent. Undo: delete it, since no device is touched yet.
        intents = store.add(plugin_steps.owing(self._plugins, leases), store_id)
        try:
            verification.check_unchanged(self._root, intents, deadline)
            peers.check_new(self._root, intents, store.leases())
            verification.check_leases_answer(self._root, intents, deadline)
        except BaseException:
            store.delete(intents)
            raise
        try:
            # 2. Program the regions. Undo: none; a region keeps its contents.
            programmed = self._programmed(intents, jobs, deadline)
            # 3. to 6. Prepare each device. Undo: _give_back().
            ready = deadlines.side_by_side(
                programmed, lambda each: self._prepare(each, deadline), _WORKERS
            )
            # 7. Commit.
            return store.replace(committed(ready))
        except BaseException as error:
            # BaseException: Ctrl-C must not leave a device half prepared either.
            self._roll_back(intents, error, deadline)
            raise

    def _programmed(
        self,
        leases: Sequence[Lease],
        jobs: Sequence[region_requirements.ProgrammingJob],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Program all regions; each card may refuse an epoch once."""
        for _ in {job.region.card for job in jobs}:
            try:
                return self._programmer.program(leases, jobs, deadline)
            except client.EpochRefused as error:
                leases = self._with_accepted_epoch(leases, error, deadline)
        return self._programmer.program(leases, jobs, deadline)

    def _prepare(self, lease: Lease, deadline: float) -> Lease:
        """Prepare one device: steps 3 to 6 of :meth:`establish`."""
        if lease.slot is not None:
            return self._prepare_mdev(lease, lease.slot, deadline)
        if not lease.is_the_guests:
            verification.check_driven(self._root, lease)
            if lease.owes_erase and lease.state is LeaseState.PREPARING:
                # After a reboot the host may use it already.
                lease = self._prepare_by_plugin(lease, deadline)
            return self._with_epoch(self._helper.reserve, lease, deadline)
        # 3. Check again after a programming that no process holds it.
        if lease.programming is not None or lease.state is not LeaseState.PREPARING:
            own_drivers.check_free(self._root, self._helper, lease, deadline)
        # 4. Call the plugin. Undo: its ``release``.
        lease = self._prepare_by_plugin(lease, deadline)
        if (region := lease.guest_writable) is not None:
            # Recorded before the guest can write: a crash may follow at any time.
            self._store.until(deadline).mark_region_guest_writable(region.key)
        # 5. Check that it is undivided, and bind it to vfio-pci. Undo: restore it.
        verification.check_undivided(self._root, lease, deadline)
        lease = self._with_epoch(self._helper.take, lease, deadline)
        # 6. Verify the IOMMU group.
        verification.check_viable(self._root, lease)
        return lease

    def _prepare_mdev(self, lease: Lease, slot: MdevSlot, deadline: float) -> Lease:
        """Create one mediated device: steps 4 to 6 of :meth:`establish`."""
        if not lease.is_the_guests:
            return lease
        # 4. Call the plugin. Undo: its ``release``.
        lease = self._prepare_by_plugin(lease, deadline)

        # 5. Create the mediated device. Undo: remove it.
        def create(lease: Lease, deadline: float) -> None:
            mdev_creation.create(self._root, self._helper, lease, slot, deadline)

        lease = self._with_epoch(create, lease, deadline)
        # 6. Verify that VFIO offers it.
        verification.check_viable(self._root, lease)
        return lease

    def _prepare_by_plugin(self, lease: Lease, deadline: float) -> Lease:
        def prepare(lease: Lease, deadline: float) -> None:
            where = self._state_path, self._root
            plugin_steps.prepare(self._plugins, self._helper, lease, deadline, where)
            if erasure.lacks_number(lease):
                # Without its erasure, as it may be the device of another guest.
                bare = lease.without(Action.ERASE)
                self._helper.reserve(bare, deadline)

        lease = self._with_epoch(prepare, lease, deadline)
        return self.eraser.numbered(lease, deadline)

    def _roll_back(
        self, intents: Sequence[Lease], cause: BaseException, deadline: float
    ) -> None:
        """Release the leases of a failed plug; add failures to its error as notes."""
        # A rollback needs time of its own: the plug may have used up its time.
        deadline = max(deadline, time.monotonic() + self._helper.write_timeout)
        try:
            self._record_again(intents, deadline)
            failed = self.settle(intents[0].consumer, deadline, intents).failed
        except exception.OsAccError as error:
            if not is_refused_by_store(error):
                cause.add_note(f"cannot roll back: {error}")
                return
            # Either the disk is full: the recorded intent still says what to restore.
            # Or another plug leased the device in a new store: the helper decides.
            cause.add_note(f"cannot record the rollback: {error}")
            ended = deadlines.side_by_side(
                intents,
                lambda each: self._try_give_back(each, deadline, True),
                _WORKERS,
            )
            failed = tuple((each, why) for each, why in ended if why is not None)
        for lease, why in failed:
            cause.add_note(f"cannot give {lease.address} back: {why}")

    def _record_again(self, intents: Sequence[Lease], deadline: float) -> None:
        """Record the intents that the store has lost, so that a crash is survived."""
        store = self._store.until(deadline)
        recorded = {lease.uuid for lease in store.leases(intents[0].consumer)}
        if lost := [lease for lease in intents if lease.uuid not in recorded]:
            store.add(lost)

    # -- preparing again: held leases --------------------------------------

    def reestablish(
        self, leases: Sequence[Lease], deadline: float
    ) -> tuple[Lease, ...]:
        """Prepare the devices of held leases again if necessary.

        A reboot invalidates the recorded bindings. A device that the host bound to
        vfio-pci at boot is returned to its driver if its region has to be read.

        :raises OsAccError: the error of the step that failed; the leases stay.
        """
        leases = self.eraser.noted(leases, deadline)
        broken = [each for each in leases if not verification.holds(self._root, each)]
        if not broken:
            return leases
        # 1. Record the present bindings, and what is owed to a newer plugin.
        refreshed = [erasure.refreshed(self._root, each, deadline) for each in broken]
        fresh = self._store.until(deadline).replace(
            plugin_steps.owing(self._plugins, refreshed)
        )
        # A guest that the host itself has started may use its device already.
        idle = [
            each
            for each in fresh
            if not each.is_the_guests or not verification.holds(self._root, each)
        ]
        # 2. Check that the plugins can prepare the devices again, that the host does
        #    not use them, and that they have power.
        plugin_steps.check_loaded(self._plugins, idle)
        verification.check_unused(
            self._root, [each for each in idle if each.is_the_guests]
        )
        verification.check_leases_answer(self._root, idle, deadline)
        # 3. Restore drivers that read regions. A process killed in an earlier
        #    attempt may have left a function without its driver.
        idle = [
            self._with_epoch(self._restore, lease, deadline)
            if lease.programming is not None
            and (lease.is_the_guests or not verification.moved(self._root, lease))
            else lease
            for lease in idle
        ]
        with self._programmer.plan_again(idle, deadline) as plan:
            # 4. Program regions that have lost their contents.
            programmed = self._programmed(plan.leases, plan.jobs, deadline)
            # 5. Prepare each device, as for a new request.
            ready = deadlines.side_by_side(
                programmed, lambda each: self._prepare(each, deadline), _WORKERS
            )
            # 6. Record that devices and regions are right in this boot.
            ready = self._record_verified(ready, deadline)
        renewed = {lease.uuid: lease for lease in (*fresh, *ready)}
        return tuple(renewed.get(lease.uuid, lease) for lease in leases)

    def _record_verified(self, ready: Sequence[Lease], deadline: float) -> list[Lease]:
        """Record for leases that their devices and regions are right in this boot."""
        this_boot = attributes.boot_id(self._root)
        verified = {
            each.uuid: verification.verified(
                dataclasses.replace(each, boot_id=this_boot)
            )
            for each in ready
            if each.programming or each.boot_id != this_boot
        }
        if verified:
            store = self._store.until(deadline)
            verified = {lease.uuid: lease for lease in store.replace(verified.values())}
        return [verified.get(lease.uuid, lease) for lease in ready]

    # -- giving back -------------------------------------------------------

    def release(self, leases: Sequence[Lease], deadline: float) -> ReleaseResult:
        """Restore the prior bindings of devices, and delete their leases.

        An interrupted release is repeated from step 1 (:meth:`settle`). It counts as
        done once the device is back; :class:`.Eraser` then erases the device.
        """
        store = self._store.until(deadline)
        # 1. Record the begin. The reason of an earlier attempt stays: it reserves
        #    the unit.
        owing = self.eraser.at_release(leases, deadline)
        begun = store.replace([lease.releasing() for lease in owing])
        # 2. Give each device back.
        plugs = verification.begun_plugs(self._root, leases)
        ended = deadlines.side_by_side(
            begun,
            lambda each: self._try_give_back(each, deadline, each.uuid in plugs),
            _WORKERS,
        )
        done = tuple(lease for lease, error in ended if error is None)
        failed = tuple((lease, error) for lease, error in ended if error is not None)
        # 3. Delete the leases of devices that were given back, or hand the devices
        #    over to their erasure.
        free = [lease for lease in done if not lease.owes_erase]
        if free:
            store.delete(free)
        if len(free) < len(done):
            store.delete([each for each in done if each.owes_erase], to_erase=True)
        # 4. Record why the others were not.
        return ReleaseResult(done, record_failures(failed, store))

    def _try_give_back(
        self, lease: Lease, deadline: float, is_plug: bool = False
    ) -> tuple[Lease, exception.OsAccError | None]:
        """Give a device back; return the lease, and the error of a failure.

        :param is_plug: whether this rolls back a plug of this boot.
        """
        try:
            try:
                self._give_back(lease, deadline, is_plug)
            except client.EpochRefused as error:
                (lease,) = self._with_accepted_epoch([lease], error, deadline)
                self._give_back(lease, deadline, is_plug)
        except exception.OsAccError as error:
            return lease, error
        return lease, None

    def _give_back(self, lease: Lease, deadline: float, is_plug: bool) -> None:
        """Undo :meth:`_prepare`; a device that stays with the host is not rebound."""
        if lease.slot is not None:
            self._remove_mdev(lease, lease.slot, deadline, is_plug)
            return
        if not lease.is_the_guests and not self._is_rebound(lease, deadline):
            if lease.owes_release:
                self._release_by_plugin(lease, deadline, is_plug)
            if not lease.owes_erase:
                self._helper.forget(lease.uuid, lease.functions, lease.epoch, deadline)
            return
        has_records = not verification.given_back_by_reboot(self._root, lease, deadline)
        if has_records:
            try:
                self._restore(lease, deadline)
            except exception.DeviceInUse:
                # Its epoch has ended the plug. Without a record nothing has changed.
                recorded = {each.lease for each in self._helper.recorded(deadline)}
                moved = verification.moved(self._root, lease)
                if not is_plug or lease.programming or moved or lease.uuid in recorded:
                    raise
                has_records = False
        if lease.is_the_guests:
            self._release_by_plugin(lease, deadline, is_plug)
            # The record permits the steps of the release. A reboot leaves its copy.
            if lease.owes_release and not lease.owes_erase:
                self._helper.forget(lease.uuid, lease.functions, lease.epoch, deadline)
            elif lease.owes_release and has_records:
                self._restore(lease.without(Action.RELEASE), deadline)

    def _release_by_plugin(self, lease: Lease, deadline: float, is_plug: bool) -> None:
        plugin_steps.release(
            self._plugins, self._helper, lease, deadline, self._root, is_plug=is_plug
        )

    def _remove_mdev(
        self, lease: Lease, slot: MdevSlot, deadline: float, is_plug: bool
    ) -> None:
        """Undo :meth:`_prepare_mdev`."""
        if not lease.is_the_guests:
            return
        has_records = not verification.given_back_by_reboot(self._root, lease, deadline)
        if has_records:
            self._helper.remove_mdev(lease, slot, deadline)
        self._release_by_plugin(lease, deadline, is_plug)
        if has_records and lease.owes_release:
            self._helper.forget_mdev(lease, slot, deadline)

    def _is_rebound(self, lease: Lease, deadline: float) -> bool:
        """Return whether programming may have left a host's card between drivers."""
        if lease.programming is None or lease.is_half_programmed:
            return lease.is_half_programmed
        unverified = self._store.until(deadline).recorded_state().unverified_regions
        return lease.programming.region in unverified and not verification.moved(
            self._root, lease
        )

    def _restore(self, lease: Lease, deadline: float) -> None:
        """Restore the functions that are present and have not been exchanged."""
        for remaining_attempts in reversed(range(len(lease.prior) + 1)):
            rest = verification.remaining(self._root, lease)
            gone = set(lease.functions).difference(rest.functions)
            try:
                if gone and not lease.owes_erase:
                    self._helper.forget(lease.uuid, sorted(gone), lease.epoch, deadline)
                if rest.prior:
                    self._helper.give_back(rest, deadline)
                return
            except (exception.DeviceGone, exception.DeviceChanged) as error:
                # A function was removed just now; restore the others.
                if not remaining_attempts:
                    raise
                LOG.warning("skipping the restore of a removed function: %s", error)

    # -- settling ----------------------------------------------------------

    def settle(
        self, consumer: str, deadline: float, failed: Sequence[Lease] = ()
    ) -> ReleaseResult:
        """Release a consumer's leases that a crash or a failure left unfinished.

        An uncommitted plug is rolled back; an unplug that has begun continues. The
        caller holds the consumer's lock.

        :param failed: leases of a failed plug, released in any state: the commit
            may have succeeded although the disk reported an error.
        """
        void = {lease.uuid for lease in failed}
        unfinished = [
            lease
            for lease in self._store.until(deadline).leases(consumer)
            # A lease that has taken over a request is the only one that serves it.
            if lease.is_unfinished or (lease.uuid in void and not lease.arq)
        ]
        if not unfinished:
            return ReleaseResult((), ())
        # The log already has the failure that a retry repeats.
        is_new = not all(lease.has_failed_release for lease in unfinished)
        LOG.log(
            logging.WARNING if is_new else logging.DEBUG,
            "settling %d unfinished lease(s) of consumer %s",
            len(unfinished),
            unfinished[0].consumer_title,
        )
        return self.release(unfinished, deadline)

    def replay(self, deadline: float) -> None:
        """Settle each consumer with unfinished leases, unless its lock is held."""

        def settle(consumer: str) -> None:
            for lease, error in self.settle_if_free(consumer, deadline).failed:
                title = lease.consumer_title
                LOG.error("%s stays leased to %s: %s", lease.address, title, error)

        deadlines.side_by_side(self.unfinished(deadline), settle, _WORKERS)

    def unfinished(self, deadline: float) -> list[str]:
        """Return the consumers with unfinished leases, sorted."""
        leases = self._store.until(deadline).leases()
        return sorted({lease.consumer for lease in leases if lease.is_unfinished})

    def settle_if_free(self, consumer: str, deadline: float) -> ReleaseResult:
        """Settle a consumer, unless an operation on it is in progress.

        Errors are logged: one bad record does not stop the others (CVE-2022-37394).
        """
        try:
            with self._locks.try_hold([consumer_lock(consumer)]) as is_held:
                if is_held:
                    return self.settle(consumer, deadline)
                LOG.debug("an operation on consumer %s is in progress", consumer)
        except exception.OsAccError as error:
            LOG.error("cannot settle consumer %s: %s", consumer, error)
        return ReleaseResult((), ())

    # -- steps of both directions ------------------------------------------

    def _with_epoch(
        self, step: Callable[[Lease, float], None], lease: Lease, deadline: float
    ) -> Lease:
        """Run a privileged step; repeat it once if its epoch is refused."""
        try:
            step(lease, deadline)
        except client.EpochRefused as error:
            (lease,) = self._with_accepted_epoch([lease], error, deadline)
            step(lease, deadline)
        return lease

    def _with_accepted_epoch(
        self, leases: Sequence[Lease], error: client.EpochRefused, deadline: float
    ) -> tuple[Lease, ...]:
        """Return the leases, those of the refusing device with an accepted epoch.

        After the loss of a store, epochs continue above those that the helper has
        seen; epochs issued while the clock was ahead come back to the present.
        """
        found = [each for each in leases if verification.is_about(each, error.address)]
        fresh = self._store.until(deadline).replace(found or leases, error.accepted)
        renewed = {lease.uuid: lease for lease in fresh}
        return tuple(renewed.get(lease.uuid, lease) for lease in leases)
