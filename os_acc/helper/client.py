# SPDX-License-Identifier: Apache-2.0

"""Client of the privileged helper: typed calls, and typed errors for its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from os_acc import deadlines, exception, privsep
from os_acc.bitstreams import policy
from os_acc.helper import connection, errors
from os_acc.helper.errors import DeviceClaimed as DeviceClaimed
from os_acc.helper.errors import DeviceInParts as DeviceInParts
from os_acc.helper.errors import EpochRefused as EpochRefused
from os_acc.objects.bitstream import Bitstream, Digest
from os_acc.objects.lease import HelperRecord, Lease
from os_acc.objects.mdev import MdevSlot
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.region import Region
from os_acc.privsep import (
    binding,
    claims,
    fpga,
    holders,
    mdev,
    privileged_conf,
    vendor_steps,
    xrt,
)
from os_acc.privsep.images import ImageRequest
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.pci_functions import HELD
from os_acc.privsep.privileged_conf import LimitMode
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.request import DEADLINE_LIMIT_MS, BindTarget, CardRequest, Request
from os_acc.privsep.step import StepPurpose

# A host without FPGAs need not permit the context image.
_AT_ONCE = (privsep.base, privsep.inspect)
# Seconds that a plugin's step has at most.
_LONGEST_STEP = DEADLINE_LIMIT_MS / 1000


class Helper:
    """Privileged steps as typed calls.

    Unless stated otherwise, each method raises HelperUnavailable if no helper starts,
    HelperLost if it ends or does not answer, and HostError if the host, or root's
    configuration, refuses the step.

    :param write_timeout: seconds that the kernel gets for one round trip, except in the
        steps of plugins.
    :param start_timeout: seconds after which the start of a helper is given up.
    :param node: the compute node whose devices it takes; '' if unknown.
    """

    def __init__(
        self,
        write_timeout: float,
        start_timeout: float = connection.START_SECONDS,
        node: str = "",
    ) -> None:
        self.write_timeout = write_timeout
        self._node = node
        self._start_timeout = start_timeout
        self.forget_parent()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """Forget all starts of helpers: a forked child would wait for them forever."""
        self._links: dict[privsep.Context, connection.Connection] = {}

    def start(
        self, deadline: float, contexts: Sequence[privsep.Context] = _AT_ONCE
    ) -> None:
        """Start these contexts.

        :param deadline: on the clock of ``time.monotonic()``, as of all methods.
        """
        for start in [self._link(context).start() for context in contexts]:
            start.wait(deadline)

    def begin(self, context: privsep.Context) -> connection.PendingStart:
        """Begin the start of a context, and do not wait for it."""
        return self._link(context).start()

    def _link(self, context: privsep.Context) -> connection.Connection:
        if (link := self._links.get(context)) is None:
            made = connection.Connection(context, self._start_timeout)
            # Another thread may have made one meanwhile.
            link = self._links.setdefault(context, made)
        return link

    def limits(self, deadline: float) -> tuple[LimitMode, str, str]:
        """Return how root's configuration limits the helper: mode, path, reason."""
        link, limit = self._turn(privsep.base, deadline)
        mode, path, why = link.ask(privileged_conf.limits, limit)
        return LimitMode(mode), path, why

    def take(
        self, leases: Sequence[Lease], deadline: float, asking: Collection[str] = ()
    ) -> Sequence[CallResult]:
        """Bind the function of each lease to its driver, and the others to vfio-pci.

        :param asking: the UUIDs of leases about whose devices VFIO is asked.
        :returns: the answer for each lease; see :func:`.pci_functions.migration`.
        :raises DeviceClaimed: the helper has one of them taken for another lease.
        :raises DeviceInParts: one of them has VFs or mediated devices.
        """
        link, limit = self._turn(privsep.base, deadline)
        calls = [
            claims.TakeRequest(
                *_group(each, _targets(each), limit),
                *(each.uuid, each.eraser, each.releaser, self._node),
                each.uuid in asking,
            )
            for each in leases
        ]
        found: Sequence[Any]
        if len(calls) == 1:
            found = [link.ask(binding.take, limit, calls[0])]
        else:
            found = link.ask(binding.several, limit, _several("take", calls))
        for lease, answers in zip(leases, found, strict=True):
            errors.check(lease.functions, answers)
        return [CallResult(*answers[-1]) for answers in found]

    def reserve(self, lease: Lease, deadline: float, *, instead_of: str = "") -> None:
        """Record the functions of a lease as taken, without changing their binding.

        :param instead_of: the lease to which the records belong so far, as
            :meth:`recorded` lists it.
        :raises DeviceClaimed: the helper has one of them taken for another lease.
        """
        link, limit = self._turn(privsep.base, deadline)
        use = FunctionUse.GUEST if lease.is_the_guests else FunctionUse.HOST
        request = claims.ReserveRequest(
            *_group(lease, _targets(lease), limit),
            lease=lease.uuid,
            use=use,
            instead_of=instead_of,
            eraser=lease.eraser,
            releaser=lease.releaser,
            node=self._node,
        )
        errors.check(lease.functions, link.ask(claims.reserve, limit, request))

    def forget(
        self, lease: str, addresses: Sequence[PciAddress], epoch: int, deadline: float
    ) -> None:
        """Remove a lease's records of functions that are not restored.

        :raises HostError: one of them is on its VFIO driver for the guest.
        """
        link, limit = self._turn(privsep.base, deadline)
        request = claims.ForgetRequest(tuple(addresses), epoch, limit, lease)
        errors.check(addresses, link.ask(claims.forget, limit, request))

    def recorded(self, deadline: float) -> tuple[HelperRecord, ...]:
        """List the functions and slots that the helper has taken in this boot."""
        link, limit = self._turn(privsep.base, deadline)
        return tuple(HelperRecord.of(*each) for each in link.ask(claims.claimed, limit))

    def give_back(
        self, lease: Lease, deadline: float, *, proven_free: bool = False
    ) -> None:
        """Restore the prior binding of all functions of a lease.

        The helper's record of a device that has to be erased or released stays, until
        :meth:`forget`.

        :raises DeviceInUse: a process holds it; the error names the holders.
        """
        link, limit = self._turn(privsep.base, deadline)
        request = _give_back(lease, limit, proven_free=proven_free)
        answers = link.ask(binding.give_back, limit, request)
        outcomes = {CallResult(*answer).outcome for answer in answers}
        if outcomes & {Outcome.IN_USE, Outcome.UNSURE}:
            self.check_free(lease.functions, deadline)
            if not proven_free:
                self.give_back(lease, deadline, proven_free=True)
                return
        errors.check(lease.functions, answers)

    def give_back_several(
        self, leases: Sequence[Lease], deadline: float
    ) -> dict[str, exception.OsAccError | None]:
        """Restore the prior bindings of several leases with one call.

        :returns: by UUID of the lease, None if its functions are restored, or the
            error. Leases with a function that is held, gone or exchanged, or that
            refuses the epoch, are absent: call :meth:`give_back` for each.
        """
        link, limit = self._turn(privsep.base, deadline)
        calls = [_give_back(each, limit) for each in leases]
        found: dict[str, exception.OsAccError | None] = {}
        answered = link.ask(binding.several, limit, _several("give_back", calls))
        for lease, answers in zip(leases, answered, strict=True):
            try:
                errors.check(lease.functions, answers)
                found[lease.uuid] = None
            except (
                exception.DeviceInUse,
                exception.DeviceGone,
                exception.DeviceChanged,
                EpochRefused,
            ):
                continue
            except exception.OsAccError as error:
                found[lease.uuid] = error
        return found

    def create_mdev(
        self,
        lease: Lease,
        slot: MdevSlot,
        deadline: float,
        entrypoint: Callable[..., Any] = mdev.create,
        *,
        asks: bool = False,
    ) -> CallResult:
        """Create the mediated device of a lease; see :meth:`take`.

        :param entrypoint: or ``repair_record``, which only repairs the helper's record.
        :raises DeviceClaimed: the helper has its slot taken for another lease.
        """
        link, limit = self._turn(privsep.base, deadline)
        call = slot, lease.uuid, lease.epoch, limit
        request = mdev.SlotRequest(*call, lease.releaser, self._node, asks)
        answer = CallResult(*link.ask(entrypoint, limit, request))
        errors.check([slot], [answer])
        return answer

    def remove_mdev(
        self, lease: Lease, slot: MdevSlot, deadline: float, *, is_removed: bool = False
    ) -> None:
        """Remove the mediated device of a lease, unless a process holds it.

        :param is_removed: whether only the helper's record of it is left.
        :raises DeviceInUse: a process holds it; the error names the holders.
        """
        if not is_removed:
            self.check_unused(lease, deadline)
        link, limit = self._turn(privsep.base, deadline)
        keeps_record = lease.needs_release and not is_removed
        request = mdev.RemoveRequest(slot, lease.uuid, lease.epoch, limit, keeps_record)
        errors.check([slot], [link.ask(mdev.remove, limit, request)])

    def check_unused(self, lease: Lease, deadline: float) -> None:
        """Check that no process holds the functions of a lease, or its mediated device.

        :raises DeviceInUse: a process does, or even root cannot determine it.
        """
        if lease.slot is None:
            self.check_free(lease.functions, deadline)
            return
        link, limit = self._turn(privsep.inspect, deadline)
        answer = link.ask(holders.mdev_holders, limit, holders.MdevRequest(lease.uuid))
        errors.check_holders(str(lease.slot), answer)

    def check_free(self, addresses: Sequence[PciAddress], deadline: float) -> None:
        """Check that no process holds one of these functions.

        :raises DeviceInUse: a process does, or even root cannot determine it.
        """
        link, limit = self._turn(privsep.inspect, deadline)
        request = holders.HoldersRequest(tuple(addresses))
        answer = link.ask(holders.holders, limit, request)
        errors.check_holders(str(addresses[0]), answer)

    def run_step(
        self,
        step: privsep.Step[Any, *tuple[Any, ...]],
        lease: Lease,
        arguments: tuple[object, ...],
        deadline: float,
        region: Region | None = None,
        purpose: StepPurpose = StepPurpose.OTHER,
    ) -> Any:
        """Run a plugin's step on the device of a lease in the time left.

        :param region: the region that the plugin programs; None in other calls.
        :param purpose: the call of the plugin.
        :returns: the value of the step.
        :raises TypeError: the arguments do not match the parameters of the step.
        """
        if step.is_health:
            raise TypeError(f"{step.name} is a health step, which the library runs")
        if not step.parameters.accept(arguments):
            raise TypeError(
                f"{step.name} is called with {exception.show(arguments)}, which does "
                "not match its parameters"
            )
        link, limit = self._turn(step.context, deadline, most=_LONGEST_STEP)
        members = _targets(lease)
        if lease.slot and lease.slot.type.function and lease.parent:
            members = (BindTarget(lease.slot.type.function, lease.parent.numbers),)
        cards: tuple[BindTarget, ...] = ()
        if region is not None:
            cards = (BindTarget(region.card, region.identity.numbers),)
        request = vendor_steps.StepRequest(
            *(lease.address, members, cards, lease.epoch, limit),
            *(lease.uuid, arguments, purpose, lease.releaser),
        )
        result = CallResult(*link.ask(step.entry, limit, request))
        if result.step == HELD:
            # It names the holders.
            self.check_unused(lease, deadline)
        if result.outcome != Outcome.OK:
            raise errors.of_step(step.name, str(lease.address), result)
        return vendor_steps.decode(result.observed)

    def read_health(
        self,
        step: privsep.Step[privsep.HealthReading],
        function: PciFunction,
        deadline: float,
    ) -> CallResult:
        """Run a health step; see :mod:`os_acc.inventory.health_steps`."""
        link, limit = self._turn(step.context, deadline)
        target = BindTarget(function.address, function.identity.numbers)
        request = vendor_steps.HealthRequest(target, limit, step.arguments)
        return CallResult(*link.ask(step.entry, limit, request))

    def change(
        self,
        card: PciFunction,
        epoch: int,
        deadline: float,
        entrypoint: Callable[..., Any],
        count: int,
        context: privsep.Context = privsep.base,
    ) -> None:
        """Change a card: the number of its VFs or ports, or its services.

        :param entrypoint: of a :class:`.request.CardRequest`, in this context.
        :raises DeviceInUse: a process holds it; the error names the holders.
        """
        link, limit = self._turn(context, deadline)
        request = CardRequest(card.address, card.identity.numbers, count, epoch, limit)
        answer = link.ask(entrypoint, limit, request)
        if CallResult(*answer).outcome == Outcome.IN_USE:
            self.check_free([card.address], deadline)
        errors.check([card.address], [answer])

    def program(
        self,
        region: Region,
        bitstream: Bitstream,
        epoch: int,
        deadline: float,
        entrypoint: Callable[..., Any] | None = None,
    ) -> str:
        """Write a verified bitstream to a region, and read the result back.

        The image is found in the cache by its hash, and hashed once more.

        :param entrypoint: of an :class:`.images.ImageRequest`; None: DFL's.
        :returns: canonical UUID of the region's function.
        :raises RegionUnusable: the region takes no bitstreams.
        :raises ImageUnusable: nothing was written.
        :raises ProgrammingFailed: the region may hold anything, as after
            DeviceStuck and HelperLost.
        :raises DeviceInUse: a process holds it; the error names the holders.
        """
        if region.interface_id is None:
            raise exception.RegionUnusable(
                f"{region} cannot be programmed",
                reason=exception.RegionReason.NOT_PROGRAMMABLE,
            )
        link, limit = self._turn(privsep.image, deadline)
        image, header = bitstream.image, bitstream.header
        signature = (image.properties.get(k, "") for k in policy.SIGNATURE_PROPERTIES)
        request = ImageRequest(
            card=region.card,
            identity=region.identity.numbers,
            number=region.number,
            interface_id=region.interface_id,
            digest=Digest(image.hash_algo, image.hash_value),
            offset=header.payload_offset,
            size=header.payload_size,
            epoch=epoch,
            milliseconds=limit,
            signature=tuple(signature),
        )
        result = CallResult(*link.ask(entrypoint or fpga.program, limit, request))
        if result.outcome == Outcome.IN_USE:
            self.check_free((region.card,), deadline)
        if result.outcome != Outcome.OK:
            raise (
                errors.refusal(region, bitstream, result)
                or errors.of_answer(str(region.card), result)
            )
        return result.observed

    def load_xclbin(
        self, region: Region, bitstream: Bitstream, epoch: int, deadline: float
    ) -> str:
        """Load a verified xclbin into a card on XRT's drivers, and read it back.

        :returns: canonical UUID of the xclbin.
        :raises OsAccError: as :meth:`program`.
        """
        user = dataclasses.replace(region.card, function=region.number)
        # xclmgmt would replace the xclbin even while a process uses it through xocl.
        self.check_free((user,), deadline)
        return self.program(region, bitstream, epoch, deadline, xrt.program)

    def _turn(
        self, context: privsep.Context, deadline: float, most: float | None = None
    ) -> tuple[connection.Connection, int]:
        """Wait for the helper; return it, and the milliseconds for the kernel.

        :param most: the maximum in seconds; None: ``write_timeout``.
        """
        deadlines.left(deadline)
        link = self._link(context)
        link.start().wait(deadline)
        most = self.write_timeout if most is None else most
        seconds = min(most, deadlines.left(deadline))
        return link, max(1, int(seconds * 1000))


def _several(name: str, requests: Sequence[Request]) -> binding.SeveralRequest:
    return binding.SeveralRequest(name, tuple(each.values() for each in requests))


def _group(
    lease: Lease, targets: tuple[BindTarget, ...], limit: int
) -> tuple[int, tuple[BindTarget, ...], int, int]:
    assert lease.handle.iommu_group is not None
    return lease.handle.iommu_group, targets, lease.epoch, limit


def _targets(lease: Lease) -> tuple[BindTarget, ...]:
    """Return the functions of a lease, with the drivers that they get for a guest."""
    return tuple(
        BindTarget(
            *(each.address, each.identity.numbers, lease.driver_of(each.address)),
            serial=each.identity.number,
        )
        for each in lease.prior
    )


def _give_back(
    lease: Lease, limit: int, *, proven_free: bool = False
) -> binding.GiveBackRequest:
    prior = (
        target._replace(driver=each.driver or "", override=each.driver_override or "")
        for target, each in zip(_targets(lease), lease.prior, strict=True)
    )
    return binding.GiveBackRequest(
        *_group(lease, tuple(prior), limit),
        *(proven_free, lease.uuid, lease.eraser, lease.releaser),
    )
