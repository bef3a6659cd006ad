# SPDX-License-Identifier: Apache-2.0

"""Planning and programming of FPGA regions.

The contents of a region are what its hardware reports at that moment, unless the
store records the region as unverified: that is recorded before the hardware is
touched, and the region as verified once it has been read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import Services, plugin_steps, region_checks, region_images
from os_acc.attach import region_requirements as reqs
from os_acc.attach.plugin_steps import RegionSteps
from os_acc.attach.region_requirements import ProgrammingJob, RegionRequirement
from os_acc.bitstreams.library import Library
from os_acc.objects.bitstream import Bitstream
from os_acc.objects.lease import Lease, latest
from os_acc.objects.pci import PciAddress
from os_acc.objects.records import RecordedState
from os_acc.objects.region import (
    Programming,
    RecordedImage,
    Region,
    UnverifiedRegions,
    function_at,
    functions_held,
)
from os_acc.plugins import base
from os_acc.store.errors import AlreadyLeased
from os_acc.store.locks import device_lock

LOG = log.getLogger(__name__)


class Programmer:
    """Plan the contents of regions, program them, and read them back.

    :ivar library: the images that leases require.
    """

    def __init__(self, services: Services, library: Library) -> None:
        self._root = services.root
        self._store = services.store
        self._locks = services.locks
        self._helper = services.helper
        self._plugins = services.plugins
        self.library = library

    @contextlib.contextmanager
    def plan(
        self,
        leases: Sequence[Lease],
        instance_image: str,
        state: RecordedState,
        deadline: float,
        recorded: RecordedImage | None = None,
    ) -> Iterator[tuple[Sequence[Lease], Sequence[ProgrammingJob]]]:
        """Fetch and verify the bitstreams of leases; the devices are not touched.

        1. select the images, 2. fetch the files, 3. lock the cards, 4. read the
        regions and compare them with the requirements. The locks and the files are
        held until the context ends.

        :param instance_image: the id of the image that the guest boots, or ''.
        :param state: the records that the selection of devices considered.
        :param recorded: the very file to program; None: as each lease requests.
        :returns: the leases as they will be recorded, and the jobs that program their
            regions.
        :raises BitstreamError: a bitstream does not exist, or is rejected.
        :raises RegionUnusable: a guest has the region, with other contents, or a
            rebuild of its guest has yet to program it.
        :raises FunctionElsewhere: other PCI functions reach the requested functions.
        :raises AlreadyLeased: another plug has leased a device meanwhile.
        """
        if all(
            each.region is None and each.wanted.bitstream_request is None
            for each in leases
        ):
            yield leases, ()
            return
        booted = None
        if instance_image:
            title = leases[0].consumer_title
            booted = self.library.booted(instance_image, title, deadline)
        with contextlib.ExitStack() as stack:
            requirements = region_images.requirements(
                self.library, leases, booted, stack, deadline, recorded
            )
            stack.enter_context(self._locks.hold(_locks_of(leases), deadline))
            accepted = state.unverified_regions.accepted
            yield self._plan_jobs(leases, requirements, accepted, deadline)

    def program(
        self, leases: Sequence[Lease], jobs: Sequence[ProgrammingJob], deadline: float
    ) -> tuple[Lease, ...]:
        """Run the jobs of a plan; return the leases with the new contents.

        Cards are programmed in parallel, the regions of a card one after the other.

        :param leases: the leases of the plan, as recorded.
        :raises ProgrammingFailed: the hardware rejected a bitstream.
        :raises HostError: the host refused a step.
        """
        recorded = {lease.uuid: lease for lease in leases}
        cards: dict[PciAddress, list[ProgrammingJob]] = {}
        for job in jobs:
            renewed = tuple(
                dataclasses.replace(each, lease=recorded[each.lease.uuid])
                for each in job.requirements
            )
            cards.setdefault(job.region.card, []).append(
                dataclasses.replace(job, requirements=renewed)
            )
        for lease in leases:
            # Programming may rebind a card; the helper restores it by its own record.
            if not cards.keys().isdisjoint(lease.members):
                self._helper.reserve(lease, deadline)
        ended = deadlines.side_by_side(
            list(cards.values()),
            lambda each: [(job, self._program(job, deadline)) for job in each],
        )
        for job, region in (each for card in ended for each in card):
            for lease in leases:
                if lease.uses_region(job.region):
                    recorded[lease.uuid] = _with_region(recorded[lease.uuid], region)
        return tuple(recorded[lease.uuid] for lease in leases)

    @contextlib.contextmanager
    def plan_again(
        self, leases: Sequence[Lease], deadline: float
    ) -> Iterator[Sequence[ProgrammingJob]]:
        """Plan the jobs for held leases whose regions may be empty; see :meth:`plan`.

        A region that has lost one of their functions is programmed for all of them.

        :raises ProgrammingFailed: a region has lost its contents, and the lease
            records no image for it.
        :raises RegionUnusable: two leases record different contents of a region, or
            another guest uses it.
        """
        if all(each.region is None for each in leases):
            yield ()
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._locks.hold(_locks_of(leases), deadline))
            lost: dict[str, list[Lease]] = {}
            for lease in leases:
                before = lease.programming
                if before and not self._is_intact(lease, before, deadline):
                    lost.setdefault(before.region.key, []).append(lease)
            jobs = [
                self._job_again(found, leases, stack, deadline)
                for found in lost.values()
            ]
            others = self._store.until(deadline).leases() if jobs else ()
            for job in jobs:
                region_checks.check_idle(job, leases, others, self._helper, deadline)
            yield jobs

    # -- planning ----------------------------------------------------------

    def _plan_jobs(
        self,
        planned: Sequence[Lease],
        requirements: Sequence[RegionRequirement],
        accepted: frozenset[str],
        deadline: float,
    ) -> tuple[Sequence[Lease], Sequence[ProgrammingJob]]:
        recorded = self._store.until(deadline).recorded_state()
        members = {address for lease in planned for address in lease.members}
        for address in recorded.leased & members:
            # The region of a guest's card cannot be read.
            raise AlreadyLeased(f"{address} is claimed by another lease")
        unverified = dataclasses.replace(recorded.unverified_regions, accepted=accepted)
        regions: dict[str, Region] = {}
        coming: dict[str, Region] = {}
        jobs: list[ProgrammingJob] = []
        on_region: defaultdict[str, list[RegionRequirement]] = defaultdict(list)
        for each in requirements:
            on_region[each.region.key].append(each)
        for key, alike in on_region.items():
            now, unverified = self.present(
                alike[0].lease.plugin, alike[0].region, unverified, deadline
            )
            region_checks.check_decided(now, recorded)
            regions[key] = coming[key] = now
            job = reqs.job(now, alike, unverified)
            if job is not None:
                region_checks.check_free(self._root, job, recorded)
                jobs.append(job)
                coming[key] = self.after(job, deadline)
            elif any(each.bitstream for each in alike):
                LOG.info("%s already holds the requested bitstream", now)
        region_checks.check_reached(requirements, coming)
        decided = [
            dataclasses.replace(
                each.lease,
                programming=each.recorded(regions[key], coming[key], unverified),
            )
            for key, alike in on_region.items()
            for each in alike
        ]
        return latest(planned, decided), jobs

    def after(self, job: ProgrammingJob, deadline: float) -> Region:
        """Return the region of a job with the functions that its plugin expects.

        :raises PluginFailed: the plugin fails, or its answer is invalid.
        """
        name = job.lease.plugin
        plugin = self._plugin(name)

        def state() -> tuple[tuple[PciAddress, str], ...]:
            pairs = plugin.functions_of(job.region, job.bitstream)
            # A generator runs the vendor's code here, and may have no end. More than
            # one function for each PCI function is wrong.
            return tuple(itertools.islice(pairs, len(job.region.pci_functions) + 1))

        pairs = plugin_steps.call(self._plugins, plugin, deadline, state)
        try:
            functions = tuple((place, each) for place, each in pairs)
            return dataclasses.replace(job.region, functions=functions)
        except (TypeError, ValueError) as error:
            raise exception.PluginFailed(
                f"the plugin {name} does not state the functions of image "
                f"{job.bitstream.image} in {job.region}: {error}"
            ) from error

    # -- reading regions ---------------------------------------------------

    def _plugin(self, name: str) -> base.PluginBase:
        plugin = self._plugins.get(name)
        if plugin is None:
            raise exception.PluginFailed(
                f"cannot read a region of the plugin {name}: it is not loaded",
                hint="name it in [os_acc] enabled_plugins, or repair it: see "
                "'os-acc check'",
            )
        return plugin

    def present(
        self, name: str, region: Region, unverified: UnverifiedRegions, deadline: float
    ) -> tuple[Region, UnverifiedRegions]:
        """Return a region as read now; a silent one is among the unverified ones.

        :param name: of its plugin.
        :raises DeviceGone: the region's driver does not show it.
        :raises DeviceChanged: the region or its interface was exchanged.
        """
        now = self.read(name, region, deadline)
        if (
            now.interface_id is not None
            and not functions_held(now)
            and name in self._plugins.always_reporting
        ):
            keys = unverified.keys | {now.key}
            unverified = dataclasses.replace(unverified, keys=keys)
        return now, unverified

    def read(self, name: str, region: Region, deadline: float) -> Region:
        """Return the region as its hardware reports it now.

        :raises DeviceGone: the region's driver does not show it.
        :raises DeviceChanged: the region or its interface was exchanged.
        """
        plugin = self._plugin(name)
        now = plugin_steps.call(
            self._plugins, plugin, deadline, plugin.read_region, region
        )
        if now is None:
            raise exception.DeviceGone(
                f"cannot read {region}: its card is without its driver",
                hint="'os-acc device list' shows the driver and the consumer of the "
                "card",
            )
        if type(now) is not Region:
            raise exception.PluginFailed(
                f"the plugin {name} failed: {exception.show(now)} is not a Region"
            )
        if now.key != region.key or not now.identity.may_be(region.identity):
            raise exception.DeviceChanged(f"{region} is now a region of {now.identity}")
        if now.interface_id != region.interface_id:
            # Another shell has been loaded into the card.
            raise exception.DeviceChanged(
                f"{region} now accepts bitstreams for {now.interface_id}, it was "
                f"{region.interface_id}",
                hint="schedule the instance again: the card has another shell",
            )
        return now

    def _is_intact(self, lease: Lease, before: Programming, deadline: float) -> bool:
        """Return whether the lease's region still has its recorded contents."""
        now = self.read(lease.plugin, before.region, deadline)
        unverified = self._store.until(deadline).recorded_state().unverified_regions
        reached = function_at(now, lease.address)
        if now in unverified or before.function_id not in (None, reached):
            return False
        if before.is_pending:
            # The guest of the earlier image may have written this function's id.
            return False
        # If the region is guest-writable, this very guest has written to it.
        content = reqs.content(before, lease.boot_id)
        return not before.is_exact or unverified.contents.get(now.key) == content

    # -- programming -------------------------------------------------------

    def _job_again(
        self,
        lost: Sequence[Lease],
        leases: Sequence[Lease],
        stack: contextlib.ExitStack,
        deadline: float,
    ) -> ProgrammingJob:
        """Return the job that restores the lost contents of a guest's region."""
        recorded = [_recorded(lease) for lease in lost]
        region = recorded[0].region
        bound = [
            each
            for each in leases
            if each.programming
            and each.programming.is_bound
            and each.uses_region(region)
        ]
        exact = [each for each in recorded if each.is_exact]
        bitstream = region_images.same_file(
            self.library,
            region,
            (exact or recorded)[0].image,
            stack,
            deadline,
            "unplug the instance, then plug it again",
        )
        return reqs.restoring(bound, bitstream)

    def _program(self, job: ProgrammingJob, deadline: float) -> Region:
        store, image = self._store.until(deadline), job.bitstream.image
        LOG.info(
            "programming %s with image %s for instance %s",
            job.region,
            image,
            job.lease.consumer_title,
        )
        # 1. Record the region as unverified. Undo: restore the record, but only
        #    while the hardware is untouched.
        before = store.mark_region_unverified(job.region.key, image.id)
        steps = RegionSteps(deadline, self._helper, job.lease, region=job.region)
        try:
            # 2. Program. Undo: none; the region stays unverified.
            self._write(job, steps)
        except exception.OsAccError as error:
            if steps.left_untouched(error):
                store.restore_region(job.region.key, before)
            raise
        # 3. Read the region back.
        now = self.read(job.lease.plugin, job.region, deadline)
        region_checks.check_result(job, now)
        # 4. Record the region as verified.
        store.mark_region_verified(job.region.key, job.content, reqs.recorded_of(image))
        return now

    def _write(self, job: ProgrammingJob, steps: RegionSteps) -> None:
        plugin, image = self._plugin(job.lease.plugin), job.bitstream.image
        deadline = steps.deadline

        def program(bitstream: Bitstream) -> None:
            plugin_steps.call(
                self._plugins,
                plugin,
                deadline,
                steps.program,
                plugin,
                job.region,
                bitstream,
            )

        try:
            program(job.bitstream)
        except exception.ImageUnusable as error:
            # The helper hashes the file again: it has changed since the fetch.
            is_invalid = error.reason is exception.ImageReason.INVALID
            if not is_invalid or not self.library.forget(image, deadline):
                raise
            LOG.warning(
                "the cached file of image %s was altered, fetching it again", image
            )
            with self.library.fetched(image, deadline, region=job.region) as again:
                program(again)


def _recorded(lease: Lease) -> Programming:
    """Return the contents that a lease has lost."""
    before = lease.programming
    assert before is not None
    if not before.image_id:
        raise exception.ProgrammingFailed(
            f"{before.region} has lost {before.function_id or 'its contents'}, "
            f"which instance {lease.consumer} used",
            address=str(lease.address),
            hint="program the region by other means, then plug again; or unplug "
            "the instance, then request a bitstream",
            reason=exception.ProgrammingReason.WRONG_FUNCTION,
        )
    return before


def _locks_of(leases: Sequence[Lease]) -> set[str]:
    return {device_lock(each.region.card) for each in leases if each.region}


def _with_region(lease: Lease, region: Region) -> Lease:
    before = lease.programming
    assert before is not None
    # A request that accepted the present contents has no claim on new ones.
    function = before.function_id
    if before.image_id:
        function = function_at(region, lease.address)
    programming = dataclasses.replace(before, region=region, function_id=function)
    return dataclasses.replace(lease, programming=programming)
