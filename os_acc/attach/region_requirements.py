# SPDX-License-Identifier: Apache-2.0

"""What a lease needs its region to hold, held against what it does hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from os_acc import exception
from os_acc.bitstreams import properties
from os_acc.helper.errors import EpochRefused
from os_acc.objects import bitstream_requests
from os_acc.objects.image import Bitstream, BitstreamRequest, Image
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.region import Programming, Region, UnverifiedRegions
from os_acc.objects.request import title
from os_acc.placement import region_traits

#: After these the hardware still holds what it did. DeviceStuck is another
#: thing: see :func:`is_untouched`.
_UNTOUCHED = (
    exception.BitstreamError,
    exception.DeviceInUse,
    exception.DeviceGone,
    exception.DeviceChanged,
    exception.HelperUnavailable,
    exception.LockTimeout,
    exception.ServiceUnavailable,
    exception.StateUnavailable,
    EpochRefused,
)


@dataclasses.dataclass(frozen=True, slots=True)
class RegionRequirement:
    """What one lease needs.

    :ivar region: as it was when the lease was drafted.
    :ivar bitstream: what it is to be programmed with; None: nothing.
    :ivar function_id: canonical UUID of what was asked for by that; None: it
        was not.
    :ivar is_exact: whether no other bitstream with the same function will do.
    :ivar required: traits of the region, and of what it holds.
    """

    lease: Lease
    region: Region
    bitstream: Bitstream | None = None
    function_id: str | None = None
    is_exact: bool = False
    required: tuple[str, ...] = ()

    @property
    def names_function(self) -> bool:
        """Whether it says by a trait what the region has to hold."""
        return any(map(bitstream_requests.names_function, self.required))

    @property
    def title(self) -> str:
        """What the region holds once it is met."""
        return str(self.bitstream.image) if self.bitstream else "what it does"

    def check(self, now: Region, doubts: UnverifiedRegions) -> None:
        """Refuse what no region can be, or this one cannot without programming.

        :raises InvalidExtraSpec: a trait asks for another function than the
            bitstream has.
        :raises RegionUnusable: no bitstream is requested and the contents are
            unverified (UNKNOWN), or a required trait is missing (MISMATCH).
        """
        lacking = self._lacking(
            bitstream_requests.names_region, region_traits.interface_traits(now)
        )
        if lacking:
            raise exception.RegionUnusable(
                f"{now} has not the trait {lacking}",
                reason=exception.RegionReason.MISMATCH,
            )
        if self.bitstream is not None:
            functions = region_traits.function_traits(now, implemented(self.bitstream))
            if lacking := self._lacking(bitstream_requests.names_function, functions):
                raise exception.InvalidExtraSpec(
                    f"{title(self.lease.group)} has {lacking}, and is to be "
                    f"programmed with image {self.bitstream.image}, of which nothing "
                    "says that it is that",
                    hint="ask for one function; see what the instance's image asks for",
                )
            return
        if now in doubts:
            raise exception.RegionUnusable(
                f"{now} holds nothing known: its last programming is unproved",
                reason=exception.RegionReason.UNKNOWN,
            )
        if not self.names_function and self.function_id is None:
            return
        if not doubts.trusts(now):
            raise exception.RegionUnusable(
                f"what {now} holds is not proved: a guest could program it since",
                reason=exception.RegionReason.MISMATCH,
            )
        if not self.is_served_by(now):
            wanted = [*filter(bitstream_requests.names_function, self.required)]
            if self.function_id is not None:
                wanted.append(f"function_id {self.function_id}")
            raise exception.RegionUnusable(
                f"{now} holds {now.function_id}, and not what the group requires by "
                f"{', '.join(wanted)}",
                reason=exception.RegionReason.MISMATCH,
            )

    def is_met(self, now: Region, doubts: UnverifiedRegions) -> bool:
        """Whether a region holds already what it has to; :meth:`check` has passed."""
        if self.bitstream is None:
            return True
        return (
            doubts.trusts(now)
            and self.is_served_by(now)
            and (
                not self.is_exact
                or doubts.contents.get(now.key)
                == content(self.bitstream.image, self.lease.boot_id)
            )
        )

    def is_served_by(self, now: Region) -> bool:
        """Whether a region that holds this has what is needed.

        Hardware names one function. Where a region is reached by several PCI
        functions, the others of the same bitstream are there as well.
        """
        found = {now.function_id} - {None}
        if self.bitstream is not None:
            functions = implemented(self.bitstream)
            if functions and now.function_id not in functions:
                return False
            if len(now.pci_functions) > 1:
                found |= functions
        if self.function_id is not None and self.function_id not in found:
            return False
        held = region_traits.function_traits(now, filter(None, found))
        return not self._lacking(bitstream_requests.names_function, held)

    def asked(self, now: Region, doubts: UnverifiedRegions) -> Programming:
        """What is recorded of it before anything is programmed."""
        if self.bitstream is None:
            is_named = self.names_function or self.function_id is not None
            function = now.function_id if is_named else None
            return Programming(now, function, boot_id=self.lease.boot_id)
        functions = implemented(self.bitstream)
        if self.is_met(now, doubts):
            function = now.function_id
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
    """One region to be programmed.

    :ivar region: with what it holds.
    :ivar needs: all that there are of it; each is of the same bitstream.
    """

    region: Region
    needs: tuple[RegionRequirement, ...]

    @property
    def lease(self) -> Lease:
        """One of those for which it is programmed."""
        return self.needs[0].lease

    @property
    def bitstream(self) -> Bitstream:
        """What it is programmed with."""
        bitstream = self.needs[0].bitstream
        assert bitstream is not None
        return bitstream

    @property
    def content(self) -> str:
        """What is recorded once it is proved."""
        return content(self.bitstream.image, self.lease.boot_id)


def is_fixed(region: Region | None, wish: BitstreamRequest) -> bool:
    """Whether a region that cannot be programmed is what is asked for already."""
    asked = canonical_uuid(wish.function_id)
    return region is not None and asked is not None and region.function_id == asked


def is_silent(region: Region) -> bool:
    """Whether a region that can be programmed names nothing that it holds."""
    return region.function_id is None and region.interface_id is not None


def of_wish(
    lease: Lease,
    region: Region,
    wish: BitstreamRequest | None,
    bitstream: Bitstream | None,
    required: Sequence[str],
) -> RegionRequirement:
    """What a group, and the image of its guest, ask for."""
    if wish is None:
        return RegionRequirement(lease, region, required=tuple(required))
    if bitstream is None:
        function = canonical_uuid(wish.function_id)
        return RegionRequirement(
            lease, region, function_id=function, required=tuple(required)
        )
    names_image = bool(wish.bitstream_id or wish.bitstream_name)
    return RegionRequirement(
        lease,
        region,
        bitstream,
        canonical_uuid(wish.function_id),
        names_image or len(implemented(bitstream)) != 1,
        tuple(required),
    )


def of_lease(lease: Lease, bitstream: Bitstream) -> RegionRequirement:
    """What a guest had, and is to have again."""
    before = lease.programming
    assert before is not None
    return RegionRequirement(
        lease, before.region, bitstream, before.function_id, before.is_exact
    )


def job(
    now: Region, needs: Sequence[RegionRequirement], doubts: UnverifiedRegions
) -> ProgrammingJob | None:
    """How a region comes to hold what it has to; None: it does already.

    :param needs: all that there are of this region.
    :raises RegionUnusable: no one bitstream is all that is needed.
    :raises OsAccError: as :meth:`Need.check`.
    """
    for need in needs:
        need.check(now, doubts)
    unmet = [need for need in needs if not need.is_met(now, doubts)]
    if not unmet:
        return None
    wanted = unmet[0].title
    for need in needs:
        if need.title != wanted:
            raise exception.RegionUnusable(
                f"{now} cannot hold {wanted} and {need.title}",
                hint="ask for two regions, with group_policy=isolate",
                reason=exception.RegionReason.IN_USE,
            )
    return ProgrammingJob(now, tuple(needs))


def implemented(bitstream: Bitstream) -> frozenset[str]:
    """What a bitstream has, as canonical UUIDs; nothing where nobody says."""
    if bitstream.header.function_ids:
        return frozenset(bitstream.header.function_ids)
    # Hardware tells nothing but a UUID; any other name cannot be compared.
    told = map(canonical_uuid, properties.function_ids(bitstream.image))
    return frozenset(each for each in told if each)


def content(made_of: Image | Programming, boot_id: str) -> str:
    """What is recorded of a region that was proved to hold an image.

    It may have lost that by the next boot, and hold another bitstream with the
    same function.
    """
    return f"{made_of.hash_algo} {made_of.hash_value} in boot {boot_id}"


def is_untouched(error: exception.OsAccError) -> bool:
    """Whether a programming has ended before the hardware was touched."""
    if isinstance(error, exception.DeviceStuck):
        # Without an address it is the time that was over before a step began.
        return not error.address
    return isinstance(error, _UNTOUCHED)
