# SPDX-License-Identifier: Apache-2.0

"""Run vendors' privileged steps as root.

The library does for a vendor's function what it does for its own steps: it checks the
arguments, locks the device, compares the epoch, and runs the function in a child of
:mod:`os_acc.privsep.worker` until a deadline. The function itself decides only what is
written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

from os_acc.objects.mdev import DeviceAddress, MdevSlot
from os_acc.objects.pci import PciAddress
from os_acc.privsep import (
    Context,
    claims,
    locks,
    mdev,
    pci_functions,
    privileged_conf,
    record,
    request,
    worker,
)
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome, refused
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.request import BindTarget
from os_acc.privsep.step import (
    Parameters,
    Plain,
    StepPurpose,
    StepTarget,
    is_plain,
    parent_of,
)

#: The step of an answer that is about the vendor's function itself.
STEP: Final = "step"
# Characters of an encoded result, which the child sends through a pipe.
_LONGEST: Final = 1 << 20
# Characters of a reported exception.
_LONGEST_TEXT: Final = 500


@dataclasses.dataclass(frozen=True, slots=True)
class StepRequest(request.Request):
    """A step for the device of a lease.

    :ivar members: the functions of the lease, or the parent of its slot.
    :ivar cards: the function that programs the region, in a programming only.
    :ivar arguments: those of the vendor's function behind its target.
    :ivar releaser: the plugin that has to release the device; '' for none.
    """

    device: request.Device
    members: request.Targets
    cards: Annotated[tuple[BindTarget, ...], request.each(request.identified)]
    epoch: request.Epoch
    milliseconds: request.Milliseconds
    lease: request.Uuid
    arguments: Annotated[Any, request.that(is_plain)]
    purpose: Annotated[StepPurpose, request.of_kind(StepPurpose)] = StepPurpose.OTHER
    releaser: request.Name = ""

    def validate(self) -> None:
        """Check that the device, or the parent of its slot, is a member."""
        places = {each.address for each in self.members}
        request.require(len(self.cards) <= 1)
        if isinstance(self.device, MdevSlot):
            parent = self.device.type.function
            request.require(places == ({parent} if parent else set()))
        else:
            request.require(self.device in places)

    @property
    def target(self) -> StepTarget:
        """The device, as the vendor's function gets it."""
        places = tuple(sorted(each.address for each in self.members))
        card = next((each.address for each in self.cards), None)
        return StepTarget(self.lease, self.device, places, card)

    @property
    def other_cards(self) -> tuple[BindTarget, ...]:
        """The card, unless it is a member."""
        places = [each.address for each in self.members]
        return tuple(each for each in self.cards if each.address not in places)

    @property
    def locks(self) -> tuple[DeviceAddress, ...]:
        """The devices to be locked; other leases of the same parent go on."""
        is_slot = isinstance(self.device, MdevSlot)
        own = (self.device,) if is_slot else self.target.functions
        return (*own, *(each.address for each in self.other_cards))

    @property
    def parents(self) -> frozenset[PciAddress | str]:
        """The parents of its functions, or the name of its virtual parent."""
        if isinstance(self.device, MdevSlot) and not self.members:
            return frozenset({self.device.type.parent})
        all_functions = (*self.members, *self.other_cards)
        return frozenset(parent_of(each.address) for each in all_functions)


@dataclasses.dataclass(frozen=True, slots=True)
class HealthRequest(request.Request):
    """A health step for one function; see :class:`StepRequest`."""

    function: request.Target
    milliseconds: request.Milliseconds
    arguments: Annotated[Any, request.that(is_plain)]


def entry_point(
    context: Context,
    function: Callable[..., Any],
    parameters: Parameters,
    of_parent: bool,
) -> Callable[..., CallResult]:
    """Return the entry point that serves the calls of a step.

    :param of_parent: whether it holds the lock of the parent as well.
    """

    @request.entrypoint(context, StepRequest)
    @functools.wraps(function)
    def serve(call: StepRequest) -> CallResult:
        request.require(parameters.accept(call.arguments))
        if isinstance(call.device, MdevSlot):
            locks.check_parent(call.device.type.parent)
        present = (*call.members, *call.other_cards)
        pci_functions.check_exists(*(each.address for each in present))

        def job(_index: int) -> CallResult:
            with _unchanged(present):
                _check_claims(call)
                _check_permission(call)
                return _result(function, call.target, call.arguments)

        first, *beside = call.locks
        seconds, parents = call.milliseconds / 1000, call.parents if of_parent else ()
        answers = worker.run(
            [first], call.epoch, seconds, job, parents=parents, beside=beside
        )
        return answers[0]

    return serve


def health_entry_point(
    context: Context, function: Callable[..., Any], parameters: Parameters
) -> Callable[..., CallResult]:
    """Return the entry point that serves the calls of a health step."""

    @request.entrypoint(context, HealthRequest)
    @functools.wraps(function)
    def serve(call: HealthRequest) -> CallResult:
        request.require(parameters.accept(call.arguments))
        address = call.function.address
        pci_functions.check_exists(address)

        def job(_index: int) -> CallResult:
            with _unchanged((call.function,)):
                claims.check_claims((call.function,), "")
                # A PF reports the health of its VFs.
                root = privileged_conf.last_read()
                root.check_allows(address, *pci_functions.vfs(address))
                target = StepTarget("", address, (address,))
                return _result(function, target, call.arguments)

        # Without an epoch: that of a reading could outdate the call of a plug.
        return worker.run([address], None, call.milliseconds / 1000, job)[0]

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


@contextlib.contextmanager
def _unchanged(present: Sequence[BindTarget]) -> Iterator[None]:
    """Check that functions are the expected ones, before and after the block.

    A replacement of the device may have received the writes.
    """
    for each in present:
        pci_functions.check_identity(each.address, each.identity)
    try:
        yield
    finally:
        for each in present:
            pci_functions.check_identity(each.address, each.identity)


def _check_claims(call: StepRequest) -> None:
    if isinstance(call.device, MdevSlot):
        mdev.check_claim(call.device, call.lease)
    else:
        claims.check_claims(call.members, call.lease)


def _check_permission(call: StepRequest) -> None:
    """Check that a step is allowed; record the device that it prepares.

    Root's configuration decides. A device that a lease has already is returned even if
    root's configuration has changed since: the helper's record of the lease decides. It
    is made before the first step that prepares the device, and by the calls that take
    it; it ends once the plugin has returned the device.
    """
    if call.purpose is StepPurpose.RETURN and _is_recorded(call):
        return
    root = privileged_conf.last_read()
    if isinstance(call.device, MdevSlot):
        is_allowed = root.allows_mdev(call.device.type)
    else:
        places = call.target.functions
        is_allowed = not any(root.denies_lease(each, places) for each in places)
        is_allowed = is_allowed and all(
            root.allows(each.address, *pci_functions.vfs(each.address))
            for each in call.other_cards
        )
    if not is_allowed:
        raise privileged_conf.denied()
    if call.purpose is StepPurpose.PREPARE and call.releaser:
        _record(call)


def _is_recorded(call: StepRequest) -> bool:
    if call.other_cards:
        return False
    if isinstance(call.device, MdevSlot):
        return mdev.holder_of(call.device) == call.lease
    return all(
        claims.is_recorded(each.address, each.identity, call.lease)
        for each in call.members
    )


def _record(call: StepRequest) -> None:
    if isinstance(call.device, MdevSlot):
        mdev.record_slot(call.device, call.lease, call.releaser)
        return
    for each in call.members:
        own = (each.address, each.identity, call.lease)
        found = claims.record_of(*own) or record.present(*own, FunctionUse.HOST)
        found = dataclasses.replace(found, serial=found.serial or each.serial)
        if found.releaser != call.releaser or not record.exists(each.address):
            record.write(dataclasses.replace(found, releaser=call.releaser))


def _result(
    function: Callable[..., Any], target: StepTarget, arguments: tuple[Plain, ...]
) -> CallResult:
    try:
        value = function(target, *arguments)
    except CallRefused:
        raise
    except OSError as error:
        detail = "" if error.errno is None else str(error.strerror or "")
        return refused(error)._replace(observed=detail)
    # A vendor's function may raise anything; the child reports it and ends.
    except Exception as error:  # noqa: BLE001
        text = f"raised {type(error).__name__}: {error}"
        return CallResult(Outcome.FAILED, 0, STEP, text[:_LONGEST_TEXT])
    if not is_plain(value):
        text = f"returned a {type(value).__name__}, no plain value"
        return CallResult(Outcome.FAILED, 0, STEP, text)
    text = encode(value)
    if len(text) > _LONGEST:
        return CallResult(Outcome.FAILED, 0, STEP, "returned too much")
    return CallResult(Outcome.OK, 0, STEP, text)
