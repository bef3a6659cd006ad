# SPDX-License-Identifier: Apache-2.0

"""Run vendors' privileged steps as root.

The library does for a vendor's function what it does for its own steps: it checks the
arguments, locks the device, compares the epoch, and runs the function in a child of
:mod:`os_acc.privsep.worker` until a deadline. The function itself decides only what is
written.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
from collections.abc import Callable
from typing import Any, Final

from os_acc.objects.mdev import DeviceAddress, MdevSlot
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, mdev, record, rootconf, targets, worker
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.rootconf import RootConf
from os_acc.privsep.step import (
    Parameters,
    Plain,
    StepPurpose,
    StepTarget,
    is_plain,
    parent_of,
)
from os_acc.privsep.targets import BindTarget

#: The step of an answer that is about the vendor's function itself.
STEP: Final = "step"
# Characters of an encoded result, which the child sends through a pipe.
_LONGEST: Final = 1 << 20
# Characters of a reported exception.
_LONGEST_TEXT: Final = 500


def entry_point(
    function: Callable[..., Any], parameters: Parameters, *, of_parent: bool = False
) -> Callable[..., CallResult]:
    """Return the function that serves the calls of a step.

    :param function: the vendor's.
    :param parameters: its parameters behind the target.
    :param of_parent: whether it holds the lock of the parent as well.
    """

    @functools.wraps(function)
    def serve(
        device: object,
        members: object,
        card: object,
        epoch: int,
        milliseconds: int,
        lease: str,
        arguments: tuple[Plain, ...],
        purpose: str = StepPurpose.OTHER.value,
        releaser: str = "",
    ) -> CallResult:
        call = _parse(device, members, card, epoch, milliseconds, lease)
        if (
            call is None
            or not parameters.accept(arguments)
            or type(purpose) is not str
            or purpose not in set(StepPurpose)
            or not functions.is_driver_name(releaser)
        ):
            return CallResult(Outcome.INVALID, errno.EINVAL, STEP)
        if call.is_gone():
            return CallResult(Outcome.GONE, errno.ENODEV, "identity")
        permits = _permission(call, StepPurpose(purpose), releaser)

        def job(index: int) -> CallResult:
            # One step for all locked functions.
            if index:
                return CallResult(Outcome.OK)
            return _guarded(call, permits, function, arguments)

        parents = call.parents if of_parent else ()
        seconds = milliseconds / 1000
        return worker.run(call.locks, epoch, seconds, job, parents=parents)[0]

    return serve


def health_entry_point(
    function: Callable[..., Any], parameters: Parameters
) -> Callable[..., CallResult]:
    """Return the function that serves the calls of a health step.

    :param function: the vendor's.
    :param parameters: its parameters behind the target.
    """

    @functools.wraps(function)
    def serve(
        member: object, milliseconds: int, arguments: tuple[Plain, ...]
    ) -> CallResult:
        parsed = targets.parse_each(0, (member,), 2)
        is_valid = functions.is_deadline(milliseconds) and parameters.accept(arguments)
        if not parsed or not is_valid:
            return CallResult(Outcome.INVALID, errno.EINVAL, STEP)
        address = parsed[0].address
        call = _StepCall(StepTarget("", address, (address,)), parsed, None)
        if call.is_gone():
            return CallResult(Outcome.GONE, errno.ENODEV, "identity")
        root = rootconf.current()

        def allows() -> bool:
            # A PF reports the health of its VFs.
            return root.allows(address, *functions.vfs(address))

        # Without an epoch: that of a reading could outdate the call of a plug.
        return worker.run(
            call.locks,
            None,
            milliseconds / 1000,
            lambda _index: _guarded(call, allows, function, arguments),
        )[0]

    return serve


def encode(value: Plain) -> str:
    """Encode the result of a step."""
    return json.dumps(value, default=lambda each: {"hex": each.hex()})


def decode(text: str) -> Plain:
    """Decode the result of a step."""
    found: Plain = _with_tuples(json.loads(text))
    return found


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True, slots=True)
class _StepCall:
    """A call whose arguments have been parsed.

    :ivar members: the functions of the lease, or the parent of its slot.
    :ivar card: the card of ``target``, unless it is one of ``members``.
    """

    target: StepTarget
    members: tuple[BindTarget, ...]
    card: BindTarget | None

    @property
    def locks(self) -> tuple[DeviceAddress, ...]:
        """The devices to be locked; other leases of the same parent go on."""
        slot = self.target.address
        own = (slot,) if isinstance(slot, MdevSlot) else self.target.functions
        return own if self.card is None else (*own, self.card.address)

    @property
    def parents(self) -> frozenset[PciAddress | str]:
        """The parents of its functions, or the name of its virtual parent."""
        slot = self.target.address
        if isinstance(slot, MdevSlot) and not self.members:
            return frozenset({slot.type.parent})
        return frozenset(parent_of(each.address) for each in self.all_functions)

    @property
    def all_functions(self) -> tuple[BindTarget, ...]:
        """The functions whose identity is checked."""
        return self.members if self.card is None else (*self.members, self.card)

    def is_gone(self) -> bool:
        """Return whether a part of the device is not there.

        :raises OSError: the kernel gives no information.
        """
        slot = self.target.address
        if isinstance(slot, MdevSlot) and not mdev.has_parent(slot.type):
            return True
        return not all(functions.exists(each.address) for each in self.all_functions)

    def permission(self) -> Callable[[], bool]:
        """Return the decision of root's configuration, for a worker's child."""
        root = rootconf.current()
        slot = self.target.address
        if isinstance(slot, MdevSlot):
            return lambda: root.allows_mdev(slot.type)
        allows = targets.permission(self.members)
        return lambda: (
            not any(targets.is_denied(each, allows) for each in self.members)
            and self._allows_card(root)
        )

    def _allows_card(self, root: RootConf) -> bool:
        if self.card is None:
            return True
        return root.allows(self.card.address, *functions.vfs(self.card.address))

    def is_recorded(self) -> bool:
        """Return whether the helper has the whole device on record for the lease."""
        slot = self.target.address
        if self.card is not None:
            return False
        if isinstance(slot, MdevSlot):
            return mdev.holder_of(slot) == self.target.lease
        return bool(self.members) and all(
            record.lease_of(each.address, each.identity, self.target.lease)
            == self.target.lease
            for each in self.members
        )

    def record(self, releaser: str) -> None:
        """Record the device for the lease, with the plugin that has to release it.

        :raises OSError: a record cannot be written.
        """
        slot, lease = self.target.address, self.target.lease
        if isinstance(slot, MdevSlot):
            mdev.record_slot(slot, lease, releaser)
            return
        for each in self.members:
            own = (each.address, each.identity, lease)
            found = record.of(*own) or record.present(*own, FunctionUse.HOST)
            found = dataclasses.replace(found, serial=found.serial or each.serial)
            if found.releaser != releaser or not record.exists(each.address):
                record.write(dataclasses.replace(found, releaser=releaser))

    def check_identities(self) -> None:
        """Check that all functions are the ones that the caller expects.

        :raises CallRefused: one is not.
        """
        for each in self.all_functions:
            refusal = functions.changed(each.address, each.identity)
            if refusal is not None:
                raise CallRefused(refusal)

    def check_claims(self) -> None:
        """Check that no other lease has taken a function, or the slot.

        :raises CallRefused: one has.
        """
        slot = self.target.address
        if isinstance(slot, MdevSlot):
            claimed = mdev.claimed_by_another(slot, self.target.lease)
            if claimed is not None:
                raise CallRefused(claimed)
            return
        for each in self.members:
            lease = self.target.lease
            found = record.lease_of(*each[:2], lease, serial=each.serial)
            if found not in (None, lease):
                raise CallRefused(
                    CallResult(Outcome.CLAIMED, errno.EBUSY, str(each.address), found)
                )
            if (changed := targets.exchanged(each, lease)) is not None:
                raise CallRefused(changed)


def _permission(
    call: _StepCall, purpose: StepPurpose, releaser: str
) -> Callable[[], bool]:
    """Return the decision about a step, for a worker's child.

    Root's configuration decides. A device that a lease has already is returned even if
    root's configuration has changed since: the helper's record of the lease decides. It
    is made before the first step that prepares the device, and by the calls that take
    it; it ends once the plugin has returned the device.

    :param releaser: the plugin that has to release the device; '' for none.
    """
    allows = call.permission()

    def permits() -> bool:
        if purpose is StepPurpose.RETURN and call.is_recorded():
            return True
        if not allows():
            return False
        if purpose is StepPurpose.PREPARE and releaser:
            call.record(releaser)
        return True

    return permits


def _parse(
    device: object,
    members: object,
    card: object,
    epoch: object,
    milliseconds: object,
    lease: object,
) -> _StepCall | None:
    """Parse the arguments of the library; return None if they are malformed.

    :param device: the address as four numbers, or parent, type and number of a slot.
    :param members: functions with their identities, as for :func:`.binding.take`.
    :param card: as one of ``members``; () for none.
    """
    if not functions.is_uuid(lease) or not isinstance(members, tuple | list):
        return None
    slot = mdev.parse_slot(device)
    address = slot or functions.parse_address(device)
    if address is None or not targets.is_call(epoch, milliseconds):
        return None
    parsed = targets.parse_each(0, members, 2, 5)
    # A comparison of another object may raise.
    has_card = not isinstance(card, tuple | list) or bool(card)
    of_card = targets.parse_each(0, (card,) if has_card else (), 2)
    if parsed is None or of_card is None:
        return None
    places = tuple(sorted(each.address for each in parsed))
    expected = ({slot.type.function} - {None}) if slot else {address}
    if not expected <= set(places) or (slot and len(places) != len(expected)):
        return None
    programs = of_card[0] if of_card and of_card[0].address not in places else None
    target = StepTarget(lease, address, places, of_card[0].address if of_card else None)
    return _StepCall(target, parsed, programs)


def _guarded(
    call: _StepCall,
    allows: Callable[[], bool],
    function: Callable[..., Any],
    arguments: tuple[Plain, ...],
) -> CallResult:
    """Run the vendor's function if the device is the expected one."""
    try:
        call.check_identities()
        call.check_claims()
        if not allows():
            return rootconf.denied()
        result = _result(function(call.target, *arguments))
    except CallRefused as refusal:
        return refusal.result
    except OSError as error:
        result = _refused(error)
    # A vendor's function may raise anything; the child reports it and ends.
    except Exception as error:  # noqa: BLE001
        text = f"raised {type(error).__name__}: {error}"
        result = CallResult(Outcome.FAILED, 0, STEP, text[:_LONGEST_TEXT])
    try:
        # A replacement of the device may have received the writes.
        call.check_identities()
    except CallRefused as refusal:
        return refusal.result
    except OSError as error:
        return _refused(error)
    return result


def _result(value: object) -> CallResult:
    if not is_plain(value):
        return CallResult(
            Outcome.FAILED,
            0,
            STEP,
            f"returned a {type(value).__name__}, no plain value",
        )
    text = encode(value)  # type: ignore[arg-type]
    if len(text) > _LONGEST:
        return CallResult(Outcome.FAILED, 0, STEP, "returned too much")
    return CallResult(Outcome.OK, 0, STEP, text)


def _refused(error: OSError) -> CallResult:
    detail = "" if error.errno is None else str(error.strerror or "")
    return CallResult(
        Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error), detail
    )
