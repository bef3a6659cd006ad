# SPDX-License-Identifier: Apache-2.0

"""What FPGA regions have to hold, and how they come to hold it.

A region is believed only by what its hardware says at that moment, and only
while no programming of it has begun without being proved: that is recorded
before the hardware is touched, and struck out after the reading back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import region_requirements as reqs
from os_acc.attach.region_requirements import ProgrammingJob, RegionRequirement
from os_acc.attach.services import Services
from os_acc.bitstreams import image_selection
from os_acc.bitstreams.library import Library
from os_acc.helper import client
from os_acc.host import pci, vfio
from os_acc.objects.image import Bitstream, BitstreamRequest, Image
from os_acc.objects.lease import Lease, RecordedState
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Programming, Region
from os_acc.objects.request import title
from os_acc.plugins import base
from os_acc.store.locks import device_lock

LOG = log.getLogger(__name__)

_T = TypeVar("_T")

_CARDS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedLease:
    """A lease that is about to be made, and what its group asks for.

    :ivar required: traits of its region, and of what that holds.
    """

    lease: Lease
    region: Region | None
    wish: BitstreamRequest | None
    required: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ProgrammingPlan:
    """Leases as they are to be recorded, and what has to be done for them."""

    leases: tuple[Lease, ...]
    jobs: tuple[ProgrammingJob, ...] = ()


class Programmer:
    """Programs regions for leases; see the top of this module."""

    def __init__(self, services: Services, images: Library) -> None:
        self._root = services.root
        self._store = services.store
        self._locks = services.locks
        self._helper = services.helper
        self._plugins = services.plugins
        self._images = images

    @contextlib.contextmanager
    def planned(
        self, drafts: Sequence[PlannedLease], instance_image: str, deadline: float
    ) -> Iterator[ProgrammingPlan]:
        """Find, fetch and verify what the drafts ask for; nothing is touched.

        While this lasts the cards are nobody else's, and the files stay.

        1. which image, 2. its file, 3. the cards' locks, 4. what the regions
        hold now, and who has them.

        :param instance_image: the id of what the guest boots from, or ''.
        :raises BitstreamError: there is no such bitstream, or it is refused.
        :raises RegionUnusable: a guest has the region, with something else.
        """
        if all(draft.region is None and draft.wish is None for draft in drafts):
            yield ProgrammingPlan(tuple(draft.lease for draft in drafts))
            return
        with contextlib.ExitStack() as kept:
            asked: list[RegionRequirement] = []
            for draft in drafts:
                wish, booted = self._wish(draft, instance_image, deadline)
                if draft.region is None:
                    continue
                bitstream = None
                if wish is not None and draft.region.interface_id is not None:
                    image = self._images.image_for(wish, draft.region, deadline)
                    bitstream = kept.enter_context(
                        self._images.fetched(image, deadline, region=draft.region)
                    )
                    image_selection.check_agreement(booted, bitstream)
                asked.append(
                    reqs.of_wish(
                        draft.lease, draft.region, wish, bitstream, draft.required
                    )
                )
            kept.enter_context(self._locks.hold(_locks_of(drafts), deadline))
            yield self._decided(drafts, asked, deadline)

    def program(
        self, leases: Sequence[Lease], jobs: Sequence[ProgrammingJob], deadline: float
    ) -> tuple[Lease, ...]:
        """Do what was planned; the leases say afterwards what is held.

        Several cards are programmed side by side, one region of a card after
        the other.

        :param leases: those of the plan, as they are recorded.
        :raises ProgrammingFailed: the hardware has not taken a bitstream.
        :raises HostError: the host refused a step.
        """
        recorded = {lease.uuid: lease for lease in leases}
        cards: dict[PciAddress, list[ProgrammingJob]] = {}
        for job in jobs:
            cards.setdefault(job.region.card, []).append(_renewed(job, recorded))
        for lease in leases:
            # To program a card may rebind it: the helper restores by its own record.
            if not cards.keys().isdisjoint(lease.members):
                self._helper.reserve(lease, deadline)
        ended = deadlines.side_by_side(
            list(cards.values()),
            lambda each: [(job, self._program(job, deadline)) for job in each],
            _CARDS_AT_ONCE,
        )
        for job, held in (each for card in ended for each in card):
            for lease in leases:
                if lease.stands_on(job.region):
                    recorded[lease.uuid] = _holding(recorded[lease.uuid], held)
        return tuple(recorded[lease.uuid] for lease in leases)

    @contextlib.contextmanager
    def restored(
        self, leases: Sequence[Lease], deadline: float
    ) -> Iterator[ProgrammingPlan]:
        """As :meth:`planned`, for leases whose regions may have lost all.

        :raises ProgrammingFailed: a region holds something else than the guest
            had, and nothing is recorded with which to program it.
        """
        drafts = [
            PlannedLease(
                lease, lease.programming.region if lease.programming else None, None
            )
            for lease in leases
        ]
        if all(draft.region is None for draft in drafts):
            yield ProgrammingPlan(tuple(leases))
            return
        with contextlib.ExitStack() as kept:
            kept.enter_context(self._locks.hold(_locks_of(drafts), deadline))
            lost = [each for each in leases if not self._is_held(each, deadline)]
            jobs: dict[str, ProgrammingJob] = {}
            for lease in lost:
                job = self._again(lease, kept, deadline)
                self._check_resting(job, leases, deadline)
                jobs.setdefault(job.region.key, job)
            yield ProgrammingPlan(tuple(leases), tuple(jobs.values()))

    # -- what is wanted ----------------------------------------------------

    def _wish(
        self, draft: PlannedLease, instance_image: str, deadline: float
    ) -> tuple[BitstreamRequest | None, Image | None]:
        """What is asked for, and the image of the guest if it was asked."""
        if draft.region is None or draft.region.interface_id is None:
            if draft.wish is None or reqs.is_fixed(draft.region, draft.wish):
                return draft.wish, None
            raise exception.RegionUnusable(
                f"{title(draft.lease.group)} asks for {draft.wish}, but "
                f"{draft.lease.address} cannot be programmed",
                hint="ask for a region with the trait CUSTOM_PROGRAMMABLE",
                reason=exception.RegionReason.NOT_PROGRAMMABLE,
            )
        if not instance_image:
            return draft.wish, None
        booted = self._images.booted(instance_image, draft.lease.consumer, deadline)
        return image_selection.merged(draft.wish, booted), booted

    def _decided(
        self,
        drafts: Sequence[PlannedLease],
        asked: Sequence[RegionRequirement],
        deadline: float,
    ) -> ProgrammingPlan:
        recorded_state = self._store.until(deadline).recorded_state()
        doubts = recorded_state.unverified_regions
        regions: dict[str, Region] = {}
        jobs: list[ProgrammingJob] = []
        for need in asked:
            if need.region.key in regions:
                continue
            now = self._read(need.lease.plugin, need.region, deadline)
            regions[now.key] = now
            if (
                reqs.is_silent(now)
                and self._plugin(need.lease.plugin).always_reports_function_id
            ):
                doubts = dataclasses.replace(doubts, keys=doubts.keys | {now.key})
            all_of_it = [each for each in asked if each.region.key == now.key]
            job = reqs.job(now, all_of_it, doubts)
            if job is not None:
                self._check_free(job, recorded_state)
                jobs.append(job)
            elif any(each.bitstream for each in all_of_it):
                LOG.info("%s holds already what is asked for", now)
        leases = {draft.lease.uuid: draft.lease for draft in drafts}
        for need in asked:
            leases[need.lease.uuid] = dataclasses.replace(
                need.lease, programming=need.asked(regions[need.region.key], doubts)
            )
        return ProgrammingPlan(tuple(leases.values()), tuple(jobs))

    def _check_free(self, job: ProgrammingJob, recorded_state: RecordedState) -> None:
        """No guest has a function of a region that is to hold something else.

        One of which no lease is known may be with a guest as well.

        :raises RegionUnusable: one has, or may have.
        """
        refused = f"{job.region} is not programmed with {job.bitstream.image}"
        for lease in recorded_state.leases:
            if lease.stands_on(job.region):
                raise exception.RegionUnusable(
                    f"{refused}: {lease.address} of it is leased to {lease.consumer}",
                    reason=exception.RegionReason.IN_USE,
                )
        own = {each for need in job.needs for each in need.lease.members}
        for address in sorted(set(job.region.pci_functions) - own):
            function = pci.read_function(self._root, address)
            if address in recorded_state.taken or (
                function is not None and vfio.is_vfio_driver(function.driver)
            ):
                raise exception.RegionUnusable(
                    f"{refused}: {address} of it may be in a guest's hands",
                    hint="see 'os-acc device list' for who has it",
                    reason=exception.RegionReason.IN_USE,
                )

    def _check_resting(
        self, job: ProgrammingJob, leases: Sequence[Lease], deadline: float
    ) -> None:
        """No other guest has begun to use a region since the host has booted.

        :raises RegionUnusable: one has been given a function of it.
        :raises DeviceInUse: one has begun without being given it.
        """
        own = {lease.uuid for lease in leases}
        for other in self._store.until(deadline).leases():
            if other.uuid in own or not other.stands_on(job.region):
                continue
            if other.programming and other.programming.boot_id == job.lease.boot_id:
                raise exception.RegionUnusable(
                    f"{job.region} does not hold image {job.bitstream.image} any "
                    f"more: {other.address} of it is leased to {other.consumer}",
                    reason=exception.RegionReason.IN_USE,
                )
            self._helper.check_free(other.members, deadline)

    # -- what is there -----------------------------------------------------

    def _call(
        self,
        plugin: base.PluginBase,
        deadline: float,
        function: Callable[..., _T],
        *args: object,
    ) -> _T:
        deadlines.left(deadline)
        seconds = deadlines.patience(deadline, math.inf)
        try:
            return self._plugins.call(plugin, seconds, function, *args)
        except exception.PluginFailed as error:
            # What the library's own steps raise is no fault of the plugin's.
            if isinstance(error.__cause__, exception.OsAccError):
                raise error.__cause__ from error.__cause__.__cause__
            raise

    def _plugin(self, name: str) -> base.PluginBase:
        plugin = self._plugins.get(name)
        if plugin is None:
            raise exception.PluginFailed(
                f"the plugin {name}, which knows the region, is not loaded",
                hint="see [os_acc] enabled_plugins, and the log for its failure",
            )
        return plugin

    def _read(self, name: str, region: Region, deadline: float) -> Region:
        """The region by what its hardware says now.

        :raises DeviceGone: it cannot be seen.
        :raises DeviceChanged: it is another one, or takes other bitstreams.
        """
        plugin = self._plugin(name)
        now = self._call(plugin, deadline, plugin.read_region, region)
        if now is None:
            raise exception.DeviceGone(
                f"{region} cannot be seen: its driver is not there",
                hint="see 'os-acc device list' for who has the card",
            )
        if now.key != region.key or not now.identity.may_be(region.identity):
            raise exception.DeviceChanged(f"{region} is now that of {now.identity}")
        if now.interface_id != region.interface_id:
            # Somebody has put another shell into the card meanwhile.
            raise exception.DeviceChanged(
                f"{region} takes what is built for {now.interface_id} by now; it was "
                f"{region.interface_id}",
                hint="choose among the providers again",
            )
        return now

    def _is_held(self, lease: Lease, deadline: float) -> bool:
        before = lease.programming
        if before is None:
            return True
        now = self._read(lease.plugin, before.region, deadline)
        doubts = self._store.until(deadline).recorded_state().unverified_regions
        if now in doubts or before.function_id not in (None, now.function_id):
            return False
        # Whoever could program it meanwhile is the guest itself.
        content = reqs.content(before, lease.boot_id)
        return not before.is_exact or doubts.contents.get(now.key) == content

    # -- programming -------------------------------------------------------

    def _again(
        self, lease: Lease, kept: contextlib.ExitStack, deadline: float
    ) -> ProgrammingJob:
        """The job that gives a guest back what its region has lost."""
        before = lease.programming
        assert before is not None
        if not before.image_id:
            raise exception.ProgrammingFailed(
                f"{before.region} does not hold {before.function_id or 'what it did'} "
                f"any more, which instance {lease.consumer} had",
                address=str(lease.address),
                hint="nothing was programmed for it: let the operator program it",
                reason=exception.ProgrammingReason.WRONG_FUNCTION,
            )
        bitstream = self._same_file(before, kept, deadline)
        return ProgrammingJob(before.region, (reqs.of_lease(lease, bitstream),))

    def _same_file(
        self, before: Programming, kept: contextlib.ExitStack, deadline: float
    ) -> Bitstream:
        """The file with which a region was programmed, and no other.

        After a power cut guests have to start before everything answers again.
        """
        try:
            image = self._images.about(before.image_id, deadline)
        except (exception.ImageNotFound, exception.ServiceUnavailable):
            cached = self._images.kept(_recorded(before), before.region, deadline)
            bitstream = kept.enter_context(cached)
            if bitstream is None:
                raise
            return bitstream
        if (image.hash_algo, image.hash_value) != (before.hash_algo, before.hash_value):
            raise exception.ImageUnusable(
                f"image {image} is another file than {before.region} had",
                hint="unplug the instance, and plug it anew",
                reason=exception.ImageReason.INVALID,
            )
        return kept.enter_context(
            self._images.fetched(image, deadline, region=before.region)
        )

    def _program(self, job: ProgrammingJob, deadline: float) -> Region:
        """1. nothing is known, 2. program, 3. read back, 4. it is known."""
        store, image = self._store.until(deadline), job.bitstream.image
        LOG.info("programming %s with image %s", job.region, image)
        before = store.mark_region_unverified(job.region.key, image.id)
        try:
            self._write(job, deadline)
        except exception.OsAccError as error:
            if reqs.is_untouched(error):
                store.restore_region(job.region.key, before)
            raise
        now = self._read(job.lease.plugin, job.region, deadline)
        if not all(need.is_served_by(now) for need in job.needs):
            functions = ", ".join(sorted(reqs.implemented(job.bitstream)))
            raise exception.ProgrammingFailed(
                f"{job.region} holds {now.function_id} after it was programmed with "
                f"image {image}, which is {functions}",
                address=str(job.region.card),
                reason=exception.ProgrammingReason.WRONG_FUNCTION,
            )
        store.mark_region_verified(job.region.key, job.content)
        return now

    def _write(self, job: ProgrammingJob, deadline: float) -> None:
        plugin, image = self._plugin(job.lease.plugin), job.bitstream.image
        steps = _Steps(self._helper, job.lease.epoch, deadline)

        def program(bitstream: Bitstream) -> None:
            self._call(plugin, deadline, plugin.program, job.region, bitstream, steps)

        try:
            program(job.bitstream)
        except exception.ImageUnusable as error:
            # The helper hashes it once more. It was sound when it was fetched.
            is_invalid = error.reason is exception.ImageReason.INVALID
            if not is_invalid or not self._images.forget(image, deadline):
                raise
            LOG.warning("the file of image %s was altered: it is fetched anew", image)
            with self._images.fetched(image, deadline, region=job.region) as again:
                program(again)


@dataclasses.dataclass(frozen=True, slots=True)
class _Steps:
    """See :class:`os_acc.plugins.base.PrivilegedSteps`."""

    helper: client.Helper
    epoch: int
    deadline: float

    def program_dfl_port(self, region: Region, bitstream: Bitstream) -> None:
        self.helper.program(region, bitstream, self.epoch, self.deadline)

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        self.helper.load_xclbin(region, bitstream, self.epoch, self.deadline)

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def _renewed(job: ProgrammingJob, recorded: Mapping[str, Lease]) -> ProgrammingJob:
    """The job for its leases as they are recorded by now."""
    return dataclasses.replace(
        job,
        needs=tuple(
            dataclasses.replace(need, lease=recorded[need.lease.uuid])
            for need in job.needs
        ),
    )


def _recorded(programming: Programming) -> Image:
    """An image of which nothing is known but what a lease says."""
    return Image(
        id=programming.image_id,
        name="",
        status="",
        visibility="",
        hidden=False,
        owner="",
        size=None,
        disk_format="",
        container_format="",
        hash_algo=programming.hash_algo,
        hash_value=programming.hash_value,
        tags=frozenset(),
        properties=MappingProxyType({}),
    )


def _locks_of(drafts: Sequence[PlannedLease]) -> set[str]:
    return {device_lock(draft.region.card) for draft in drafts if draft.region}


def _holding(lease: Lease, region: Region) -> Lease:
    before = lease.programming
    assert before is not None
    # Who took what was there is promised nothing more.
    function = region.function_id if before.image_id else before.function_id
    programming = dataclasses.replace(before, region=region, function_id=function)
    return dataclasses.replace(lease, programming=programming)
