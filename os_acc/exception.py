# SPDX-License-Identifier: Apache-2.0

"""What can go wrong, as types.

Every error says what happened (the message), what to do about it (``hint``)
and whether the same call may succeed later without anybody's doing
(``retryable``). Whatever caused it is chained (``raise ... from``).
"""

from __future__ import annotations

import builtins
import difflib
import reprlib
from collections.abc import Iterable, Sequence
from errno import EINTR, EMFILE, ENFILE, ENOMEM
from typing import Any, ClassVar, Final

#: Characters of a message, and of a hint: an error fits into one line of a log,
#: also with the text of a service, a file or a caller in it.
LONGEST_MESSAGE: Final = 1500
LONGEST_HINT: Final = 480

#: A process or the host has run out of something for the moment. It says nothing
#: about the device, the disk or the file on which a call was refused so.
EXHAUSTED: Final = frozenset({EMFILE, ENFILE, ENOMEM, EINTR})
_EXHAUSTED_HINT: Final = (
    "retry; see the limits of the service (LimitNOFILE, TasksMax) and the memory of"
    " the host"
)


# -- texts in errors --------------------------------------------------------

_NOTE: Final = "... ({} more characters)"


def shorten(text: str, most: int) -> str:
    """Return the text, cut to so many characters where it has more.

    The number of characters that are left out follows the cut.
    """
    if len(text) <= most:
        return text
    # The longest note is that of the whole text: room for it is always enough.
    room = most - len(_NOTE.format(len(text)))
    return text[:room] + _NOTE.format(len(text) - room)


def encodable(text: str) -> str:
    """Return the text, with an escape for each character that cannot be written."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    """Whether it can be written: half a pair of surrogates is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Characters of a value that is shown.
_LONGEST: Final = 240
# Characters of what may be a misspelling, and candidates that a person reads.
_LONGEST_WORD: Final = 80
_MOST_WORDS: Final = 24


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        # Each further level shows six times as much: of six, 400,000 characters.
        self.maxlevel = 3

    def repr1(self, x: object, level: int) -> str:
        # reprlib goes by the name of a class, which says nothing of what it is.
        if getattr(builtins, type(x).__name__, None) is type(x):
            return super().repr1(x, level)
        return self.repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        # repr() raises ValueError for integers of more than 4300 digits.
        if x.bit_length() > 256:
            return f"an integer of {x.bit_length()} bits"
        return super().repr_int(x, level)


def show(value: object) -> str:
    """Return any value as short text for an error message."""
    return shorten(_Shown().repr(value), _LONGEST)


def some(words: Iterable[str], most: int) -> str:
    """So many of the words as a person reads, and how many more there are."""
    found = list(words)
    shown = ", ".join(found[:most])
    more = len(found) - most
    return f"{shown} and {more} more" if more > 0 else shown


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that this one is probably a misspelling of.

    :param word: None is near to what is no text, and to a text that is no word.
    """
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    near = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.65)
    return near[0] if near else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint for a word that is none of the known ones."""
    candidates = sorted(known)
    near = nearest(word, candidates)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"it has to be one of: {some(candidates, _MOST_WORDS)}"


# -- the base ---------------------------------------------------------------


class OsAccError(Exception):
    """The base of every error that os_acc raises on purpose.

    Both texts are cut where they are too long, and can be encoded.

    :param message: what happened, with the offending value in it.
    :param hint: what a person can do about it.
    """

    #: Whether the same call may succeed later without a change by anybody.
    retryable: bool = False
    #: What to do about it where the place that raises says nothing better.
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = shorten(encodable(message), LONGEST_MESSAGE)
        super().__init__(self.message)
        hint = encodable(hint or self.default_hint)
        self.hint = shorten(hint, LONGEST_HINT)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def set_exhausted(self) -> None:
        """Mark this as an error that passes: see :data:`EXHAUSTED`."""
        self.retryable = True
        self.hint = _EXHAUSTED_HINT


def is_exhaustion(error: BaseException | None) -> bool:
    """Whether a call was refused because something has run out."""
    if isinstance(error, OSError):
        return error.errno in EXHAUSTED
    return isinstance(error, MemoryError)


# -- what the caller passed ------------------------------------------------


class InvalidInput(OsAccError, ValueError):
    """A value that the caller passed is not what the API takes."""


class InvalidPciAddress(InvalidInput):
    """Not a PCI address of the form ``dddd:bb:ss.f``."""

    default_hint = "a PCI address looks like 0000:3b:02.1"


class InvalidInstanceInfo(InvalidInput):
    """``instance_info`` is not a mapping with at least a ``uuid``."""


class InvalidExtraSpec(InvalidInput):
    """A flavor extra spec that is malformed or contradicts another one."""


class InvalidNUMAPolicy(InvalidInput):
    """A NUMA policy that is none, or flavor and image that ask for two."""

    default_hint = "there are required, socket, legacy and preferred"


class InvalidProfile(InvalidInput):
    """A device profile that nobody can be served by."""


class InvalidSelectedProvider(InvalidInput):
    """``selected_rp`` has none of the forms that :func:`os_acc.plug` takes."""


class NoAssignment(InvalidSelectedProvider):
    """What is allocated cannot be what the request groups ask for."""


class AssignmentTooLarge(InvalidSelectedProvider):
    """More groups or providers than are told apart without mappings."""

    default_hint = "pass the allocation request together with its 'mappings'"


class AssignmentTooHard(InvalidSelectedProvider):
    """Which provider serves which group was not found within the budget."""

    default_hint = "pass the allocation request together with its 'mappings'"


class FitUndecided(InvalidInput):
    """Whether a guest fits a host's NUMA cells was not found out.

    :ivar refusals: which of the guest's cells cannot be on which of the host's,
        and why: all that is known (:class:`os_acc.numa.CellRefusal`).
    """

    def __init__(
        self, message: str, *, hint: str = "", refusals: Iterable[Any] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.refusals = tuple(refusals)


class FitTooLarge(FitUndecided):
    """More NUMA cells of a host could carry a guest than can be chosen from."""

    default_hint = "leave out cells of the host that the guest is not to be on"


class FitTooHard(FitUndecided):
    """Whether a guest fits a host's NUMA cells was not found within the budget."""

    default_hint = "ask for the guest's devices in fewer requests, or allow more steps"


class NodeNotFound(InvalidInput):
    """The provider tree has no compute node of the name that was passed."""

    default_hint = "nodename is what Nova calls this node: its root provider"


class InvalidConfiguration(InvalidInput):
    """An option of os_acc has a value that cannot be used."""


class InvalidDeviceSpec(InvalidConfiguration):
    """A value of ``[os_acc] device_spec`` cannot be understood."""


class InvalidNetworkNUMAAffinity(InvalidConfiguration):
    """The NUMA nodes of a network are not told as they have to be.

    The options are Nova's, and so is the name of this error.
    """


# -- the library cannot serve ----------------------------------------------


class CyborgAgentUnavailable(OsAccError):
    """os_acc cannot serve at all; the name is the specification's.

    There is no agent: what is missing is named by the subclasses.
    """


class NotInitialized(CyborgAgentUnavailable):
    """The API was used before :func:`os_acc.initialize` succeeded."""

    default_hint = "call os_acc.initialize() first"


class HelperUnavailable(CyborgAgentUnavailable):
    """The privileged helper cannot be started or does not answer."""

    default_hint = "run 'os-acc check' as the user that nova-compute runs as"


class StateUnavailable(CyborgAgentUnavailable):
    """The state directory or the store in it cannot be used."""


class InitializeTimeout(CyborgAgentUnavailable):
    """Nothing was ready before ``[os_acc] initialize_timeout``."""

    retryable = True


# -- the store --------------------------------------------------------------


class StoreError(StateUnavailable):
    """The store refused an operation; nothing on the host was changed."""


class StoreFull(StoreError):
    """No space is left below ``[os_acc] state_path``."""

    default_hint = "free space on the file system of [os_acc] state_path"


class StoreBusy(StoreError):
    """Another process held the store for longer than the deadline."""

    retryable = True


class StoreTooNew(StoreError):
    """The store was written by a newer os_acc than this one."""

    default_hint = "upgrade os_acc, or restore the state of this version"


class LockTimeout(OsAccError):
    """Somebody else held a lock for longer than the deadline."""

    retryable = True
    default_hint = "another plug or unplug is at work on the same thing"


# -- plug and unplug --------------------------------------------------------


class ProviderNotFound(OsAccError):
    """A selected provider is not one of this host's accelerators."""


class NoDeviceAvailable(OsAccError):
    """A selected provider has no free device for the request."""

    retryable = True


class NUMAPolicyUnmet(NoDeviceAvailable):
    """What is free is not as near to the guest as its NUMA policy wants it."""

    default_hint = (
        "another host may have such a device; a wider policy takes one of these"
    )


class ConsumerConflict(OsAccError):
    """The consumer already holds accelerators of another request."""

    default_hint = "unplug the consumer before plugging another request"


class LeaseNotFound(OsAccError):
    """No lease is recorded for what the caller named."""


class DeviceNotFound(OsAccError):
    """No such device is on this host."""


class DeviceGone(OsAccError):
    """A device that was there before has vanished from the host."""


class DeviceChanged(OsAccError):
    """The device at an address is not the one that was recorded there."""


class DeviceUnsettled(DeviceChanged):
    """The host changed a device while it was being chosen."""

    retryable = True


class DeviceQuarantined(OsAccError):
    """A device that could not be given back clean; it is not offered."""

    default_hint = "look at 'os-acc device show', then 'os-acc device release'"


class DevicesUnreleased(OsAccError):
    """An unplug could not give back everything; the rest is released.

    :ivar released: what was given back, as PCI addresses.
    :ivar unreleased: what was not, with the reason of each.
    :ivar retryable: whether each of these reasons is retryable.
    """

    def __init__(
        self,
        message: str,
        *,
        released: Sequence[str],
        unreleased: Sequence[tuple[str, OsAccError]],
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.released = tuple(released)
        self.unreleased = tuple(unreleased)
        self.retryable = bool(unreleased) and all(
            why.retryable for _, why in unreleased
        )


class PluginFailed(OsAccError):
    """A plugin raised an error of its own; it is chained."""

    default_hint = "this is a fault of the plugin: tell its vendor"


# -- what the host refused --------------------------------------------------


class HostError(OsAccError):
    """A privileged step did not do what it should.

    :ivar address: the PCI address, empty where there is none.
    :ivar errno: the kernel's error number, 0 where it reported none.
    """

    def __init__(
        self, message: str, *, address: str = "", errno: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.address = address
        self.errno = errno


class DeviceInUse(HostError):
    """A process holds the device; it cannot be taken away from it.

    :ivar holders: (pid, command) of who holds it, as far as can be told.
    """

    retryable = True
    default_hint = "wait until the guest has ended, then unplug again"

    def __init__(
        self,
        message: str,
        *,
        address: str = "",
        errno: int = 0,
        hint: str = "",
        holders: Sequence[tuple[int, str]] = (),
    ) -> None:
        super().__init__(message, address=address, errno=errno, hint=hint)
        self.holders = tuple(holders)


class DeviceStuck(HostError):
    """A write to the kernel did not return before its deadline.

    It may still end. The lease stays until it has.
    """

    retryable = True
    default_hint = "see the kernel's log; the write is still under way"


class IommuUnavailable(HostError):
    """The device is in no IOMMU group that can be given to a guest."""

    default_hint = "switch on the IOMMU in firmware and kernel command line"


class VfioUnavailable(HostError):
    """The kernel has no vfio-pci driver loaded."""

    default_hint = "run 'modprobe vfio-pci', and load it at boot"


class BindRefused(HostError):
    """A driver did not take the device."""


class HostStepFailed(HostError):
    """The kernel refused a step, or reported success without effect.

    It is worth a retry where something has run out for the moment.
    """

    def __init__(
        self, message: str, *, address: str = "", errno: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message, address=address, errno=errno, hint=hint)
        if errno in EXHAUSTED:
            self.set_exhausted()


class HelperLost(HostError):
    """The privileged helper ended or went silent during a call."""

    retryable = True


# -- bitstreams -------------------------------------------------------------


class BitstreamError(OsAccError):
    """The bitstream that a request asks for is not one to be programmed."""


class ImageNotFound(BitstreamError):
    """No image is what the request asks for, or none that os_acc may see."""


class ImageAmbiguous(BitstreamError):
    """Several images are what the request asks for.

    Which of them is meant is not for os_acc to guess.
    """

    default_hint = "name one by its id, or take the property from the others"


class ImageMismatch(BitstreamError):
    """The image is built for another region, vendor or board."""


class ImageRefused(BitstreamError):
    """The operator's policy does not let this image be programmed."""

    default_hint = "see [os_acc_bitstreams] for what is allowed"


class ImageInvalid(BitstreamError):
    """The image is not what it has to be: hash, size, header or signature."""

    default_hint = "upload it anew; it was not programmed"


class ImageServiceUnavailable(BitstreamError):
    """Where the images come from does not answer."""

    retryable = True


class ImageServiceNotConfigured(InvalidConfiguration):
    """Nobody has said how to ask for images."""


class CacheFull(BitstreamError):
    """The image does not fit into the cache of bitstreams."""

    default_hint = (
        "free space below [os_acc] state_path, or raise [os_acc_bitstreams] cache_size"
    )


class NotProgrammable(BitstreamError):
    """The device has no region that can be programmed."""


class RegionInUse(BitstreamError):
    """A guest has a function of the region, which holds something else."""

    retryable = True
    default_hint = "it can be programmed when that guest has ended"


class RegionUnknown(BitstreamError):
    """Nothing is known of what the region holds.

    Its programming failed, or the record of which regions these are is damaged.
    """

    default_hint = "ask for a bitstream: the region is then programmed anew"


class RegionMismatch(BitstreamError):
    """A region does not hold, or take, what the flavor requires by a trait.

    Placement knew it otherwise: it has changed since.
    """

    retryable = True
    default_hint = "Placement is told what it holds: schedule the instance again"


class ProgrammingFailed(HostError):
    """The hardware has not taken a bitstream; the region holds nothing known.

    :ivar errors: what the FPGA manager reports, in its own words
        (Documentation/ABI/testing/sysfs-class-fpga-manager, ``status``), or
        what the vendor's tool says.
    """

    default_hint = "the region is not given out before it has been programmed anew"

    def __init__(
        self,
        message: str,
        *,
        address: str = "",
        errno: int = 0,
        hint: str = "",
        errors: Sequence[str] = (),
    ) -> None:
        super().__init__(message, address=address, errno=errno, hint=hint)
        self.errors = tuple(errors)


class ProgrammingOperationError(ProgrammingFailed):
    """The FPGA manager reports ``reconfig operation error``."""


class ProgrammingCrcError(ProgrammingFailed):
    """The FPGA manager reports ``reconfig CRC error``."""


class ProgrammingIncompatible(ProgrammingFailed):
    """The FPGA manager reports ``reconfig incompatible image``."""


class ProgrammingProtocolError(ProgrammingFailed):
    """The FPGA manager reports ``reconfig IP protocol error``."""


class ProgrammingFifoOverflow(ProgrammingFailed):
    """The FPGA manager reports ``reconfig fifo overflow error``."""


class ProgrammingTimedOut(ProgrammingFailed):
    """The kernel has given up waiting for the hardware, which reports nothing."""


class FunctionMismatch(ProgrammingFailed):
    """The region was programmed, and holds another function than it should."""


# -- device profiles --------------------------------------------------------


class ProfileNotFound(OsAccError):
    """There is no device profile of that name."""


class ProfilesUnavailable(OsAccError):
    """Nobody answers who has the device profiles."""

    retryable = True


class FlavorNotFound(OsAccError):
    """Nova has no flavor of that name or id."""


class FlavorsUnavailable(OsAccError):
    """Nova, or Keystone before it, does not answer."""

    retryable = True


class FlavorRefused(OsAccError):
    """Nova does not let a flavor be changed like this."""


# -- Placement ----------------------------------------------------------------


class PlacementError(OsAccError):
    """What this host offers cannot be told to Placement."""


class PlacementUnavailable(PlacementError):
    """Placement, or Keystone before it, does not answer."""

    retryable = True


class PlacementTooOld(PlacementError):
    """Placement does not know the microversion that is needed."""

    default_hint = "upgrade Placement"


class PlacementNotConfigured(InvalidConfiguration):
    """Nobody has said how to ask Placement."""


class NodeNotPublished(PlacementError):
    """Placement does not have the compute node, below which ours belong."""

    retryable = True
    default_hint = (
        "nova-compute makes it when it starts; where it has another name than "
        "[os_acc] node_name, set [os_acc_placement] node_provider"
    )


class PlacementRefused(PlacementError):
    """Placement does not take one change; the others are made."""


class PlacementConflict(PlacementRefused):
    """Others changed the same provider each time that it was to be changed."""

    retryable = True


class ProviderTaken(PlacementRefused):
    """A provider that is not ours has the name or the uuid of one of ours."""

    default_hint = "remove it, or have it renamed by whoever has made it"


# -- accelerator requests ---------------------------------------------------


class RequestNotFound(OsAccError):
    """There is no such accelerator request."""


class RequestConflict(OsAccError):
    """An accelerator request is not in a state in which this can be asked for."""
