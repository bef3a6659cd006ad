# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What FPGA regions have to hold, and how they come to hold it.

A region is believed only by what its hardware says at that moment, and only
while no programming of it has begun without being proved: that is recorded
before the hardware is touched, and struck out after the reading back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from oslo_log import log

from os_acc import deadlines, exception, helper, plugins, unending
from os_acc.bitstreams import choose, properties
from os_acc.bitstreams.library import Library
from os_acc.objects.image import Bitstream, Image, Wish
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.lease import Lease, Standing
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Programming, Region
from os_acc.plugins import base
from os_acc.store.leases import Store
from os_acc.store.locks import Locks, device_lock

LOG = log.getLogger(__name__)

_T = TypeVar("_T")

_CARDS_AT_ONCE = 8
#: After these the hardware still holds what it did.
_UNTOUCHED = (
    exception.BitstreamError,
    exception.DeviceInUse,
    helper.StaleEpoch,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A lease that is about to be made, and what its group asks for."""

    lease: Lease
    region: Region | None
    wish: Wish | None


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One region to be programmed for a lease.

    :ivar region: with what it holds.
    :ivar is_known: whether it does hold that, by all that is recorded.
    """

    lease: Lease
    region: Region
    bitstream: Bitstream
    is_known: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Leases as they are to be recorded, and what has to be done for them."""

    leases: tuple[Lease, ...]
    jobs: tuple[Job, ...] = ()


class Programmer:
    """Programs regions for leases; see the top of this module."""

    def __init__(
        self,
        root: str,
        store: Store,
        locks: Locks,
        hands: helper.Helper,
        loaded: plugins.Plugins,
        images: Library,
    ) -> None:
        self._root = root
        self._store = store
        self._locks = locks
        self._hands = hands
        self._plugins = loaded
        self._images = images

    @contextlib.contextmanager
    def planned(
        self, drafts: Sequence[Draft], instance_image: str, deadline: float
    ) -> Iterator[Plan]:
        """Find, fetch and verify what the drafts ask for; nothing is touched.

        While this lasts the cards are nobody else's, and the files stay.

        1. which image, 2. its file, 3. the cards' locks, 4. what the regions
        hold now, and who has them.

        :param instance_image: the id of what the guest boots from, or ''.
        :raises BitstreamError: there is no such bitstream, or it is refused.
        :raises RegionInUse: a guest has the region, with something else.
        """
        if all(draft.region is None and draft.wish is None for draft in drafts):
            yield Plan(tuple(draft.lease for draft in drafts))
            return
        with contextlib.ExitStack() as kept:
            found: dict[str, Bitstream] = {}
            for draft in drafts:
                wish, booted = self._wish(draft, instance_image, deadline)
                if draft.region is None or wish is None:
                    continue
                image = self._images.image_for(wish, draft.region, deadline)
                bitstream = kept.enter_context(
                    self._images.fetched(image, deadline, region=draft.region)
                )
                choose.check_agreement(booted, bitstream)
                found[draft.lease.uuid] = bitstream
            kept.enter_context(self._locks.hold(_locks_of(drafts), deadline))
            yield self._decided(drafts, found, deadline)

    def program(
        self, leases: Sequence[Lease], jobs: Sequence[Job], deadline: float
    ) -> tuple[Lease, ...]:
        """Do what was planned; the leases say afterwards what is held.

        Several cards are programmed side by side, one region of a card after
        the other.

        :param leases: those of the plan, as they are recorded.
        :raises ProgrammingFailed: the hardware has not taken a bitstream.
        :raises HostError: the host refused a step.
        """
        recorded = {lease.uuid: lease for lease in leases}
        cards: dict[PciAddress, list[Job]] = {}
        for job in jobs:
            cards.setdefault(job.region.card, []).append(
                dataclasses.replace(job, lease=recorded[job.lease.uuid])
            )
        ended = unending.side_by_side(
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
    def restored(self, leases: Sequence[Lease], deadline: float) -> Iterator[Plan]:
        """As :meth:`planned`, for leases whose regions may have lost all.

        :raises FunctionMismatch: a region holds something else than the guest
            had, and nothing is recorded with which to program it.
        """
        drafts = [
            Draft(lease, lease.programming.region if lease.programming else None, None)
            for lease in leases
        ]
        if all(draft.region is None for draft in drafts):
            yield Plan(tuple(leases))
            return
        with contextlib.ExitStack() as kept:
            kept.enter_context(self._locks.hold(_locks_of(drafts), deadline))
            lost = [each for each in leases if not self._is_held(each, deadline)]
            jobs: dict[str, Job] = {}
            for lease in lost:
                job = self._again(lease, kept, deadline)
                jobs.setdefault(job.region.key, job)
            yield Plan(tuple(leases), tuple(jobs.values()))

    # -- what is wanted ----------------------------------------------------

    def _wish(
        self, draft: Draft, instance_image: str, deadline: float
    ) -> tuple[Wish | None, Image | None]:
        """What is asked for, and the image of the guest if it was asked."""
        if draft.region is None or draft.region.interface_id is None:
            if draft.wish is None:
                return None, None
            raise exception.NotProgrammable(
                f"group {draft.lease.group!r} asks for {draft.wish}, but "
                f"{draft.lease.address} cannot be programmed",
                hint="ask for a region with the trait CUSTOM_PROGRAMMABLE",
            )
        if not instance_image:
            return draft.wish, None
        try:
            booted = self._images.about(instance_image, deadline)
        except (exception.ImageNotFound, exception.ImageServiceNotConfigured) as error:
            # It may be gone by now, or not be where bitstreams are, or the
            # host has nothing to do with those.
            LOG.debug("the image of %s is not asked: %s", draft.lease.consumer, error)
            return draft.wish, None
        return choose.merged(draft.wish, booted), booted

    def _decided(
        self, drafts: Sequence[Draft], found: Mapping[str, Bitstream], deadline: float
    ) -> Plan:
        standing = self._store.until(deadline).standing()
        leases: list[Lease] = []
        jobs: dict[str, Job] = {}
        for draft in drafts:
            if draft.region is None:
                leases.append(draft.lease)
                continue
            now = self._read(draft.lease.plugin, draft.region, deadline)
            bitstream = found.get(draft.lease.uuid)
            wanted = function_of(bitstream) if bitstream else now.function_id
            lease = _asking(draft.lease, now, wanted, bitstream)
            leases.append(lease)
            known = now not in standing.unknown_regions
            if bitstream is None:
                if not known:
                    raise exception.RegionUnknown(
                        f"{now} holds nothing known: its last programming is unproved"
                    )
                continue
            if known and wanted is not None and wanted == now.function_id:
                LOG.info("%s holds %s already", now, bitstream.image)
                continue
            _check_free(lease, now, bitstream, standing)
            job = jobs.setdefault(now.key, Job(lease, now, bitstream, known))
            if job.bitstream.image.id != bitstream.image.id:
                raise exception.RegionInUse(
                    f"{now} cannot hold {job.bitstream.image} and {bitstream.image}",
                    hint="ask for two regions, with group_policy=isolate",
                )
        return Plan(tuple(leases), tuple(jobs.values()))

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
        """
        plugin = self._plugin(name)
        now = self._call(plugin, deadline, plugin.read_region, self._root, region)
        if now is None:
            raise exception.DeviceGone(
                f"{region} cannot be seen: its driver is not there",
                hint="see 'os-acc device list' for who has the card",
            )
        if (now.key, now.identity) != (region.key, region.identity):
            raise exception.DeviceChanged(f"{region} is now that of {now.identity}")
        return now

    def _is_held(self, lease: Lease, deadline: float) -> bool:
        if lease.programming is None:
            return True
        now = self._read(lease.plugin, lease.programming.region, deadline)
        standing = self._store.until(deadline).standing()
        return (
            now not in standing.unknown_regions
            and now.function_id == lease.programming.function_id
        )

    # -- programming -------------------------------------------------------

    def _again(self, lease: Lease, kept: contextlib.ExitStack, deadline: float) -> Job:
        """The job that gives a guest back what its region has lost."""
        before = lease.programming
        assert before is not None
        if not before.image_id:
            raise exception.FunctionMismatch(
                f"{before.region} does not hold {before.function_id} any more, "
                f"which instance {lease.consumer} had",
                address=str(lease.address),
                hint="nothing was programmed for it: let the operator program it",
            )
        bitstream = self._same_file(before, kept, deadline)
        return Job(lease, before.region, bitstream, is_known=False)

    def _same_file(
        self, before: Programming, kept: contextlib.ExitStack, deadline: float
    ) -> Bitstream:
        """The file with which a region was programmed, and no other.

        After a power cut guests have to start before everything answers again.
        """
        try:
            image = self._images.about(before.image_id, deadline)
        except (exception.ImageNotFound, exception.ImageServiceUnavailable):
            cached = self._images.kept(_recorded(before), before.region, deadline)
            bitstream = kept.enter_context(cached)
            if bitstream is None:
                raise
            return bitstream
        if (image.hash_algo, image.hash_value) != (before.hash_algo, before.hash_value):
            raise exception.ImageInvalid(
                f"image {image} is another file than {before.region} had",
                hint="unplug the instance, and plug it anew",
            )
        return kept.enter_context(
            self._images.fetched(image, deadline, region=before.region)
        )

    def _program(self, job: Job, deadline: float) -> Region:
        """1. nothing is known, 2. program, 3. read back, 4. it is known."""
        store, image = self._store.until(deadline), job.bitstream.image
        LOG.info("programming %s with image %s", job.region, image)
        store.forget_region(job.region.key, image.id)
        try:
            self._write(job, deadline)
        except _UNTOUCHED:
            if job.is_known:
                store.know_region(job.region.key)
            raise
        now = self._read(job.lease.plugin, job.region, deadline)
        wanted = function_of(job.bitstream)
        if wanted is not None and now.function_id != wanted:
            raise exception.FunctionMismatch(
                f"{job.region} holds {now.function_id} after it was programmed with "
                f"image {image}, which is {wanted}",
                address=str(job.region.card),
            )
        store.know_region(job.region.key)
        return now

    def _write(self, job: Job, deadline: float) -> None:
        plugin, image = self._plugin(job.lease.plugin), job.bitstream.image
        steps = _Steps(self._hands, job.lease.epoch, deadline)

        def program(bitstream: Bitstream) -> None:
            self._call(plugin, deadline, plugin.program, job.region, bitstream, steps)

        try:
            program(job.bitstream)
        except exception.ImageInvalid:
            # The helper hashes it once more. It was sound when it was fetched.
            if not self._images.forget(image, deadline):
                raise
            LOG.warning("the file of image %s was altered: it is fetched anew", image)
            with self._images.fetched(image, deadline, region=job.region) as again:
                program(again)


@dataclasses.dataclass(frozen=True, slots=True)
class _Steps:
    """See :class:`os_acc.plugins.base.Steps`."""

    hands: helper.Helper
    epoch: int
    deadline: float

    def reconfigure(self, region: Region, bitstream: Bitstream) -> None:
        self.hands.program(region, bitstream, self.epoch, self.deadline)

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        self.hands.load_xclbin(region, bitstream, self.epoch, self.deadline)


def function_of(bitstream: Bitstream) -> str | None:
    """What a region holds once it is programmed with this; None: untold."""
    functions = bitstream.header.function_ids
    if len(functions) == 1:
        return functions[0]
    # Hardware tells nothing but a UUID; any other name cannot be compared.
    told = map(canonical_uuid, properties.function_ids(bitstream.image))
    return next((each for each in told if each), None)


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


def _locks_of(drafts: Sequence[Draft]) -> set[str]:
    return {device_lock(draft.region.card) for draft in drafts if draft.region}


def _check_free(
    lease: Lease, region: Region, bitstream: Bitstream, standing: Standing
) -> None:
    """No guest has a function of a region that is to hold something else."""
    for other in standing.leases:
        if other.stands_on(region) and other.uuid != lease.uuid:
            raise exception.RegionInUse(
                f"{region} is not programmed with {bitstream.image}: "
                f"{other.address} of it is leased to {other.consumer}"
            )


def _asking(
    lease: Lease, region: Region, function: str | None, bitstream: Bitstream | None
) -> Lease:
    programming = Programming(region, function)
    if bitstream is not None:
        image = bitstream.image
        programming = dataclasses.replace(
            programming,
            image_id=image.id,
            hash_algo=image.hash_algo,
            hash_value=image.hash_value,
        )
    return dataclasses.replace(lease, programming=programming)


def _holding(lease: Lease, region: Region) -> Lease:
    assert lease.programming is not None
    programming = dataclasses.replace(
        lease.programming, region=region, function_id=region.function_id
    )
    return dataclasses.replace(lease, programming=programming)
