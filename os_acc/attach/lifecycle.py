# SPDX-License-Identifier: Apache-2.0

"""What happens to leases: made ready, given back, settled after a crash.

The journal is the lease itself. It says, before anything is touched, what
each function was bound to; going back means restoring just that, which can
be repeated. Whoever changes a lease's devices holds its consumer's lock.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import programming, region_requirements, verification
from os_acc.attach.services import Services
from os_acc.helper import client
from os_acc.objects.device import AttachHandle
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.request import AttachTarget
from os_acc.plugins import base
from os_acc.store import AlreadyLeased, Store
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

_WORKERS = 8
#: Causes that can pass without an operator: the lease stays unfinished, and its
#: release is retried. The manual lists them (doc/source/admin/operations.rst).
_WAITS = (
    exception.DeviceInUse,
    exception.DeviceStuck,
    exception.HelperLost,
    exception.HelperUnavailable,
    exception.LockTimeout,
    exception.StateUnavailable,
    client.EpochRefused,
)
#: These can pass where something has run out for the moment, and only there.
_MAY_PASS = (exception.HostStepFailed, exception.PluginFailed)


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The leases of a release that ended, and those that are left.

    :ivar failed: with the cause, and as they are recorded now.
    """

    done: tuple[Lease, ...]
    failed: tuple[tuple[Lease, exception.OsAccError], ...]

    def failure(self) -> exception.DevicesUnreleased:
        """That some were not; its cause is why the first of them was not."""
        whose = " and ".join(sorted({lease.consumer for lease, _ in self.failed}))
        reasons = "; ".join(str(error) for _, error in self.failed)
        error = exception.DevicesUnreleased(
            f"{len(self.failed)} accelerator(s) of {whose} are not released: {reasons}",
            released=[str(lease.address) for lease in self.done],
            unreleased=[(str(lease.address), why) for lease, why in self.failed],
            hint=self._hint(),
        )
        error.__cause__ = self.failed[0][1]
        return error

    def _hint(self) -> str:
        quarantined = [
            lease for lease, _ in self.failed if lease.state is LeaseState.QUARANTINED
        ]
        if not quarantined:
            return "the service retries this by itself; or unplug again"
        ways = "; ".join(
            f"os-acc device release {lease.address}" for lease in quarantined
        )
        return f"repair the cause, then run: {ways}"


class Lifecycle:
    """Moves leases from one state to the next, on disk and on the host."""

    def __init__(self, services: Services, programmer: programming.Programmer) -> None:
        self._root = services.root
        self._store = services.store
        self._locks = services.locks
        self._helper = services.helper
        self._plugins = services.plugins
        self._programmer = programmer

    # -- making ready ------------------------------------------------------

    def establish(
        self,
        leases: Sequence[Lease],
        deadline: float,
        jobs: Sequence[region_requirements.ProgrammingJob] = (),
        seen: str = "",
    ) -> tuple[Lease, ...]:
        """Take the devices of new leases to vfio-pci; all, or none.

        1. intent on disk, 2. program, 3. nobody holds them, 4. the plugin's
        own step, 5. bind, 6. prove, 7. commit. Going back is :meth:`release`;
        a region stays as it is programmed.

        :param jobs: regions to be programmed; whoever calls has their cards.
        :param seen: the store by whose leases the devices were chosen.
        :raises StoreReplaced: there is another one by now.
        :raises OsAccError: as the step that failed; the host is as it was, or
            the error's notes say what is not.
        """
        store = self._store.until(deadline)
        intents = store.add(leases, seen)
        try:
            verification.check_unchanged(self._root, intents, deadline)
        except BaseException:
            # Nothing has been touched yet; and what these say of the devices
            # is not what to restore.
            store.delete(intents)
            raise
        try:
            programmed = self._programmed(intents, jobs, deadline)
            ready = deadlines.side_by_side(
                programmed, lambda each: self._prepare(each, deadline), _WORKERS
            )
            return store.replace(
                [dataclasses.replace(each, state=LeaseState.HELD) for each in ready]
            )
        except BaseException as error:
            # A person's Ctrl-C, too, leaves no device half-way.
            self._go_back(intents, error, deadline)
            raise

    def reestablish(
        self, leases: Sequence[Lease], deadline: float
    ) -> tuple[Lease, ...]:
        """Make devices of held leases ready again, where they are not.

        After a host reboot what is recorded about bindings is void: it is
        read and recorded anew before anything is touched. A device of which the
        host has made sure at boot that it is on vfio-pci is taken back, where it
        has to hold what somebody has asked for: nobody else can read that.

        :raises OsAccError: as the step that failed; the leases stay.
        """
        broken = [each for each in leases if not verification.holds(self._root, each)]
        if not broken:
            return tuple(leases)
        fresh = self._store.until(deadline).replace(
            [verification.refreshed(self._root, each, deadline) for each in broken]
        )
        # A guest that the host itself has started may be using it by now.
        idle = [
            each
            for each in fresh
            if not each.is_the_guests or not verification.holds(self._root, each)
        ]
        verification.check_unused(
            self._root, [each for each in idle if each.is_the_guests]
        )
        # A process that was killed half-way has left those with a region without
        # the driver that shows it.
        idle = [
            self._sent(self._restore, lease, deadline)
            if lease.programming is not None
            and (lease.is_the_guests or not verification.moved(self._root, lease))
            else lease
            for lease in idle
        ]
        with self._programmer.restored(idle, deadline) as plan:
            programmed = self._programmed(plan.leases, plan.jobs, deadline)
            ready = deadlines.side_by_side(
                programmed, lambda each: self._prepare(each, deadline), _WORKERS
            )
            ready = self._proved(ready, deadline)
        renewed = {lease.uuid: lease for lease in (*fresh, *ready)}
        return tuple(renewed.get(lease.uuid, lease) for lease in leases)

    # -- giving back -------------------------------------------------------

    def release(self, leases: Sequence[Lease], deadline: float) -> ReleaseResult:
        """Give devices back to what they were bound to, and forget them.

        A lease whose release fails for a cause that can pass stays
        ``releasing``, with that cause as its reason. Any other cause
        quarantines it.
        """
        store = self._store.until(deadline)
        # A reason from an earlier attempt stays: the unit is reserved meanwhile.
        begun = store.replace([_begun(lease) for lease in leases])
        ended = deadlines.side_by_side(
            begun, lambda each: self._try_give_back(each, deadline), _WORKERS
        )
        done = tuple(lease for lease, error in ended if error is None)
        failed = tuple((lease, error) for lease, error in ended if error is not None)
        if done:
            store.delete(done)
        return ReleaseResult(done, self._recorded_failures(failed, store))

    def settle(
        self, consumer: str, deadline: float, failed: Sequence[Lease] = ()
    ) -> ReleaseResult:
        """Finish what a dead process, or an earlier failure, left of a consumer.

        An uncommitted plug goes back; a begun unplug goes on. The caller
        holds the consumer's lock.

        :param failed: leases of a plug that failed: they go back in any state.
            A commit may have happened although the disk then refused.
        """
        void = {lease.uuid for lease in failed}
        left = [
            lease
            for lease in self._store.until(deadline).leases(consumer)
            if lease.is_unfinished or lease.uuid in void
        ]
        if not left:
            return ReleaseResult((), ())
        # A retry repeats what the log has already.
        is_new = not all(lease.has_failed_release for lease in left)
        LOG.log(
            logging.WARNING if is_new else logging.DEBUG,
            "settling %d unfinished lease(s) of consumer %s",
            len(left),
            consumer,
        )
        return self.release(left, deadline)

    def replay(self, deadline: float) -> None:
        """Settle every consumer whose owner is gone; leave the others alone."""

        def settle(consumer: str) -> None:
            for lease, error in self.settle_if_free(consumer, deadline).failed:
                LOG.error("%s stays leased: %s", lease.address, error)

        deadlines.side_by_side(self.unfinished(deadline), settle, _WORKERS)

    def unfinished(self, deadline: float) -> list[str]:
        """The consumers of leases on which an operation has begun and not ended."""
        leases = self._store.until(deadline).leases()
        return sorted({lease.consumer for lease in leases if lease.is_unfinished})

    def settle_if_free(self, consumer: str, deadline: float) -> ReleaseResult:
        """Settle a consumer, unless an operation on it is under way.

        An error is logged: one record never stops the rest (CVE-2022-37394's
        lesson).
        """
        try:
            with self._locks.try_hold([consumer_lock(consumer)]) as mine:
                if mine:
                    return self.settle(consumer, deadline)
                LOG.debug("an operation on consumer %s is under way", consumer)
        except exception.OsAccError as error:
            LOG.error("consumer %s is left unsettled: %s", consumer, error)
        return ReleaseResult((), ())

    # -- one lease ---------------------------------------------------------

    def _programmed(
        self,
        leases: Sequence[Lease],
        jobs: Sequence[region_requirements.ProgrammingJob],
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Step 2, for all of them; each card may refuse an epoch once."""
        for _ in {job.region.card for job in jobs}:
            try:
                return self._programmer.program(leases, jobs, deadline)
            except client.EpochRefused as error:
                leases = self._caught_up(leases, error, deadline)
        return self._programmer.program(leases, jobs, deadline)

    def _prepare(self, lease: Lease, deadline: float) -> Lease:
        """Steps 3 to 6 for one accelerator; a host's has none but the proof."""
        if not lease.is_the_guests:
            lease = self._sent(self._helper.reserve, lease, deadline)
            if lease.attach_target is AttachTarget.HOST:
                verification.prove_driven(self._root, lease)
            return lease
        self._helper.check_free(lease.members, deadline)
        self._plugin_step(lease, lambda plugin: plugin.prepare, deadline)
        if (region := lease.guest_writable) is not None:
            # Whoever has died after this has not died before the guest had it.
            self._store.until(deadline).mark_region_guest_writable(region.key)
        lease = self._sent(self._helper.take, lease, deadline)
        verification.prove(self._root, lease)
        return lease

    def _sent(
        self, step: Callable[[Lease, float], None], lease: Lease, deadline: float
    ) -> Lease:
        """Take a privileged step, once more with an epoch that is accepted."""
        try:
            step(lease, deadline)
        except client.EpochRefused as error:
            (lease,) = self._caught_up([lease], error, deadline)
            step(lease, deadline)
        return lease

    def _proved(self, ready: Sequence[Lease], deadline: float) -> list[Lease]:
        """Record of those with regions that these are right in this boot."""
        proved = {
            lease.uuid: verification.proved(lease)
            for lease in ready
            if lease.programming
        }
        if proved:
            store = self._store.until(deadline)
            proved = {lease.uuid: lease for lease in store.replace(proved.values())}
        return [proved.get(lease.uuid, lease) for lease in ready]

    def _try_give_back(
        self, lease: Lease, deadline: float
    ) -> tuple[Lease, exception.OsAccError | None]:
        try:
            try:
                self._give_back(lease, deadline)
            except client.EpochRefused as error:
                (lease,) = self._caught_up([lease], error, deadline)
                self._give_back(lease, deadline)
        except exception.OsAccError as error:
            return lease, error
        return lease, None

    def _give_back(self, lease: Lease, deadline: float) -> None:
        if not lease.is_the_guests and not self._is_rebound(lease, deadline):
            self._helper.forget(lease.uuid, lease.members, lease.epoch, deadline)
            return
        if not verification.given_back_by_reboot(self._root, lease):
            self._restore(lease, deadline)
        if lease.is_the_guests:
            self._plugin_step(lease, lambda plugin: plugin.release, deadline)

    def _is_rebound(self, lease: Lease, deadline: float) -> bool:
        """Whether a programming may have left a host's card between two drivers."""
        if lease.programming is None or lease.is_half_programmed:
            return lease.is_half_programmed
        doubts = self._store.until(deadline).recorded_state().unverified_regions
        return lease.programming.region in doubts and not verification.moved(
            self._root, lease
        )

    def _restore(self, lease: Lease, deadline: float) -> None:
        """Give back the functions that are still there, and still the same."""
        for others in reversed(range(len(lease.prior) + 1)):
            rest = verification.remaining(self._root, lease)
            gone = set(lease.members).difference(rest.members)
            try:
                if gone:
                    self._helper.forget(lease.uuid, sorted(gone), lease.epoch, deadline)
                if rest.prior:
                    self._helper.give_back(rest, deadline)
                return
            except (exception.DeviceGone, exception.DeviceChanged) as error:
                # Pulled out at this moment: the others have yet to go back.
                if not others:
                    raise
                LOG.warning("%s; nothing of it is restored", error)

    def _caught_up(
        self, leases: Sequence[Lease], error: client.EpochRefused, deadline: float
    ) -> tuple[Lease, ...]:
        """The leases, those of the device that refused with an accepted epoch.

        A store that was lost has to count on from where it had been. One that
        has counted far ahead, while the clock was wrong, has to come back.
        """
        refused = [each for each in leases if _is_about(each, error.address)]
        store = self._store.until(deadline)
        fresh = store.replace(refused or leases, error.accepted)
        renewed = {lease.uuid: lease for lease in fresh}
        return tuple(renewed.get(lease.uuid, lease) for lease in leases)

    def _plugin_step(
        self,
        lease: Lease,
        step: Callable[[base.PluginBase], Callable[[AttachHandle], None]],
        deadline: float,
    ) -> None:
        plugin = self._plugins.get(lease.plugin)
        if plugin is not None:
            deadlines.left(deadline)
            seconds = deadlines.patience(deadline, math.inf)
            self._plugins.call(plugin, seconds, step(plugin), _handle(lease))

    # -- several -----------------------------------------------------------

    def _go_back(
        self, intents: Sequence[Lease], cause: BaseException, deadline: float
    ) -> None:
        """Undo a plug; what cannot be undone now is told with the cause."""
        # Going back has to have time, also where the plug ran out of it.
        deadline = max(deadline, time.monotonic() + self._helper.write_timeout)
        try:
            self._recall(intents, deadline)
            failed = self.settle(intents[0].consumer, deadline, intents).failed
        except exception.OsAccError as error:
            if not _is_refused_by_store(error):
                cause.add_note(f"going back failed as well: {error}")
                return
            # No space, say: but the intent is there and says what to restore, to
            # the next start as well. Or another plug has a lease of it in a new
            # store: the helper knows which of the two has taken it.
            cause.add_note(f"that it went back could not be recorded: {error}")
            ended = deadlines.side_by_side(
                intents, lambda each: self._try_give_back(each, deadline), _WORKERS
            )
            failed = tuple((each, why) for each, why in ended if why is not None)
        for lease, why in failed:
            cause.add_note(f"{lease.address} could not be given back: {why}")

    def _recall(self, intents: Sequence[Lease], deadline: float) -> None:
        """Record intents again that the store has lost meanwhile.

        Without them nobody would know any more what to restore.
        """
        store = self._store.until(deadline)
        known = {lease.uuid for lease in store.leases(intents[0].consumer)}
        lost = [lease for lease in intents if lease.uuid not in known]
        if lost:
            store.add(lost)

    @staticmethod
    def _recorded_failures(
        failed: Sequence[tuple[Lease, exception.OsAccError]], store: Store
    ) -> tuple[tuple[Lease, exception.OsAccError], ...]:
        """Record why leases are not released; those that have to wait for a person.

        A cause that is on record already is neither written nor logged again.
        """
        judged = [(_judged(lease, error), error) for lease, error in failed]
        news = [
            new for (new, _), (old, _) in zip(judged, failed, strict=True) if new != old
        ]
        for lease in news:
            if lease.state is LeaseState.QUARANTINED:
                LOG.error("%s is quarantined: %s", lease.address, lease.reason)
            else:
                LOG.info("%s is not released yet: %s", lease.address, lease.reason)
        written = {lease.uuid: lease for lease in store.replace(news)} if news else {}
        return tuple((written.get(each.uuid, each), error) for each, error in judged)


def is_transient(error: exception.OsAccError) -> bool:
    """Whether a release that failed for this cause is retried."""
    return isinstance(error, _WAITS) or (
        isinstance(error, _MAY_PASS) and error.retryable
    )


def _is_refused_by_store(error: exception.OsAccError) -> bool:
    if isinstance(error, exception.StateUnavailable):
        return error.reason is not exception.StateReason.UNUSABLE
    return isinstance(error, AlreadyLeased)


def _judged(lease: Lease, error: exception.OsAccError) -> Lease:
    state = lease.state if is_transient(error) else LeaseState.QUARANTINED
    return dataclasses.replace(lease, state=state, reason=str(error))


def _begun(lease: Lease) -> Lease:
    """The lease as its release begins.

    A plug that programs a card for the host stays ``preparing``: after a crash
    that tells it from a device that the host has used, and moved, since.
    """
    state = LeaseState.PREPARING if lease.is_half_programmed else LeaseState.RELEASING
    return dataclasses.replace(lease, state=state)


def _is_about(lease: Lease, address: str) -> bool:
    """Whether a function is one of a lease, or the card of its region."""
    addresses = {*map(str, lease.members)}
    if lease.programming is not None:
        addresses.add(str(lease.programming.region.card))
    return address in addresses


def _handle(lease: Lease) -> AttachHandle:
    return AttachHandle(
        lease.address, lease.members, lease.iommu_group, lease.numa_node
    )
