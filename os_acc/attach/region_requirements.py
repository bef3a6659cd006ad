# SPDX-License-Identifier: Apache-2.0

"""The contents that leases require of their regions, compared with the present ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from os_acc import exception
from os_acc.bitstreams import properties
from os_acc.objects.bitstream import (
    Bitstream,
    Image,
    names_function,
    names_region,
)
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.region import (
    Programming,
    RecordedImage,
    Region,
    UnverifiedRegions,
    function_at,
    functions_held,
)
from os_acc.objects.request_group import title
from os_acc.placement import device_traits


@dataclasses.dataclass(frozen=True, slots=True)
class RegionRequirement:
    """The requirements of one lease on its region.

    :ivar region: the region as read when the lease was planned.
    :ivar bitstream: the bitstream to program; None: the present contents are
        accepted.
    :ivar function_id: canonical UUID of the requested function; None: none was
        requested, or its UUID is unknown.
    :ivar is_exact: whether only this bitstream is accepted, not another one with the
        same function.
    :ivar required: required traits of the region and of its contents.
    :ivar unidentified: a request for a function of the bitstream, if the image does
        not state which one it is; or ''. Another request may identify one.
    """

    lease: Lease
    region: Region
    bitstream: Bitstream | None = None
    function_id: str | None = None
    is_exact: bool = False
    required: tuple[str, ...] = ()
    unidentified: str = ""

    @property
    def names_function(self) -> bool:
        """Whether a trait requires a function of the region."""
        return any(map(names_function, self.required))

    def names_one_function(self, region: Region) -> bool:
        """Return whether one function of the bitstream can be all that is required."""
        if self.bitstream is None or not self.names_function:
            return True
        functions = implemented(self.bitstream)
        if self.function_id is not None:
            functions = frozenset({self.function_id})
        return any(
            not self._lacking(
                names_function,
                device_traits.function_traits(region, [each]),
            )
            for each in functions
        )

    @property
    def title(self) -> str:
        """The contents of the region once the requirement is met."""
        if self.bitstream is None:
            return "its present contents"
        return f"image {self.bitstream.image}"

    def check(self, now: Region, unverified: UnverifiedRegions) -> None:
        """Check that the region can meet the requirement.

        :raises InvalidExtraSpec: a trait requires another function than the
            bitstream has.
        :raises RegionUnusable: the present contents are accepted, but unverified
            (UNKNOWN), or the region lacks a trait that Placement has for it
            (MISMATCH).
        """
        lacking = self._lacking(names_region, device_traits.interface_traits(now))
        if lacking:
            raise exception.RegionUnusable(
                f"{now} does not have the trait {lacking}",
                reason=exception.RegionReason.MISMATCH,
            )
        if self.bitstream is not None:
            functions = device_traits.function_traits(now, implemented(self.bitstream))
            if lacking := self._lacking(names_function, functions):
                raise exception.InvalidExtraSpec(
                    f"{title(self.lease.group)} requires {lacking}, but image "
                    f"{self.bitstream.image}, which it selects, does not declare that "
                    "function",
                    hint="request one function; the instance's image may request "
                    "another one than the flavor",
                )
            return
        if now in unverified:
            raise exception.RegionUnusable(
                f"the contents of {now} are unverified: a programming was not "
                "completed, or the record of it was lost",
                reason=exception.RegionReason.UNKNOWN,
            )
        if not self.names_function and self.function_id is None:
            return
        if not unverified.trusts(now):
            raise exception.RegionUnusable(
                f"the contents of {now} are unverified: a guest could program it",
                hint="program a verified image: os-acc region program "
                f"{self.lease.address}; to do so at each release, set "
                "[os_acc_bitstreams] reprogram_at_release; to accept what a guest "
                "left, tag the device trust_guest_contents in [os_acc] device_spec",
                reason=exception.RegionReason.MISMATCH,
            )
        if not self.serving(now):
            raise exception.RegionUnusable(
                f"{now} holds {', '.join(sorted(functions_held(now))) or None}, but "
                f"{title(self.lease.group)} requires {self.function}",
                reason=exception.RegionReason.MISMATCH,
            )

    def is_met(self, now: Region, unverified: UnverifiedRegions) -> bool:
        """Return whether the present contents suffice; :meth:`check` has passed."""
        if self.bitstream is None:
            return True
        return (
            # A bitstream is at hand: nothing that a guest wrote need be accepted.
            unverified.is_verified(now)
            and bool(self.serving(now))
            and (
                not self.is_exact
                or unverified.contents.get(now.key)
                == content(self.bitstream.image, self.lease.boot_id)
            )
        )

    @property
    def function(self) -> str:
        """The required function, for messages."""
        required = [*filter(names_function, self.required)]
        if self.function_id is not None:
            required.append(f"function_id {self.function_id}")
        if self.bitstream is not None and not required:
            required = sorted(implemented(self.bitstream))
        return ", ".join(required) or "any function"

    def serving(self, now: Region) -> frozenset[DeviceAddress]:
        """Return the PCI functions that reach the required function in these contents.

        If the function of each PCI function is unknown, each may be the one.
        """
        places: tuple[DeviceAddress, ...] = (self.lease.address,)
        if now.functions:
            places = now.pci_functions
        return frozenset(each for each in places if self.is_served_at(each, now))

    def is_served_at(self, address: DeviceAddress, now: Region) -> bool:
        """Return whether a PCI function reaches the required function.

        If the hardware reports one function for several PCI functions, the other
        functions of the same bitstream are present as well.
        """
        reached = function_at(now, address)
        found = {reached} - {None}
        if self.bitstream is not None:
            functions = implemented(self.bitstream)
            if functions and reached not in functions:
                return False
            if not now.functions and len(now.pci_functions) > 1:
                found |= functions
        if self.function_id is not None and self.function_id not in found:
            return False
        held = device_traits.function_traits(now, filter(None, found))
        return not self._lacking(names_function, held)

    def recorded(
        self, now: Region, coming: Region, unverified: UnverifiedRegions
    ) -> Programming:
        """Return the part of the lease that is recorded before programming.

        :param coming: the region with the contents that the guest will get.
        """
        reached = function_at(coming, self.lease.address)
        if self.bitstream is None:
            is_named = self.names_function or self.function_id is not None
            function = reached if is_named else None
            return Programming(now, function, boot_id=self.lease.boot_id)
        functions = implemented(self.bitstream)
        if coming.functions or self.is_met(now, unverified):
            function = reached
        else:
            function = next(iter(functions)) if len(functions) == 1 else None
        image = self.bitstream.image
        return Programming(
            now,
            function,
            image_id=image.id,
            hash_algo=image.hash_algo,
            hash_value=image.hash_value,
            is_exact=self.is_exact,
            boot_id=self.lease.boot_id,
        )

    def _lacking(self, kind: Callable[[str], bool], found: frozenset[str]) -> str:
        missing = [each for each in filter(kind, self.required) if each not in found]
        return ", ".join(missing)


@dataclasses.dataclass(frozen=True, slots=True)
class ProgrammingJob:
    """A region to program.

    :ivar region: the region with its present contents.
    :ivar requirements: all requirements on it; each has the same bitstream.
    """

    region: Region
    requirements: tuple[RegionRequirement, ...]

    @property
    def lease(self) -> Lease:
        """One of the leases for which the region is programmed."""
        return self.requirements[0].lease

    @property
    def bitstream(self) -> Bitstream:
        """The bitstream to program."""
        bitstream = self.requirements[0].bitstream
        assert bitstream is not None
        return bitstream

    @property
    def content(self) -> str:
        """The contents to record once they are verified."""
        return content(self.bitstream.image, self.lease.boot_id)


def restoring(leases: Sequence[Lease], bitstream: Bitstream) -> ProgrammingJob:
    """Return the job that restores the contents of one region for a guest's leases.

    :raises RegionUnusable: IN_USE: a lease records contents that the bitstream lacks.
    """
    functions = implemented(bitstream)
    requirements: list[RegionRequirement] = []
    for lease in leases:
        before = lease.programming
        assert before is not None
        required = before.function_id
        # One file can have several images.
        is_same = (before.hash_algo, before.hash_value) == (
            bitstream.image.hash_algo,
            bitstream.image.hash_value,
        )
        if (before.is_exact and not is_same) or (
            functions and required is not None and required not in functions
        ):
            raise exception.RegionUnusable(
                f"{before.region} cannot hold both image {bitstream.image} and "
                f"{before.image_id or required}, which {lease.address} of instance "
                f"{lease.consumer_title} requires",
                hint="unplug the instance, then plug it again",
                reason=exception.RegionReason.IN_USE,
            )
        requirements.append(
            RegionRequirement(
                lease, before.region, bitstream, required, before.is_exact
            )
        )
    return ProgrammingJob(requirements[0].region, tuple(requirements))


def job(
    now: Region,
    requirements: Sequence[RegionRequirement],
    unverified: UnverifiedRegions,
) -> ProgrammingJob | None:
    """Return the job that makes a region meet its requirements; None: it does.

    :param requirements: all requirements on this region.
    :raises RegionUnusable: no single bitstream meets all requirements.
    :raises OsAccError: see :meth:`RegionRequirement.check`.
    """
    for each in requirements:
        each.check(now, unverified)
    unmet = [each for each in requirements if not each.is_met(now, unverified)]
    if not unmet:
        return None
    contents = unmet[0].title
    for each in requirements:
        if each.title != contents:
            raise exception.RegionUnusable(
                f"{now} cannot hold both {contents} and {each.title}",
                hint="request two regions, with group_policy=isolate",
                reason=exception.RegionReason.IN_USE,
            )
    return ProgrammingJob(now, tuple(requirements))


def implemented(bitstream: Bitstream) -> frozenset[str]:
    """Return the declared functions of a bitstream, as canonical UUIDs."""
    if bitstream.header.function_ids:
        return frozenset(bitstream.header.function_ids)
    # Hardware reports UUIDs only; any other name cannot be compared.
    declared = map(canonical_uuid, properties.function_ids(bitstream.image))
    return frozenset(each for each in declared if each)


def recorded_of(image: Image) -> RecordedImage:
    """Return the fields of an image that identify its file."""
    return RecordedImage(image.id, image.hash_algo, image.hash_value)


def content(image: Image | Programming, boot_id: str) -> str:
    """Return the record of verified contents: the hash of the image and the boot.

    By the next boot the region may hold another bitstream with the same function.
    """
    return f"{image.hash_algo} {image.hash_value} in boot {boot_id}"
