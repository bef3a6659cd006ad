# SPDX-License-Identifier: Apache-2.0

"""The device of a lease: prepared for its user, and given back.

:meth:`Devices.restore` undoes :meth:`Devices.take`, and the plugin's ``release`` undoes
:meth:`Devices.prepare`.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import Services, device_state, erasure, plugin_steps, verification
from os_acc.helper import client
from os_acc.host import mdev
from os_acc.inventory import migration
from os_acc.objects.lease import Action, Lease, LeaseState, latest
from os_acc.objects.mdev import MdevType
from os_acc.objects.migration import MigrationSupport
from os_acc.privsep.outcome import CallResult
from os_acc.store import state_files

LOG = log.getLogger(__name__)


class Devices:
    """Change the host for leases; the caller holds the consumers' locks."""

    def __init__(self, services: Services, eraser: erasure.Eraser) -> None:
        self._services = services
        self._root = services.root
        self._store = services.store
        self._helper = services.helper
        self._eraser = eraser

    def prepare(self, leases: Sequence[Lease], deadline: float) -> tuple[Lease, ...]:
        """Let plugins prepare devices; :meth:`give_back` undoes it.

        :raises OsAccError: the error of the step that failed.
        """
        # Check again after a programming that no process holds them.
        again = [
            each
            for each in leases
            if each.is_the_guests
            and (each.programming or each.state is not LeaseState.PREPARING)
        ]
        verification.check_free(self._root, self._helper, again, deadline)
        return tuple(
            deadlines.side_by_side(leases, lambda each: self._prepare(each, deadline))
        )

    def take(self, leases: Sequence[Lease], deadline: float) -> tuple[Lease, ...]:
        """Take prepared devices from the host; :meth:`restore` undoes it.

        :raises OsAccError: the error of the step that failed.
        """
        guests = [each for each in leases if each.is_the_guests]
        for each in guests:
            verification.check_undivided(self._root, each)
        taken: Sequence[Lease] = [each for each in guests if each.slot is None]
        asked = self._unanswered(taken)
        attempts = len(taken) + 1
        while taken:
            attempts -= 1
            try:
                answers = self._helper.take(taken, deadline, asked)
                self._note(asked, taken, answers)
                break
            except client.EpochRefused as error:
                # Each device may refuse its epoch once.
                if not attempts:
                    raise
                taken = self._services.accepted(taken, error, deadline)
        created = deadlines.side_by_side(
            [each for each in guests if each.slot is not None],
            lambda each: self._services.with_epoch(self._create, each, deadline),
        )
        ready = (*taken, *created)
        for each in ready:
            verification.check_viable(self._root, each)
        return latest(leases, ready)

    def _prepare(self, lease: Lease, deadline: float) -> Lease:
        if not lease.is_the_guests:
            return self._prepare_for_host(lease, deadline)
        lease = self._prepare_by_plugin(lease, deadline)
        if (region := lease.guest_writable) is not None:
            # Recorded before the guest can write: a crash may follow at any time.
            self._store.until(deadline).mark_region_guest_writable(region.key)
        return lease

    def _prepare_for_host(self, lease: Lease, deadline: float) -> Lease:
        if lease.slot is not None:
            return lease
        verification.check_driven(self._root, lease)
        if lease.needs_erase and lease.state is LeaseState.PREPARING:
            # After a reboot the host may use it already.
            lease = self._prepare_by_plugin(lease, deadline)
        return self._services.with_epoch(self._helper.reserve, lease, deadline)

    def _prepare_by_plugin(self, lease: Lease, deadline: float) -> Lease:
        def prepare(lease: Lease, deadline: float) -> None:
            plugin_steps.prepare(self._services, lease, deadline)
            if erasure.lacks_number(lease):
                # Without the erasure: until its number is known, it may be another
                # guest's device, which must not be erased.
                self._helper.reserve(lease.without(Action.ERASE), deadline)

        lease = self._services.with_epoch(prepare, lease, deadline)
        return self._eraser.numbered(lease, deadline)

    def _unanswered(self, leases: Iterable[Lease]) -> dict[str, str]:
        """Return the subjects about which VFIO is to be asked, by UUID of the lease."""
        place = self._root, self._services.state_path
        found = {each.uuid: migration.unanswered(*place, each) for each in leases}
        return {uuid: subject for uuid, subject in found.items() if subject}

    def _note(
        self,
        asked: Mapping[str, str],
        leases: Iterable[Lease],
        answers: Iterable[CallResult],
    ) -> None:
        """Record what VFIO has answered about migration."""
        for lease, answer in zip(leases, answers, strict=True):
            if answer.step != "migration":
                continue
            if answer.errno:
                why = os.strerror(answer.errno)
                LOG.warning(
                    "VFIO does not say whether it migrates %s: %s", lease.address, why
                )
                continue
            support = MigrationSupport.parse(answer.observed)
            path = self._services.state_path
            state_files.record_migration(path, asked[lease.uuid], support)

    def _create(self, lease: Lease, deadline: float) -> None:
        """Create the mediated device of a lease.

        The scan has found capacity for it, which another tool may have used since. The
        error number of a parent without capacity is its driver's own: ENOSPC (mtty),
        EUSERS (mdpy).
        """
        slot = lease.slot
        assert slot is not None
        asked = self._unanswered([lease])
        try:
            asks = bool(asked)
            answer = self._helper.create_mdev(lease, slot, deadline, asks=asks)
            self._note(asked, [lease], [answer])
        except exception.HostStepFailed as error:
            is_refused = error.reason is exception.StepReason.REFUSED
            if not is_refused or _has_capacity(self._root, slot.type):
                raise
            raise exception.HostStepFailed(
                f"cannot create {slot}: {slot.type.parent} has no capacity left for "
                f"{slot.type.name}",
                address=str(slot),
                errno=error.errno,
                reason=exception.StepReason.NO_CAPACITY,
            ) from error

    def try_give_back(
        self, leases: Sequence[Lease], deadline: float, plugs: Container[str] = ()
    ) -> list[tuple[Lease, exception.OsAccError | None]]:
        """Give devices back; return the leases, each with the error of its failure.

        :param plugs: the UUIDs of leases whose plug in this boot is rolled back.
        """
        restored = self._restore_several(leases, deadline)

        def give_back(lease: Lease) -> tuple[Lease, exception.OsAccError | None]:
            if (failed := restored.get(lease.uuid)) is not None:
                return lease, failed
            kind = lease.uuid in plugs, lease.uuid in restored
            try:
                try:
                    self.give_back(lease, deadline, *kind)
                except client.EpochRefused as error:
                    (lease,) = self._services.accepted([lease], error, deadline)
                    self.give_back(lease, deadline, *kind)
            except exception.OsAccError as error:
                return lease, error
            return lease, None

        return deadlines.side_by_side(leases, give_back)

    def _restore_several(
        self, leases: Sequence[Lease], deadline: float
    ) -> Mapping[str, exception.OsAccError | None]:
        """Restore functions of several leases with one call, where they are present."""
        if len(leases) == 1:
            return {}
        present = [
            each
            for each in leases
            if (each.is_the_guests and each.slot is None)
            and device_state.remaining(self._root, each) == each
            and not device_state.given_back_by_reboot(self._root, each, deadline)
        ]
        try:
            return self._helper.give_back_several(present, deadline) if present else {}
        except exception.OsAccError as error:
            # The helper has not answered, and may still restore them.
            return {each.uuid: error for each in present}

    def give_back(
        self, lease: Lease, deadline: float, is_plug: bool, is_restored: bool
    ) -> None:
        """Undo :meth:`take` and :meth:`prepare`.

        A device that stays with the host is not rebound.
        """
        if not lease.is_the_guests and not self._is_rebound(lease, deadline):
            if lease.needs_release and lease.slot is None:
                plugin_steps.release(self._services, lease, deadline, is_plug)
            if not lease.needs_erase and lease.slot is None:
                self._forget(lease, deadline)
            return
        # Undo take(). A reboot may have done so.
        has_records = is_restored
        if not is_restored and not device_state.given_back_by_reboot(
            self._root, lease, deadline
        ):
            try:
                self.restore(lease, deadline)
                has_records = True
            except exception.DeviceInUse:
                if not is_plug or not self._is_untouched(lease, deadline):
                    raise
        if not lease.is_the_guests:
            return
        # Undo prepare().
        plugin_steps.release(self._services, lease, deadline, is_plug)
        # The record permits the steps of the release. A reboot leaves its copy.
        if lease.needs_release and not lease.needs_erase:
            if has_records or lease.slot is None:
                self._forget(lease, deadline)
        elif lease.needs_release and has_records:
            self.restore(lease.without(Action.RELEASE), deadline)

    def _is_untouched(self, lease: Lease, deadline: float) -> bool:
        """Return whether the plug of a device that is in use has changed nothing."""
        if lease.programming or lease.slot is not None:
            return False
        # Its epoch has ended the plug. Without a record nothing has changed.
        recorded = {each.lease for each in self._helper.recorded(deadline)}
        return lease.uuid not in recorded and not device_state.moved(self._root, lease)

    def _forget(self, lease: Lease, deadline: float) -> None:
        if lease.slot is None:
            self._helper.forget(lease.uuid, lease.functions, lease.epoch, deadline)
        else:
            self._helper.remove_mdev(lease, lease.slot, deadline, is_removed=True)

    def _is_rebound(self, lease: Lease, deadline: float) -> bool:
        """Return whether programming may have left a host's card between drivers."""
        if lease.programming is None or lease.is_half_programmed:
            return lease.is_half_programmed
        unverified = self._store.until(deadline).recorded_state().unverified_regions
        return lease.programming.region in unverified and not device_state.moved(
            self._root, lease
        )

    def restore(self, lease: Lease, deadline: float) -> None:
        """Restore the functions that are present and have not been exchanged.

        Of a mediated device: remove it.
        """
        if lease.slot is not None:
            self._helper.remove_mdev(lease, lease.slot, deadline)
            return
        for remaining_attempts in reversed(range(len(lease.prior) + 1)):
            rest = device_state.remaining(self._root, lease)
            gone = set(lease.functions).difference(rest.functions)
            try:
                if gone and not lease.needs_erase:
                    self._helper.forget(lease.uuid, sorted(gone), lease.epoch, deadline)
                if rest.prior:
                    self._helper.give_back(rest, deadline)
                return
            except (exception.DeviceGone, exception.DeviceChanged) as error:
                # A function was removed just now; restore the others.
                if not remaining_attempts:
                    raise
                LOG.warning("skipping the restore of a removed function: %s", error)


def _has_capacity(root: str, kind: MdevType) -> bool:
    """Return whether a parent has capacity for a type; also if it cannot be read."""
    try:
        found = mdev.read_type(root, kind)
    except exception.HostStepFailed:
        return True
    return found is None or found.available > 0
