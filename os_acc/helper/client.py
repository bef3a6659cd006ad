# SPDX-License-Identifier: Apache-2.0

"""Client of the privileged helper.

It turns the helper's plain answers into typed errors. See
:mod:`os_acc.helper.connection` for the start and replacement of the helper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from os_acc import deadlines, exception, privsep
from os_acc.bitstreams import policy
from os_acc.helper import connection, errors
from os_acc.helper.errors import DeviceClaimed as DeviceClaimed
from os_acc.helper.errors import DeviceInParts as DeviceInParts
from os_acc.helper.errors import EpochRefused as EpochRefused
from os_acc.objects.image import Bitstream
from os_acc.objects.lease import HelperRecord, Lease
from os_acc.objects.mdev import MdevSlot
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.qat import QatServices, number_of
from os_acc.objects.region import Region
from os_acc.privsep import (
    binding,
    fpga,
    functions,
    holders,
    mdev,
    nvme,
    qat,
    record,
    rootconf,
    sriov,
    xrt,
)
from os_acc.privsep.nvme import vf_resources
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.rootconf import LimitMode
from os_acc.privsep.step import StepPurpose

_CONTEXTS = (privsep.base, privsep.inspect, privsep.image)
# A host without FPGAs need not permit the third one.
_AT_ONCE = (privsep.base, privsep.inspect)
# Seconds that a plugin's step has at most.
_LONGEST_STEP = functions.DEADLINE_LIMIT_MS / 1000


class Helper:
    """Privileged steps as typed calls.

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
        self._links = {
            context: connection.Connection(context, self._start_timeout)
            for context in _CONTEXTS
        }

    def start(
        self, deadline: float, contexts: Sequence[privsep.Context] = _AT_ONCE
    ) -> None:
        """Start these contexts.

        :param deadline: on the clock of ``time.monotonic()``.
        :raises HelperUnavailable: they do not start, or not in time.
        """
        for start in [self._link(context).start() for context in contexts]:
            start.wait(deadline)

    def begin(self, context: privsep.Context) -> connection.PendingStart:
        """Begin the start of a context, and do not wait for it."""
        return self._link(context).start()

    def _link(self, context: privsep.Context) -> connection.Connection:
        # Contexts of vendors are known once their plugins are loaded.
        found = self._links.get(context)
        if found is None:
            made = connection.Connection(context, self._start_timeout)
            found = self._links.setdefault(context, made)
        return found

    def limits(self, deadline: float) -> tuple[LimitMode, str, str]:
        """Return how root's configuration limits the helper: mode, path, reason."""
        turn = self._turn(privsep.base, deadline)
        mode, path, why = turn.ask(rootconf.limits)
        return LimitMode(mode), path, why

    def take(self, lease: Lease, deadline: float) -> None:
        """Bind the function of a lease to its driver, and the others to vfio-pci.

        :raises DeviceClaimed: the helper has one of them taken for another lease.
        :raises DeviceInParts: one of them has VFs or mediated devices.
        :raises HostError: the host refused it.
        """
        turn = self._turn(privsep.base, deadline)
        answers = turn.ask(
            binding.take,
            lease.handle.iommu_group,
            lease.targets,
            lease.epoch,
            turn.milliseconds,
            lease.uuid,
            *(lease.eraser, lease.releaser, self._node),
        )
        errors.judge(lease.functions, answers)

    def reserve(self, lease: Lease, deadline: float, *, instead_of: str = "") -> None:
        """Record the functions of a lease as taken, without changing their binding.

        :param instead_of: the lease to which the records belong so far, as
            :meth:`recorded` lists it.
        :raises DeviceClaimed: the helper has one of them taken for another lease.
        :raises HostError: the host refused it.
        """
        turn = self._turn(privsep.base, deadline)
        answers = turn.ask(
            binding.reserve,
            lease.handle.iommu_group,
            lease.targets,
            lease.epoch,
            turn.milliseconds,
            lease.uuid,
            str(FunctionUse.GUEST if lease.is_the_guests else FunctionUse.HOST),
            instead_of,
            *(lease.eraser, lease.releaser, self._node),
        )
        errors.judge(lease.functions, answers)

    def forget(
        self, lease: str, addresses: Sequence[PciAddress], epoch: int, deadline: float
    ) -> None:
        """Remove a lease's records of functions that are not restored.

        :raises HostError: one of them is on its VFIO driver for the guest.
        """
        turn = self._turn(privsep.base, deadline)
        answers = turn.ask(
            binding.forget,
            tuple(address.parts for address in addresses),
            epoch,
            turn.milliseconds,
            lease,
        )
        errors.judge(addresses, answers)

    def recorded(self, deadline: float) -> tuple[HelperRecord, ...]:
        """List the functions and slots that the helper has taken in this boot."""
        turn = self._turn(privsep.base, deadline)
        return tuple(HelperRecord.of(*each) for each in turn.ask(record.claimed))

    def give_back(
        self, lease: Lease, deadline: float, *, proven_free: bool = False
    ) -> None:
        """Restore the prior binding of all functions of a lease.

        The helper's record of a device that has to be erased or released stays, until
        :meth:`forget`.

        :raises HostError: the host refused it; DeviceInUse names holders.
        """
        turn = self._turn(privsep.base, deadline)
        targets = tuple(
            (
                prior.address.parts,
                prior.identity.numbers,
                prior.driver or "",
                prior.driver_override or "",
                prior.identity.number,
            )
            for prior in lease.prior
        )
        answers = turn.ask(
            binding.give_back,
            lease.handle.iommu_group,
            targets,
            lease.epoch,
            turn.milliseconds,
            proven_free,
            lease.uuid,
            lease.eraser,
            lease.releaser,
        )
        outcomes = {CallResult(*answer).outcome for answer in answers}
        if outcomes & {Outcome.IN_USE, Outcome.UNSURE}:
            self.check_free(lease.functions, deadline)
            if not proven_free:
                self.give_back(lease, deadline, proven_free=True)
                return
        errors.judge(lease.functions, answers)

    def create_mdev(self, lease: Lease, slot: MdevSlot, deadline: float) -> None:
        """Create the mediated device of a lease.

        :raises DeviceClaimed: the helper has its slot taken for another lease.
        :raises HostError: the host refused it.
        """
        owner = lease.releaser, self._node
        self._change_mdev(mdev.create, lease, slot, deadline, *owner)

    def remove_mdev(self, lease: Lease, slot: MdevSlot, deadline: float) -> None:
        """Remove the mediated device of a lease, unless a process holds it.

        :raises HostError: the host refused it; DeviceInUse names holders.
        """
        self.check_unused(lease, deadline)
        self._change_mdev(mdev.remove, lease, slot, deadline, lease.owes_release)

    def forget_mdev(self, lease: Lease, slot: MdevSlot, deadline: float) -> None:
        """Remove the helper's record of a mediated device that is removed already."""
        self._change_mdev(mdev.remove, lease, slot, deadline, False)

    def repair_slot(self, lease: Lease, slot: MdevSlot, deadline: float) -> None:
        """Replace the helper's damaged record of a slot by one for a lease.

        It is removed if the lease owes no plugin a release, or has no parent.
        """
        owner = lease.releaser, self._node
        self._change_mdev(mdev.repair_record, lease, slot, deadline, *owner)

    def _change_mdev(
        self,
        entrypoint: Callable[..., Any],
        lease: Lease,
        slot: MdevSlot,
        deadline: float,
        *last: object,
    ) -> None:
        turn = self._turn(privsep.base, deadline)
        answer = turn.ask(
            entrypoint,
            slot.type.parent,
            slot.type.name,
            slot.number,
            lease.uuid,
            lease.epoch,
            turn.milliseconds,
            *last,
        )
        result = CallResult(*answer)
        if result.outcome != Outcome.OK:
            raise errors.of_answer(str(slot), result)

    def check_unused(self, lease: Lease, deadline: float) -> None:
        """Check that no process holds the functions of a lease, or its mediated device.

        :raises DeviceInUse: a process does, or even root cannot determine it.
        """
        if lease.slot is None:
            self.check_free(lease.functions, deadline)
            return
        turn = self._turn(privsep.inspect, deadline)
        answer = turn.ask(holders.mdev_holders, lease.uuid)
        errors.judge_holders(str(lease.slot), answer)

    def check_free(self, addresses: Sequence[PciAddress], deadline: float) -> None:
        """Check that no process holds one of these functions.

        :raises DeviceInUse: a process does, or even root cannot determine it.
        """
        turn = self._turn(privsep.inspect, deadline)
        parts = tuple(address.parts for address in addresses)
        answer = turn.ask(holders.holders, parts)
        errors.judge_holders(str(addresses[0]), answer)

    def run_step(
        self,
        step: privsep.Step[Any, *tuple[Any, ...]],
        target: tuple[object, ...],
        lease: Lease,
        arguments: tuple[object, ...],
        deadline: float,
        purpose: StepPurpose = StepPurpose.OTHER,
    ) -> CallResult:
        """Run a plugin's step in the time left; see :mod:`.helper.vendor_steps`."""
        turn = self._turn(step.context, deadline, most=_LONGEST_STEP)
        call = (*target, lease.epoch, turn.milliseconds, lease.uuid, arguments)
        more = str(purpose), lease.releaser
        return CallResult(*turn.ask(step.entry, *call, *more))

    def read_health(
        self,
        step: privsep.Step[privsep.HealthReading],
        function: PciFunction,
        deadline: float,
    ) -> CallResult:
        """Run a health step; see :mod:`os_acc.inventory.health_steps`."""
        turn = self._turn(step.context, deadline)
        target = (function.address.parts, function.identity.numbers)
        call = target, turn.milliseconds, step.arguments
        return CallResult(*turn.ask(step.entry, *call))

    def set_num_vfs(
        self, function: PciFunction, count: int, epoch: int, deadline: float
    ) -> None:
        """Create this many VFs on a PF.

        :raises HostError: the host refused it.
        """
        self._change(sriov.set_num_vfs, function, (count,), epoch, deadline)

    def share_nvme_resources(
        self, function: PciFunction, count: int, epoch: int, deadline: float
    ) -> None:
        """Share the resources of an NVMe PF among this many VFs, once they exist.

        :raises HostError: they are too few, or the controller refused it.
        """
        step = vf_resources.share_resources
        self._change(step, function, (count,), epoch, deadline, context=nvme.context)

    def set_qat_services(
        self, function: PciFunction, services: QatServices, epoch: int, deadline: float
    ) -> None:
        """Configure a QuickAssist PF without VFs for these services.

        :raises HostError: the host refused it.
        """
        numbers = (number_of(services),)
        self._change(qat.set_qat_services, function, numbers, epoch, deadline)

    def _change(
        self,
        entrypoint: Callable[..., Any],
        card: PciFunction,
        numbers: tuple[int, ...],
        epoch: int,
        deadline: float,
        context: privsep.Context = privsep.base,
    ) -> None:
        """Change a card as a whole."""
        turn = self._turn(context, deadline)
        target = (card.address.parts, card.identity.numbers)
        answer = turn.ask(entrypoint, *target, *numbers, epoch, turn.milliseconds)
        if CallResult(*answer).outcome == Outcome.IN_USE:
            self.check_free((card.address,), deadline)
        errors.judge((card.address,), (answer,))

    def program(
        self, region: Region, bitstream: Bitstream, epoch: int, deadline: float
    ) -> str:
        """Write a verified bitstream to a region, and read the result back.

        The image is found in the cache by its hash, and hashed once more.

        :returns: canonical UUID of the region's function.
        :raises RegionUnusable: the region takes no bitstreams.
        :raises ImageUnusable: nothing was written.
        :raises ProgrammingFailed: the region may hold anything, as after
            DeviceStuck and HelperLost.
        :raises HostError: the host refused it; DeviceInUse names holders.
        """
        _check_programmable(region)
        part = bitstream.header.payload_offset, bitstream.header.payload_size
        return self._program(fpga.program, region, bitstream, part, epoch, deadline)

    def load_xclbin(
        self, region: Region, bitstream: Bitstream, epoch: int, deadline: float
    ) -> str:
        """Load a verified xclbin into a card on XRT's drivers, and read it back.

        :returns: canonical UUID of the xclbin.
        :raises OsAccError: as :meth:`program`.
        """
        _check_programmable(region)
        user = dataclasses.replace(region.card, function=region.number)
        # xclmgmt would replace the xclbin even while a process uses it through xocl.
        self.check_free((user,), deadline)
        return self._program(xrt.program, region, bitstream, (), epoch, deadline)

    def _program(
        self,
        entrypoint: Callable[..., Any],
        region: Region,
        bitstream: Bitstream,
        part: tuple[int, ...],
        epoch: int,
        deadline: float,
    ) -> str:
        """Program a region; return its contents as read back, or raise the error.

        :param part: offset and size of the part of the image to send; empty: all.
        """
        turn = self._turn(privsep.image, deadline)
        image = bitstream.image
        found = image.properties
        signature = tuple(found.get(each, "") for each in policy.SIGNATURE_PROPERTIES)
        answer = turn.ask(
            entrypoint,
            region.card.parts,
            region.identity.numbers,
            region.number,
            region.interface_id,
            image.hash_algo,
            image.hash_value,
            *part,
            epoch,
            turn.milliseconds,
            signature,
        )
        result = CallResult(*answer)
        if result.outcome == Outcome.IN_USE:
            self.check_free((region.card,), deadline)
        if result.outcome != Outcome.OK:
            raise (
                errors.refusal(region, bitstream, result)
                or errors.of_answer(str(region.card), result)
            )
        return result.observed

    def release_ports(
        self, card: PciFunction, count: int, epoch: int, deadline: float
    ) -> None:
        """Detach a card's first ports from the host, for VFs to use.

        :raises HostError: the host refused it; DeviceInUse names holders.
        """
        self._change(fpga.release_ports, card, (count,), epoch, deadline)

    def assign_ports(self, card: PciFunction, epoch: int, deadline: float) -> None:
        """Return all ports of a card without VFs to the host.

        :raises HostError: the host refused it; DeviceInUse names holders.
        """
        self._change(fpga.assign_ports, card, (), epoch, deadline)

    def _turn(
        self, context: privsep.Context, deadline: float, most: float | None = None
    ) -> _Turn:
        """Wait for the helper; return a call with the time left for the kernel.

        :param most: the maximum in seconds; None: ``write_timeout``.
        :raises HelperUnavailable: the helper does not start in time.
        :raises DeviceStuck: no time is left.
        """
        deadlines.left(deadline)
        link = self._link(context)
        link.start().wait(deadline)
        most = self.write_timeout if most is None else most
        seconds = min(most, deadlines.left(deadline))
        return _Turn(link, max(1, int(seconds * 1000)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """One call of the helper.

    :ivar milliseconds: time limit for the kernel, passed to the helper.
    """

    link: connection.Connection
    milliseconds: int

    def ask(self, entrypoint: Callable[..., Any], *args: object) -> Any:
        # The helper's own deadline is earlier, so that its answer can arrive.
        seconds = self.milliseconds / 1000 + deadlines.ANSWER
        return self.link.ask(entrypoint, seconds, args)


def _check_programmable(region: Region) -> None:
    if region.interface_id is None:
        raise exception.RegionUnusable(
            f"{region} cannot be programmed",
            reason=exception.RegionReason.NOT_PROGRAMMABLE,
        )
