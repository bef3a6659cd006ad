# SPDX-License-Identifier: Apache-2.0

"""The errors of os_acc.

Each error has a message, a hint on how to solve the problem, and a ``fault``: the
place of the cause. ``retryable`` and ``elsewhere`` tell a caller whether to retry on
this host or on another one. A class that covers several causes has a ``reason``.
The original error is chained (``raise ... from``).
"""

from __future__ import annotations

import builtins
import difflib
import enum
import re
import reprlib
from collections.abc import Iterable, Sequence
from errno import EINTR, EMFILE, ENFILE, ENOMEM
from typing import Any, ClassVar, Final, Self

#: Limits in characters: an error fits into one line of a log, also where it quotes
#: a service, a file or a caller.
LONGEST_MESSAGE: Final = 1500
LONGEST_HINT: Final = 480

#: Temporary exhaustion of a process or of the host. These error numbers say nothing
#: about the device, the disk or the file of the call.
EXHAUSTED: Final = frozenset({EMFILE, ENFILE, ENOMEM, EINTR})
_EXHAUSTED_HINT: Final = (
    "retry; see the limits of the service (LimitNOFILE, TasksMax) and the memory of"
    " the host"
)


# -- texts in errors --------------------------------------------------------

_NOTE: Final = "... ({} more characters)"
# A terminal obeys them. The name of a process or of an image may have some.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def shorten(text: str, most: int) -> str:
    """Return the text with at most this many characters.

    A note at the end gives the number of omitted characters.
    """
    if len(text) <= most:
        return text
    # The note for the whole text is the longest: the result never exceeds the limit.
    room = most - len(_NOTE.format(len(text)))
    return text[:room] + _NOTE.format(len(text) - room)


def encodable(text: str) -> str:
    """Return the text with lone surrogates and control characters escaped."""
    escaped = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    return escaped.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    """Return whether the text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_LONGEST_VALUE: Final = 240
_LONGEST_WORD: Final = 80
_MOST_WORDS: Final = 24


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        # Each level multiplies the size by six: six levels give 400,000 characters.
        self.maxlevel = 3

    def repr1(self, x: object, level: int) -> str:
        # reprlib dispatches on the name of a class, which any class can bear.
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
    return shorten(_Shown().repr(value), _LONGEST_VALUE)


def some(words: Iterable[str], most: int) -> str:
    """Return the first words, and the number of those omitted."""
    found = list(words)
    shown = ", ".join(found[:most])
    more = len(found) - most
    return f"{shown} and {more} more" if more > 0 else shown


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that this one probably misspells.

    :param word: None is returned for other types, and for long texts.
    """
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    near = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.65)
    return near[0] if near else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the nearest known one, or all of them."""
    candidates = sorted(known)
    near = nearest(word, candidates)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"it has to be one of: {some(candidates, _MOST_WORDS)}"


# -- the base ---------------------------------------------------------------


class Fault(enum.StrEnum):
    """The place of the cause of an error."""

    REQUEST = "request"  #: the caller asked for something that cannot be served
    HOST = "host"  #: this compute node
    SERVICE = "service"  #: another OpenStack service
    INTERNAL = "internal"  #: a defect of os_acc or of a plugin


class ErrorReason(enum.StrEnum):
    """Base of the reasons of errors.

    :ivar hint: how to solve the problem, unless the error has a hint of its own.
    :ivar retryable: see :class:`OsAccError`.
    """

    _value_: str
    hint: str
    retryable: bool

    def __new__(cls, value: str, hint: str = "", retryable: bool = False) -> Self:
        """Create a member from its value, hint and ``retryable``."""
        self = str.__new__(cls, value)
        self._value_, self.hint, self.retryable = value, hint, retryable
        return self


class OsAccError(Exception):
    """Base of all errors that os_acc raises on purpose.

    Message and hint are limited in length, and can always be encoded.

    :param message: what failed, on which object.
    :param hint: how to solve the problem.
    :param reason: which of the causes that the class covers; each class with
        reasons has a default.
    """

    #: The place of the cause.
    fault: Fault = Fault.HOST
    #: Whether the same call on this host may succeed later, without intervention.
    retryable: bool = False
    #: Whether another host may serve the request, so that a scheduler may retry.
    elsewhere: bool = True
    reason: ErrorReason | None = None
    #: The hint, unless the error or its reason has one.
    default_hint: ClassVar[str] = ""

    def __init__(
        self, message: str, *, hint: str = "", reason: ErrorReason | None = None
    ) -> None:
        self.message: str = shorten(encodable(message), LONGEST_MESSAGE)
        super().__init__(self.message)
        self.reason = reason or self.reason
        if self.reason is not None:
            hint = hint or self.reason.hint
            self.retryable = self.retryable or self.reason.retryable
        self.hint: str = shorten(encodable(hint or self.default_hint), LONGEST_HINT)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls __init__() without its keyword arguments.
        return _recreated, (type(self), self.args), vars(self)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def set_exhausted(self) -> None:
        """Mark the error as temporary: see :data:`EXHAUSTED`."""
        self.retryable = True
        self.hint = _EXHAUSTED_HINT


def _recreated(kind: type[OsAccError], args: tuple[Any, ...]) -> OsAccError:
    return kind.__new__(kind, *args)


def is_exhaustion(error: BaseException | None) -> bool:
    """Return whether a call failed for lack of descriptors or memory.

    A scan that lacks them is no scan: see :mod:`os_acc.inventory.discovery`.
    """
    if isinstance(error, OSError | HostError):
        return error.errno in EXHAUSTED
    return isinstance(error, MemoryError)


# -- the request ------------------------------------------------------------


class InvalidInput(OsAccError, ValueError):
    """An argument of the API is invalid."""

    fault = Fault.REQUEST
    elsewhere = False


class InvalidExtraSpec(InvalidInput):
    """A flavor extra spec is malformed, or contradicts another one."""


class InvalidProfile(InvalidInput):
    """No host can serve a device profile."""


_PASS_MAPPINGS: Final = "pass the allocation request together with its 'mappings'"


class AllocationReason(ErrorReason):
    """Reasons of :class:`InvalidAllocation`."""

    MALFORMED = "malformed"
    CONTRADICTION = "contradicts the request groups"
    NO_ASSIGNMENT = "no assignment of providers to request groups"
    TOO_LARGE = "too many request groups or providers", _PASS_MAPPINGS
    TOO_HARD = "search budget exhausted", _PASS_MAPPINGS


class InvalidAllocation(InvalidInput):
    """``selected_rp`` is malformed, or does not match the request groups."""

    reason: AllocationReason = AllocationReason.CONTRADICTION


class FitUndecided(InvalidInput):
    """Whether a guest fits the NUMA cells of a host is undecided."""

    elsewhere = True
    default_hint = "allow more steps, or leave out host cells"


class ObjectKind(ErrorReason):
    """Kinds of objects of :class:`NotFound`."""

    DEVICE = "device"
    FLAVOR = "flavor"
    LEASE = "lease"
    NODE = (
        "compute node",
        "nova-compute creates it when it starts; if its name is not [os_acc] "
        "node_name, set [os_acc_placement] node_provider",
        True,
    )
    PROFILE = "device profile"
    PROVIDER = "resource provider"
    REQUEST = "accelerator request"


class NotFound(OsAccError):
    """An object that the caller named does not exist: the lease of a consumer, say.

    :ivar kind: of the object. DEVICE: not on this host. NODE: not in Placement.
    """

    def __init__(self, message: str, *, kind: ObjectKind, hint: str = "") -> None:
        super().__init__(message, hint=hint, reason=kind)
        self.kind = kind
        places = {ObjectKind.DEVICE: Fault.HOST, ObjectKind.NODE: Fault.SERVICE}
        self.fault = places.get(kind, Fault.REQUEST)
        self.elsewhere = kind in (ObjectKind.DEVICE, ObjectKind.PROVIDER)


class ProviderNotFound(NotFound):
    """A selected provider is not an accelerator of this host."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, kind=ObjectKind.PROVIDER, hint=hint)


class ConflictReason(ErrorReason):
    """The object whose state leads to a :class:`Conflict`."""

    CONSUMER = "consumer", "unplug the consumer before plugging another request"
    REQUEST = "accelerator request"


class Conflict(OsAccError):
    """The call is not possible in the present state of the object."""

    fault = Fault.REQUEST
    elsewhere = False
    reason: ConflictReason = ConflictReason.CONSUMER


# -- the library on this host -----------------------------------------------


class ConfigurationReason(ErrorReason):
    """Reasons of :class:`InvalidConfiguration`."""

    INVALID = "invalid option"
    NOT_CONFIGURED = "service not configured"


class InvalidConfiguration(InvalidInput):
    """An option that os_acc reads, its own or Nova's, is invalid or missing."""

    fault = Fault.HOST
    elsewhere = True
    reason: ConfigurationReason = ConfigurationReason.INVALID


class CyborgAgentUnavailable(OsAccError):
    """os_acc cannot serve at all; the specification gives this name."""


class NotInitialized(CyborgAgentUnavailable):
    """The API was used before :func:`os_acc.initialize` succeeded."""

    default_hint = "call os_acc.initialize() first"


class HelperUnavailable(CyborgAgentUnavailable):
    """The privileged helper cannot be started, or does not answer."""

    default_hint = "run 'os-acc check' as the user that nova-compute runs as"


class InitializeTimeout(CyborgAgentUnavailable):
    """Initialization took longer than ``[os_acc] initialize_timeout``."""

    retryable = True


class StateReason(ErrorReason):
    """Reasons of :class:`StateUnavailable`; except for UNUSABLE, of the store."""

    UNUSABLE = "state directory unusable"
    FAILED = "operation failed"
    FULL = "no space left", "free space on the file system of [os_acc] state_path"
    BUSY = "in use by another process", "", True
    TOO_NEW = (
        "written by a newer os_acc",
        "upgrade os_acc; restore the state of this version only if nothing was plugged"
        " or unplugged since",
    )


class StateUnavailable(CyborgAgentUnavailable):
    """The state directory or the store is unusable; the host is unchanged."""

    reason: StateReason = StateReason.UNUSABLE


class LockTimeout(OsAccError):
    """Another operation held a lock beyond the deadline."""

    retryable = True
    default_hint = "another plug or unplug is at work on the same object"


class PluginReason(ErrorReason):
    """Reasons of :class:`PluginFailed`."""

    FAILED = "plugin failed", "this is a defect of the plugin: report it to its vendor"
    NOT_LOADED = (
        "plugin not loaded",
        "install the plugin, or enable it in [os_acc] enabled_plugins; then retry",
    )
    BUSY = (
        "plugin in another call",
        "the plugin is called again once its earlier call has returned",
        True,
    )


class PluginFailed(OsAccError):
    """A plugin cannot do its part.

    It raised an error of its own, which is chained, or did not return (FAILED); or it
    is not loaded, and a device that it has prepared waits for it (NOT_LOADED); or it
    was not called, or too late, since an earlier call did not return (BUSY).
    """

    fault = Fault.INTERNAL
    reason: PluginReason = PluginReason.FAILED


# -- devices ----------------------------------------------------------------


class NoDeviceReason(ErrorReason):
    """Reasons of :class:`NoDeviceAvailable`."""

    NOT_FREE = "too few free devices"
    ERASING = (
        "too few free devices: others are still being erased",
        "another host may have a free device; 'os-acc device list' shows the progress",
    )
    NUMA_POLICY = (
        "too few free devices near the guest",
        "another host may have one near enough; a less strict policy accepts these",
    )
    NETWORK = (
        "no cell of the guest leads to a network",
        "fit the guest to the host with its networks; see os_acc.numa",
    )


class NoDeviceAvailable(OsAccError):
    """A selected provider has too few free devices for the request.

    NETWORK: no device is near enough to the guest's networks, because its cells
    are not.
    """

    retryable = True
    reason: NoDeviceReason = NoDeviceReason.NOT_FREE


class DeviceGone(OsAccError):
    """A known device has vanished from the host."""


class ChangeReason(ErrorReason):
    """Reasons of :class:`DeviceChanged`."""

    REPLACED = "another device at the address"
    UNSETTLED = "changed during its selection", "", True


class DeviceChanged(OsAccError):
    """The device at an address is not as it was recorded."""

    reason: ChangeReason = ChangeReason.REPLACED


class DeviceQuarantined(OsAccError):
    """A device that could not be restored is not offered."""

    default_hint = "see 'os-acc device show', then run 'os-acc device release'"


class DevicesUnreleased(OsAccError):
    """An unplug could not release every device; the others are released.

    :ivar released: PCI addresses of the released devices.
    :ivar unreleased: PCI addresses of the other devices, with the error of each.
    :ivar retryable: whether each of these errors is retryable.
    """

    elsewhere = False

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


class HostError(OsAccError):
    """A privileged step failed.

    :ivar address: the PCI address, or empty.
    :ivar errno: the error number of the kernel, or 0.
    """

    def __init__(
        self,
        message: str,
        *,
        address: str = "",
        errno: int = 0,
        hint: str = "",
        reason: ErrorReason | None = None,
    ) -> None:
        super().__init__(message, hint=hint, reason=reason)
        self.address = address
        self.errno = errno


class DeviceInUse(HostError):
    """A process holds the device, which cannot be taken away from it.

    :ivar holders: (pid, command) of these processes, as far as known.
    """

    retryable = True
    default_hint = "wait until that process has ended, then retry"

    def __init__(
        self, message: str, *, holders: Sequence[tuple[int, str]] = (), **rest: Any
    ) -> None:
        super().__init__(message, **rest)
        self.holders: tuple[tuple[int, str], ...] = tuple(holders)


class DeviceStuck(HostError):
    """A write to the kernel did not return before its deadline.

    It may still end. The lease stays until then.
    """

    retryable = True
    default_hint = "see the kernel's log; the write is still under way"


class StepReason(ErrorReason):
    """Reasons of :class:`HostStepFailed`."""

    REFUSED = "refused by the kernel, or without effect"
    BIND = "driver did not bind the device"
    IOMMU = (
        "no IOMMU group for a guest",
        "switch on the IOMMU in firmware and kernel command line",
    )
    VFIO = "no VFIO driver"
    NO_ANSWER = (
        "does not answer",
        "see the kernel's log, and the power of its slot; it is reserved meanwhile",
    )
    DENIED = "not allowed by root's configuration"
    UNSUITABLE = (
        "cannot serve a guest until it changes",
        "its unit is reserved until it changes, or 'os-acc device release' clears this",
    )
    NO_CAPACITY = (
        "no capacity left for the device",
        "its unit is reserved until another guest has released what it needs",
        True,
    )


class HostStepFailed(HostError):
    """The kernel refused a step, or reported success without effect.

    It is retryable if the error number is one of :data:`EXHAUSTED`, and for want of
    capacity (NO_CAPACITY), which other devices of the same hardware use at present.
    """

    reason: StepReason = StepReason.REFUSED

    def __init__(self, message: str, *, errno: int = 0, **rest: Any) -> None:
        super().__init__(message, errno=errno, **rest)
        if errno in EXHAUSTED:
            self.set_exhausted()


class HelperLost(HostError):
    """The privileged helper ended or went silent during a call."""

    retryable = True


# -- bitstreams -------------------------------------------------------------


class BitstreamError(OsAccError):
    """The requested bitstream cannot be programmed."""

    fault = Fault.REQUEST
    elsewhere = False


class ImageNotFound(BitstreamError):
    """No image matches the request, or os_acc may see none that does."""


class ImageRefused(BitstreamError):
    """The policy of the operator does not permit this image."""

    default_hint = "see [os_acc_bitstreams] for what is allowed"


class ImageReason(ErrorReason):
    """Reasons of :class:`ImageUnusable`."""

    AMBIGUOUS = (
        "several images match",
        "name one by its id, or take the property from the others",
    )
    MISMATCH = "built for another region, vendor or board"
    INVALID = "wrong hash, size, header or signature", "upload it again"


class ImageUnusable(BitstreamError):
    """The image is missing, invalid or not the requested one; none was programmed."""

    reason: ImageReason = ImageReason.INVALID


class CacheFull(BitstreamError):
    """The image does not fit into the cache of bitstreams."""

    fault = Fault.HOST
    elsewhere = True
    default_hint = (
        "free space below [os_acc] state_path, or raise [os_acc_bitstreams] cache_size"
    )


class RegionReason(ErrorReason):
    """Reasons of :class:`RegionUnusable`.

    UNKNOWN: programming failed, or the record of the unverified regions is damaged.
    MISMATCH: the contents or the type changed since Placement was updated.
    """

    NOT_PROGRAMMABLE = "no programmable region"
    IN_USE = "in use by a guest", "it can be programmed when that guest has ended", True
    UNKNOWN = (
        "unknown contents",
        "ask for a bitstream: the region is then programmed anew",
    )
    MISMATCH = (
        "lacks a required trait",
        "Placement is updated with its contents: schedule the instance again",
        True,
    )


class RegionUnusable(BitstreamError):
    """A region of the device cannot serve the request."""

    fault = Fault.HOST
    elsewhere = True
    reason: RegionReason = RegionReason.NOT_PROGRAMMABLE


class ProgrammingReason(ErrorReason):
    """Reasons of :class:`ProgrammingFailed`; five are in the FPGA manager's terms."""

    FAILED = "failed"
    OPERATION = "reconfig operation error"
    CRC = "reconfig CRC error"
    INCOMPATIBLE = "reconfig incompatible image"
    PROTOCOL = "reconfig IP protocol error"
    FIFO_OVERFLOW = "reconfig fifo overflow error"
    TIMEOUT = "timeout of the kernel, without a report of the hardware"
    WRONG_FUNCTION = "the region holds another function than the image's"


class ProgrammingFailed(HostError):
    """The hardware did not accept a bitstream; the region's contents are unknown.

    :ivar errors: the report of the FPGA manager
        (Documentation/ABI/testing/sysfs-class-fpga-manager, ``status``), or of the
        vendor's tool.
    """

    reason: ProgrammingReason = ProgrammingReason.FAILED
    default_hint = "the region is not offered before it is programmed anew"

    def __init__(
        self, message: str, *, errors: Sequence[str] = (), **rest: Any
    ) -> None:
        super().__init__(message, **rest)
        self.errors: tuple[str, ...] = tuple(errors)


# -- other services ---------------------------------------------------------


class ServiceType(enum.StrEnum):
    """Service types of the OpenStack service catalog."""

    ACCELERATOR = "accelerator"
    COMPUTE = "compute"
    IMAGE = "image"
    PLACEMENT = "placement"


class ServiceError(OsAccError):
    """Base of the errors of another OpenStack service.

    :ivar service: the service, or the one that a source on this host stands for.
    """

    fault = Fault.SERVICE
    elsewhere = False

    def __init__(self, message: str, *, service: ServiceType, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.service = service


class OutageReason(ErrorReason):
    """Reasons of :class:`ServiceUnavailable`."""

    NO_ANSWER = "no answer", "", True
    TOO_OLD = "microversion unknown", "upgrade the service"
    LOCAL_SOURCE = "no readable source on this host", "", True


class ServiceUnavailable(ServiceError):
    """A service, or Keystone before it, does not give a usable answer."""

    reason: OutageReason = OutageReason.NO_ANSWER

    def __init__(self, message: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        if self.reason is OutageReason.LOCAL_SOURCE:
            self.fault, self.elsewhere = Fault.HOST, True


class RefusalReason(ErrorReason):
    """Reasons of :class:`ServiceRefused`."""

    REFUSED = "refused"
    CONFLICT = "concurrent updates of the same provider", "", True
    NAME_TAKEN = (
        "name or UUID of a provider taken",
        "remove the other provider, or have its owner rename it",
    )


class ServiceRefused(ServiceError):
    """A service refuses a change; other changes are made."""

    reason: RefusalReason = RefusalReason.REFUSED
