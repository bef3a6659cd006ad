# SPDX-License-Identifier: Apache-2.0

"""Programming and verification of FPGA regions without a guest.

A guest that has a whole card can program its region. Only a verified image makes the
function of that region known again. It is programmed as for a request with
``attach_target`` none: a lease of a consumer of its own claims the device meanwhile,
and a crash at any point gives the device back.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Iterable, Sequence

from oslo_log import log
from oslo_utils import uuidutils

from os_acc import deadlines, exception
from os_acc.attach import Services, lifecycle, planning, programming
from os_acc.attach.release_result import is_transient
from os_acc.inventory import discovery
from os_acc.inventory.catalog import Catalog
from os_acc.objects.bitstream import BitstreamRequest
from os_acc.objects.device import Provider
from os_acc.objects.instance import InstanceInfo
from os_acc.objects.lease import Action, Lease, LeaseState, Owner
from os_acc.objects.mdev import function_of
from os_acc.objects.pci import PciAddress
from os_acc.objects.records import RecordedState
from os_acc.objects.region import (
    RecordedImage,
    Region,
    UnverifiedRegions,
    functions_held,
)
from os_acc.objects.request_group import AttachTarget, GroupAllocation, fingerprint
from os_acc.scheduling.device_selection import DeviceSelector
from os_acc.store.locks import consumer_lock, device_lock

LOG = log.getLogger(__name__)

#: The instance name of the leases, in listings and in the log.
_NAME = "region-program"


@dataclasses.dataclass(eq=False, repr=False)
class RegionOperations:
    """Program or verify free regions, on an operator's command or after a release.

    :ivar at_release: whether a release programs the recorded image again
        (``reprogram_at_release``).
    """

    _services: Services
    _life: lifecycle.Lifecycle
    _programmer: programming.Programmer
    _catalog: Catalog
    at_release: bool

    def __post_init__(self) -> None:
        #: The last failure of each region, by its key; a lasting one is not repeated.
        self._failures: dict[str, str] = {}
        self._given_up: set[str] = set()
        #: Keys of regions that are due, and were not offered at the last attempt.
        self._missing: set[str] = set()

    def program(self, address: PciAddress, deadline: float, image: str = "") -> Region:
        """Program a free region, read it back, and record it as verified.

        :param address: of a function through which guests reach the region, or of
            the card if it has one region.
        :param image: the id or name of an image; '': the image with which os_acc
            last programmed and verified the region.
        :returns: the region as read back.
        :raises NotFound: no region is offered at this address.
        :raises InvalidInput: the card has several regions.
        :raises RegionUnusable: the region cannot be programmed, no image is recorded
            for it, or a guest has it.
        :raises BitstreamError: the image does not exist, or is rejected.
        :raises ProgrammingFailed: the hardware rejected the bitstream.
        :raises OsAccError: any other error of a plug.
        """
        inventory = self._catalog.look(deadline)
        provider, region = _offered(inventory, address)
        _check_free(inventory.recorded_state, region)
        if image:
            named = self._programmer.library.named(image, deadline)
            return self._program(inventory, provider, deadline, named.id)
        recorded = _recorded_image(inventory.recorded_state, region)
        return self._program(inventory, provider, deadline, recorded.id, recorded)

    def verify(self, address: PciAddress, deadline: float) -> Region:
        """Record a free region as verified if its hardware authenticates bitstreams.

        Nothing is programmed. A function that a card without such hardware reports is
        no proof: a guest can have written it.

        :param address: as for :meth:`program`.
        :returns: the region as read.
        :raises NotFound: no region is offered at this address.
        :raises InvalidInput: the card has several regions.
        :raises RegionUnusable: the hardware does not authenticate bitstreams, a
            programming was not completed (UNKNOWN), or a guest has the region.
        :raises DeviceInUse: a process holds the device.
        """
        provider, region = _offered(self._catalog.look(deadline), address)
        # A plug of this region holds the lock until its leases are recorded.
        with self._services.locks.hold([device_lock(region.card)], deadline):
            store = self._services.store.until(deadline)
            recorded = store.recorded_state()
            _check_free(recorded, region)
            self._services.helper.check_free(sorted(_members(provider)), deadline)
            now = self._programmer.read(provider.device.plugin, region, deadline)
            _check_authenticated(now, recorded.unverified_regions, address)
            if not recorded.unverified_regions.is_verified(now):
                store.mark_region_verified(now.key)
        self._catalog.publish_regions(deadline)
        return now

    def restore_released(self, released: Iterable[Lease], deadline: float) -> None:
        """Program the regions of released leases with their recorded images.

        No failure is raised: the unplug has succeeded. The retries of the service
        (:class:`.Retrier`) repeat one that can pass.

        :param deadline: of the unplug, which does not end later because of this.
        """
        writable = (lease.guest_writable for lease in released)
        keys = {region.key for region in writable if region is not None}
        if not self.at_release or not keys:
            return
        self._given_up -= keys
        # A failed programming is rolled back in a time of its own.
        deadline -= deadlines.GRACE + self._services.helper.write_timeout
        if deadline <= time.monotonic():
            LOG.info("no time is left to program the released regions, will retry")
            return
        due = [key for key in self.due(deadline) if key in keys]
        deadlines.side_by_side(due, lambda key: self.restore(key, deadline))

    def due(self, deadline: float) -> list[str]:
        """Return the keys of the regions to program with their recorded images, sorted.

        They are free and unverified: a guest could program them, or a programming was
        not completed. Without: regions whose last attempt failed for good, until they
        are verified or leased, and those that are not offered.
        """
        if not self.at_release:
            return []
        try:
            recorded = self._services.store.until(deadline).recorded_state()
        except exception.StateUnavailable as error:
            LOG.warning("cannot read the records of regions, will retry: %s", error)
            return []
        unverified = recorded.unverified_regions
        due = (unverified.guest_writable | unverified.keys) & unverified.images.keys()
        due -= _leased(recorded.leases)
        self._given_up &= due
        self._missing &= due
        if self._missing:
            self._missing -= self._catalog.snapshots.regions()
        return sorted(due - self._given_up - self._missing)

    def restore(self, key: str, deadline: float) -> None:
        """Program a region with its recorded image; log a failure."""
        address: PciAddress | None = None
        try:
            inventory = self._catalog.look(deadline)
            provider = next(
                (
                    each
                    for each in inventory.providers.values()
                    if each.device.region and each.device.region.key == key
                ),
                None,
            )
            if provider is None:
                self._missing.add(key)
                LOG.warning(
                    "cannot program region %s with its recorded image: it is not "
                    "offered (see 'os-acc device list'); it is programmed once it is "
                    "offered again",
                    key,
                )
                return
            address = function_of(provider.device.handles[0].address)
            assert provider.device.region is not None
            image = _recorded_image(inventory.recorded_state, provider.device.region)
            self._program(inventory, provider, deadline, image.id, image)
            self._failures.pop(key, None)
        except exception.OsAccError as error:
            if self._is_leased(key, deadline):
                # A plug was faster, or the retries have yet to release the region.
                LOG.debug("region %s is leased: %s", key, error)
            else:
                self._log_failure(key, address, error)

    def await_programming(
        self,
        inventory: discovery.Inventory,
        providers: Collection[str],
        deadline: float,
    ) -> bool:
        """Wait while regions of these providers are programmed without a guest.

        Each such programming, of this process or another one, holds the lock of its
        consumer until its lease is released. One that was killed is not waited for.

        :returns: whether a region that was leased for it is free now.
        """
        store = self._services.store.until(deadline)
        consumers = {
            lease.consumer
            for lease in (*inventory.recorded_state.leases, *store.leases())
            if lease.owner is Owner.COMMAND
            and lease.guest.name == _NAME
            and lease.provider in providers
        }
        try:
            with self._services.locks.hold(map(consumer_lock, consumers), deadline):
                left = {lease.consumer for lease in store.leases()}
        except exception.LockTimeout as error:
            LOG.debug("a region is still being programmed: %s", error)
            return False
        return not consumers <= left

    def _is_leased(self, key: str, deadline: float) -> bool:
        try:
            return key in _leased(self._services.store.until(deadline).leases())
        except exception.StateUnavailable as error:
            LOG.debug("cannot read the leases of region %s: %s", key, error)
            return False

    def _program(
        self,
        inventory: discovery.Inventory,
        provider: Provider,
        deadline: float,
        image_id: str,
        recorded: RecordedImage | None = None,
    ) -> Region:
        """Program a region under a lease that a crash at any point releases."""
        allocation = GroupAllocation(
            "",
            provider.uuid,
            provider.device.resource_class,
            1,
            BitstreamRequest(bitstream_id=image_id),
            AttachTarget.NONE,
        )
        instance = InstanceInfo(uuidutils.generate_uuid(), name=_NAME)
        planner = planning.LeasePlanner(
            self._services.root,
            Owner.COMMAND,
            instance,
            [allocation],
            fingerprint([allocation]),
            DeviceSelector(),
        )
        with (
            self._services.locks.hold([consumer_lock(instance.uuid)], deadline),
            self._catalog.recounting(deadline),
        ):
            state = inventory.recorded_state
            with self._programmer.plan(
                planner.plan(inventory, deadline), "", state, deadline, recorded
            ) as (planned, jobs):
                leases = self._life.establish(
                    planned, state, deadline, jobs, committed=_releasing
                )
            released = self._life.release(leases, deadline)
        self._catalog.count_released(leases, bool(released.failed), deadline)
        if released.failed:
            raise released.failure()
        (lease,) = leases
        assert lease.programming is not None
        return lease.programming.region

    def _log_failure(
        self, key: str, address: PciAddress | None, error: exception.OsAccError
    ) -> None:
        text = str(error)
        if (
            error.retryable
            or is_transient(error)
            or isinstance(error, exception.ServiceUnavailable)
        ):
            is_new = self._failures.get(key) != text
            LOG.log(
                logging.INFO if is_new else logging.DEBUG,
                "cannot program region %s with its recorded image yet: %s",
                key,
                text,
            )
        else:
            self._given_up.add(key)
            LOG.warning(
                "cannot program region %s with its recorded image: %s (repair the "
                "cause, then run 'os-acc region program %s')",
                key,
                text,
                address or "ADDRESS",
            )
        self._failures[key] = text


def _leased(leases: Iterable[Lease]) -> set[str]:
    """Return the keys of the regions on which leases stand."""
    return {each.programming.region.key for each in leases if each.programming}


def _members(provider: Provider) -> set[PciAddress]:
    return {
        each
        for one in provider.device.handles
        for each in one.members
        if isinstance(each, PciAddress)
    }


def _offered(
    inventory: discovery.Inventory, address: PciAddress
) -> tuple[Provider, Region]:
    """Return the region that is offered at an address, with its provider."""
    of_card: list[tuple[Provider, Region]] = []
    for provider in inventory.providers.values():
        region = provider.device.region
        if region is None:
            continue
        if address in _members(provider) or address in region.pci_functions:
            return provider, region
        if address == region.card:
            of_card.append((provider, region))
    if not of_card:
        raise exception.NotFound(
            f"no FPGA region is offered at {address}",
            hint="see 'os-acc region list', and 'os-acc device list' for devices that "
            "are not offered",
            kind=exception.ObjectKind.DEVICE,
        )
    if len(of_card) > 1:
        found = ", ".join(
            str(each.device.handles[0].address) for each, _region in of_card
        )
        raise exception.InvalidInput(
            f"{address} has {len(of_card)} regions",
            hint=f"name the PCI function of one of them: {found}",
        )
    return of_card[0]


def _check_free(recorded: RecordedState, region: Region) -> None:
    """Check that the region can be programmed, and that no guest has it."""
    if region.interface_id is None:
        raise exception.RegionUnusable(
            f"{region} cannot be programmed",
            hint="see 'os-acc region list' for the interfaces of regions",
            reason=exception.RegionReason.NOT_PROGRAMMABLE,
        )
    for lease in recorded.leases:
        if lease.uses_region(region):
            raise exception.RegionUnusable(
                f"{region} is in use: {lease.address} is leased to "
                f"{lease.consumer_title}",
                reason=exception.RegionReason.IN_USE,
            )


def _check_authenticated(
    now: Region, unverified: UnverifiedRegions, address: PciAddress
) -> None:
    """Check that no guest can have chosen the contents of a region."""
    if not now.is_authenticated:
        why = "its hardware accepts bitstreams without a signature"
    elif now in unverified:
        why = "a programming was not completed, or the record of it was lost"
    else:
        return
    reported = ", ".join(sorted(functions_held(now))) or "no function"
    raise exception.RegionUnusable(
        f"cannot verify {now}, which reports {reported}: {why}",
        hint=f"program a verified image: os-acc region program {address}",
        reason=exception.RegionReason.UNKNOWN,
    )


def _recorded_image(recorded: RecordedState, region: Region) -> RecordedImage:
    """Return the image with which a region was last programmed and verified."""
    image = recorded.unverified_regions.images.get(region.key)
    if image is None:
        raise exception.RegionUnusable(
            f"no image is recorded for {region}: os_acc has not programmed it",
            hint="name the image: os-acc region program ADDRESS --image IMAGE",
            reason=exception.RegionReason.UNKNOWN,
        )
    return image


def _releasing(leases: Sequence[Lease]) -> list[Lease]:
    # Without a guest, the replay of a crash has to release them, and no data is left.
    return [
        dataclasses.replace(
            each.without(Action.ERASE), state=LeaseState.RELEASING, never_held=True
        )
        for each in leases
    ]
