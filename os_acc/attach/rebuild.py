# SPDX-License-Identifier: Apache-2.0

"""Rebuild: a guest that holds leases boots another image.

The image may request a bitstream. The contents that it requests are recorded in the
leases first; :meth:`.Lifecycle.reestablish` then programs them, also in a later plug
if this one is interrupted. Until they are verified, each plug with an image decides
them again, so that a failed rebuild leads back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from oslo_log import log

from os_acc import exception
from os_acc.attach import Services, programming, region_checks, region_images
from os_acc.attach import region_requirements as reqs
from os_acc.attach.region_requirements import RegionRequirement
from os_acc.bitstreams import image_selection
from os_acc.objects.bitstream import Image
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.records import RecordedState
from os_acc.objects.region import Programming, Region, UnverifiedRegions
from os_acc.store.locks import device_lock

LOG = log.getLogger(__name__)

_PLUG_AGAIN = "unplug the instance, then plug it again"


@dataclasses.dataclass(frozen=True, slots=True)
class Rebuilder:
    """Decide the contents of held regions for another image of their guest."""

    _services: Services
    _programmer: programming.Programmer

    def renewed(
        self,
        held: Sequence[Lease],
        placed: Sequence[Lease],
        image_id: str,
        deadline: float,
    ) -> tuple[Lease, ...]:
        """Record the contents that the guest's image requests of held regions.

        If an error is raised, nothing has been changed.

        :param held: the leases as recorded.
        :param placed: the same leases with the guest's present cells, to be recorded
            together with the contents.
        :param image_id: of the image that the guest boots; '': unknown, the contents
            stay.
        :returns: the leases as recorded now, in the given order.
        :raises InvalidExtraSpec: flavor and image contradict each other.
        :raises BitstreamError: the bitstream does not exist, or is rejected.
        :raises RegionUnusable: a region cannot be programmed (NOT_PROGRAMMABLE), has
            another guest too (IN_USE), or was not read since its device was adopted
            (UNKNOWN).
        :raises DeviceInUse: the guest, or another process, still holds a device whose
            region has to be programmed.
        :raises ServiceUnavailable: the source of images does not answer.
        """
        store = self._services.store.until(deadline)
        if not _is_due(held, image_id):
            return tuple(held) if list(placed) == list(held) else store.replace(placed)
        with contextlib.ExitStack() as stack:
            decided = self._decided(placed, image_id, stack, deadline)
            recorded = store.replace(
                dataclasses.replace(
                    each,
                    guest=dataclasses.replace(each.guest, image_id=image_id),
                    programming=decided[each.uuid],
                )
                if each.uuid in decided
                else each
                for each in placed
            )
        for lease in recorded:
            if lease.programming is not None and lease.programming.is_pending:
                LOG.info(
                    "instance %s boots image %s: %s is programmed again",
                    *(lease.consumer_title, image_id, lease.programming.region),
                )
        return recorded

    def check(
        self,
        held: Sequence[Lease],
        planned: Sequence[Lease],
        image_id: str,
        deadline: float,
    ) -> None:
        """Check that contents can be recorded for the guest's image; record nothing.

        :param held: the leases as recorded.
        :param planned: the same leases on the devices that the guest will have.
        :raises OsAccError: as :meth:`renewed`.
        """
        if not _is_due(held, image_id):
            return
        left = frozenset(
            address for each in held for address in each.members
        ).difference(address for each in planned for address in each.members)
        with contextlib.ExitStack() as stack:
            self._decided(planned, image_id, stack, deadline, left)

    def _decided(
        self,
        placed: Sequence[Lease],
        image_id: str,
        stack: contextlib.ExitStack,
        deadline: float,
        left: Collection[DeviceAddress] = (),
    ) -> dict[str, Programming | None]:
        """Return the contents for each lease with a region, by its UUID.

        Contents that were decided for this very image stay if the image or its
        bitstream cannot be read now: the cache may have the bitstream.

        :param stack: holds the locks of the cards and the files of the bitstreams.
        :param left: PCI functions that the guest has and will give back.
        """
        leases = [
            each for each in placed if each.programming or each.has_unknown_region
        ]
        is_decided = all(each.guest.image_id == image_id for each in leases)
        recorded = {each.uuid: each.programming for each in leases}
        try:
            title = leases[0].consumer_title
            booted = self._programmer.library.booted(image_id, title, deadline)
            if booted is None and is_decided:
                return recorded
            return recorded | self._decided_for(booted, leases, stack, deadline, left)
        except (exception.ImageNotFound, exception.ServiceUnavailable):
            if not is_decided:
                raise
            return recorded

    def _decided_for(
        self,
        booted: Image | None,
        leases: Sequence[Lease],
        stack: contextlib.ExitStack,
        deadline: float,
        left: Collection[DeviceAddress],
    ) -> dict[str, Programming | None]:
        """Return the contents that are decided anew; see :meth:`_decided`."""
        decided: dict[str, Programming | None] = {}
        is_plain = image_selection.merged(None, booted) is None
        found = [
            each
            for each in leases
            if each.programming
            # The flavor has not changed: its bitstream is not selected again, unless
            # an interrupted rebuild has decided on other contents.
            and (not is_plain or each.programming.is_pending)
        ]
        unread = [each for each in leases if each.has_unknown_region]
        if unread and not is_plain:
            raise exception.RegionUnusable(
                f"the contents of {unread[0].address} are unknown: it was adopted, and "
                "only its guest can read its region",
                hint=_PLUG_AGAIN,
                reason=exception.RegionReason.UNKNOWN,
            )
        if not found:
            return decided
        on_region: defaultdict[str, list[RegionRequirement]] = defaultdict(list)
        for each in region_images.requirements(
            self._programmer.library, found, booted, stack, deadline
        ):
            on_region[each.region.key].append(each)
        cards = {device_lock(each.region.card) for each in found if each.region}
        stack.enter_context(self._services.locks.hold(cards, deadline))
        state = self._services.store.until(deadline).recorded_state()
        for requirements in on_region.values():
            decided |= self._contents(requirements, state, stack, left, deadline)
        return decided

    def _contents(
        self,
        requirements: Sequence[RegionRequirement],
        state: RecordedState,
        stack: contextlib.ExitStack,
        left: Collection[DeviceAddress],
        deadline: float,
    ) -> dict[str, Programming]:
        kept = {each.lease.uuid: _kept(each) for each in requirements}
        met = {uuid: each for uuid, each in kept.items() if each is not None}
        if len(met) == len(kept):
            return met
        now, unverified = self._present(requirements[0].lease, state, deadline)
        requirements = [
            self._restoring(each, now, unverified, stack, deadline)
            for each in requirements
        ]
        with _lasting():
            job = reqs.job(now, requirements, unverified)
        coming = now if job is None else self._programmer.after(job, deadline)
        with _lasting():
            region_checks.check_reached(requirements, {coming.key: coming})
        decided = {
            each.lease.uuid: each.recorded(now, coming, unverified)
            for each in requirements
        }
        if job is None:
            return decided
        region_checks.check_free(self._services.root, job, state, left)
        for each in requirements:
            self._services.helper.check_unused(each.lease, deadline)
        return {
            uuid: dataclasses.replace(each, boot_id="")
            for uuid, each in decided.items()
        }

    def _restoring(
        self,
        requirement: RegionRequirement,
        now: Region,
        unverified: UnverifiedRegions,
        stack: contextlib.ExitStack,
        deadline: float,
    ) -> RegionRequirement:
        """Return a requirement with the region's recorded image, if it is needed.

        A rebuild that was interrupted or failed may have left contents that a guest
        without a request cannot have.
        """
        if requirement.bitstream is not None:
            return requirement
        recorded = unverified.images.get(now.key)
        if requirement.names_function:
            is_usable = unverified.trusts(now)
        else:
            is_usable = now not in unverified
        if is_usable or recorded is None:
            return requirement
        bitstream = region_images.same_file(
            self._programmer.library, now, recorded, stack, deadline, _PLUG_AGAIN
        )
        return dataclasses.replace(requirement, bitstream=bitstream, is_exact=True)

    def _present(
        self, lease: Lease, state: RecordedState, deadline: float
    ) -> tuple[Region, UnverifiedRegions]:
        """Return a lease's region as read now, if possible, and the unverified ones."""
        assert lease.programming is not None
        unverified, region = state.unverified_regions, lease.programming.region
        if lease.guest_writable is None:
            # A region that the guest's function shows is without its driver.
            with contextlib.suppress(exception.DeviceGone):
                return self._programmer.present(
                    lease.plugin, region, unverified, deadline
                )
        keys = unverified.guest_writable | {region.key}
        return region, dataclasses.replace(unverified, guest_writable=keys)


def _is_due(held: Sequence[Lease], image_id: str) -> bool:
    """Return whether the contents of regions are to be decided for this image."""
    return bool(image_id) and any(
        each.guest.image_id != image_id
        or (each.programming is not None and each.programming.is_pending)
        for each in held
        if each.programming or each.has_unknown_region
    )


@contextlib.contextmanager
def _lasting() -> Iterator[None]:
    """Give the errors of a block the hint that a rebuild needs.

    No other request can program the region while the guest has it, and a rebuild
    changes no device.
    """
    try:
        yield
    except region_checks.FunctionElsewhere as error:
        raise exception.RegionUnusable(
            error.message, hint=_PLUG_AGAIN, reason=exception.RegionReason.MISMATCH
        ) from error
    except exception.RegionUnusable as error:
        error.hint = _PLUG_AGAIN
        raise


def _kept(requirement: RegionRequirement) -> Programming | None:
    """Return the recorded contents if they meet a requirement, else None.

    They are restored with the required bitstream if the region loses them.
    """
    before, bitstream = requirement.lease.programming, requirement.bitstream
    assert before is not None
    if bitstream is None:
        return None if before.is_pending else before
    image = bitstream.image
    # The record is that of the lease's own PCI function.
    region = dataclasses.replace(
        before.region, function_id=before.function_id, functions=()
    )
    if (image.hash_algo, image.hash_value) == (before.hash_algo, before.hash_value):
        is_met = requirement.function_id in (None, before.function_id) and not (
            requirement.unidentified and before.region.functions
        )
    else:
        address = requirement.lease.address
        is_met = not requirement.is_exact and requirement.is_served_at(address, region)
    if not is_met:
        return None
    return dataclasses.replace(
        before,
        image_id=image.id,
        hash_algo=image.hash_algo,
        hash_value=image.hash_value,
        is_exact=requirement.is_exact,
    )
