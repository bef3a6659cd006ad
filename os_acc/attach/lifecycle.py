# SPDX-License-Identifier: Apache-2.0

"""State transitions of leases: establish them, prepare them again, release them.

The lease is its own journal. Before a device is touched, the lease records the
prior binding of each function. A rollback restores what is recorded and does not
undo steps one by one, so it can be interrupted and repeated at any point. The
caller of each method that changes leases holds the consumer's lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

from oslo_log import log

from os_acc import exception
from os_acc.attach import (
    Services,
    device_state,
    devices,
    erasure,
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
from os_acc.helper import client
from os_acc.host import attributes
from os_acc.objects.device import Provider
from os_acc.objects.device_spec import DeviceSpec
from os_acc.objects.lease import Lease, LeaseState, latest
from os_acc.objects.records import RecordedState

LOG = log.getLogger(__name__)


def held(leases: Sequence[Lease]) -> list[Lease]:
    """Return the leases, marked as held."""
    return [dataclasses.replace(each, state=LeaseState.HELD) for each in leases]


class Lifecycle:
    """Change the state of leases, on disk and on the host.

    :param offered: returns the devices that the host offers, by its latest scan.
    :param nova: the functions that Nova's options name.
    :ivar devices: prepares devices, and gives them back.
    :ivar eraser: continues the erasure of released devices.
    """

    def __init__(
        self,
        services: Services,
        programmer: programming.Programmer,
        offered: Callable[[float], Iterable[Provider]],
        nova: DeviceSpec,
    ) -> None:
        self._services = services
        self._root = services.root
        self._store = services.store
        self._helper = services.helper
        self._plugins = services.plugins
        self._programmer = programmer
        self.eraser = erasure.Eraser(services, offered, nova)
        self.devices = devices.Devices(services, self.eraser)

    # -- preparing: a new request ------------------------------------------

    def establish(
        self,
        leases: Sequence[Lease],
        recorded: RecordedState,
        deadline: float,
        jobs: Sequence[region_requirements.ProgrammingJob] = (),
        committed: Callable[[Sequence[Lease]], Sequence[Lease]] = held,
    ) -> tuple[Lease, ...]:
        """Prepare the devices of new leases: all of them, or none.

        :param recorded: the records that the selection of devices considered.
        :param jobs: regions to program; the caller holds the locks of their cards.
        :param committed: returns the leases to record in one transaction, once the
            devices of the new ones are ready.
        :returns: the leases that were recorded then.
        :raises StoreReplaced: the store has been replaced since.
        :raises OsAccError: the error of the step that failed. The host is as it
            was before, except for what the notes of the error name.
        """
        store = self._store.until(deadline)
        plugin_steps.check_loaded(self._plugins, leases)
        # Before the intent: the recovery of a crash would wait for the process.
        verification.check_free(self._root, self._helper, leases, deadline)
        # 1. Record the intent. Undo: delete it, since no device is touched yet.
        intents = store.add(
            plugin_steps.with_actions(self._plugins, leases), recorded.store
        )
        try:
            verification.check_unchanged(self._root, intents, deadline)
            device_state.check_new(self._root, intents, recorded.leases)
        except BaseException:
            store.delete(intents)
            raise
        try:
            # 2. Program the regions. Undo: none; a region keeps its contents.
            programmed = self._programmed(intents, jobs, deadline)
            # 3. Call the plugins. Undo: try_give_back().
            prepared = self.devices.prepare(programmed, deadline)
            # 4. Take the devices, and verify their groups. Undo: try_give_back().
            ready = self.devices.take(prepared, deadline)
            # 5. Commit.
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
                leases = self._services.accepted(leases, error, deadline)
        return self._programmer.program(leases, jobs, deadline)

    def _roll_back(
        self, intents: Sequence[Lease], cause: BaseException, deadline: float
    ) -> None:
        """Release the leases of a failed plug; add failures to its error as notes."""
        # A rollback needs time of its own: the plug may have used up its time.
        deadline = max(deadline, time.monotonic() + self._helper.write_timeout)
        try:
            failed = self.release(self._unfinished(intents, deadline), deadline).failed
        except exception.OsAccError as error:
            if not is_refused_by_store(error):
                cause.add_note(f"cannot roll back: {error}")
                return
            # Either the disk is full: the recorded intent still says what to restore.
            # Or another plug leased the device in a new store: the helper decides.
            cause.add_note(f"cannot record the rollback: {error}")
            plugs = {lease.uuid for lease in intents}
            ended = self.devices.try_give_back(intents, deadline, plugs)
            failed = tuple((each, why) for each, why in ended if why is not None)
        for lease, why in failed:
            cause.add_note(f"cannot give {lease.address} back: {why}")

    def _unfinished(self, intents: Sequence[Lease], deadline: float) -> list[Lease]:
        """Return the unfinished leases of a consumer whose plug has failed.

        The intents are returned even if they are held: a commit may have succeeded
        although the disk reported an error. Intents that the store has lost are
        recorded again, so that a crash is survived.
        """
        store = self._store.until(deadline)
        recorded = store.leases(intents[0].consumer)
        known = {each.uuid for each in recorded}
        void = {each.uuid for each in intents}
        if lost := [each for each in intents if each.uuid not in known]:
            recorded = (*recorded, *store.add(lost))
        return [
            each
            for each in recorded
            # A lease that has taken over a request is the only one that serves it.
            if each.is_unfinished or (each.uuid in void and not each.arq)
        ]

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
        broken = [each for each in leases if not device_state.holds(self._root, each)]
        if not broken:
            return leases
        # 1. Record the present bindings, and the outstanding actions of a newer plugin.
        refreshed = [
            device_state.refreshed(self._root, each, deadline) for each in broken
        ]
        fresh = self._store.until(deadline).replace(
            plugin_steps.with_actions(self._plugins, refreshed)
        )
        # A guest that the host itself has started may use its device already.
        idle = [
            each
            for each in fresh
            if not each.is_the_guests or not device_state.holds(self._root, each)
        ]
        # 2. Check that the plugins can prepare the devices again, that the host does
        #    not use them, and that they have power.
        plugin_steps.check_loaded(self._plugins, idle)
        verification.check_unused(
            self._root, [each for each in idle if each.is_the_guests]
        )
        powered = verification.places(idle)
        verification.read_prior(self._root, (), deadline, powered)
        # 3. Restore drivers that read regions. A process killed in an earlier
        #    attempt may have left a function without its driver.
        idle = [
            self._services.with_epoch(self.devices.restore, lease, deadline)
            if lease.programming is not None
            and (lease.is_the_guests or not device_state.moved(self._root, lease))
            else lease
            for lease in idle
        ]
        with self._programmer.plan_again(idle, deadline) as jobs:
            # 4. Program regions that have lost their contents.
            programmed = self._programmed(idle, jobs, deadline)
            # 5. Prepare and take the devices, as for a new request.
            prepared = self.devices.prepare(programmed, deadline)
            ready = self.devices.take(prepared, deadline)
            # 6. Record that devices and regions are right in this boot.
            this_boot = attributes.boot_id(self._root)
            verified = [
                device_state.verified(dataclasses.replace(each, boot_id=this_boot))
                for each in ready
                if each.programming or each.boot_id != this_boot
            ]
            if verified:
                ready = latest(ready, self._store.until(deadline).replace(verified))
        return latest(leases, (*fresh, *ready))

    # -- giving back -------------------------------------------------------

    def release(self, leases: Sequence[Lease], deadline: float) -> ReleaseResult:
        """Restore the prior bindings of devices, and delete their leases.

        An interrupted release is repeated from step 1 (:meth:`settle`). It counts as
        done once the device is back; :class:`.Eraser` then erases the device.
        """
        store = self._store.until(deadline)
        # 1. Record the begin. The reason of an earlier attempt stays: it reserves
        #    the unit.
        recorded = self.eraser.at_release(leases, deadline)
        begun = store.replace([lease.releasing() for lease in recorded])
        # 2. Give each device back.
        plugs = device_state.begun_plugs(self._root, leases)
        ended = self.devices.try_give_back(begun, deadline, plugs)
        done = tuple(lease for lease, error in ended if error is None)
        failed = tuple((lease, error) for lease, error in ended if error is not None)
        # 3. Delete the leases of devices that were given back, or hand the devices
        #    over to their erasure.
        free = [lease for lease in done if not lease.needs_erase]
        if free:
            store.delete(free)
        if len(free) < len(done):
            store.delete([each for each in done if each.needs_erase], to_erase=True)
        # 4. Record why the others were not.
        return ReleaseResult(done, record_failures(failed, store))
