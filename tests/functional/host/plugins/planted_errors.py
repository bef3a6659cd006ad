# SPDX-License-Identifier: Apache-2.0

"""Plugins whose classes of errors and of reasons are incomplete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from os_acc.plugins import base
from tests.functional.host.plugins.planted_bugs import Planted
from tests.unit import acme

HERE: Final = "tests.functional.host.plugins.planted_errors"


class AcmeError(base.HostError):
    """Does not call the constructor of its base."""

    def __init__(self, code: int) -> None:
        self.code = code


class CodeError(base.OsAccError):
    """Has the vendor's code as its message."""

    def __init__(self, code: Any) -> None:
        super().__init__("the firmware failed")
        self.message = code


class BusyError(base.DeviceInUse):
    """Calls the constructor of a base further up."""

    def __init__(self, *pids: Any) -> None:
        base.OsAccError.__init__(self, f"used by {pids}")


class SilentError(base.OsAccError):
    """Fails when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text for this code")


class ForgetsInPrepare(acme.Acme):
    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        raise AcmeError(5)


class Forgets(acme.Acme):
    fault: ClassVar[Exception] = AcmeError(5)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        raise self.fault


class HasCode(Forgets):
    fault: ClassVar[Exception] = CodeError(5)


class SkipsBase(Forgets):
    fault: ClassVar[Exception] = BusyError(4711)


class IsSilent(Forgets):
    fault: ClassVar[Exception] = SilentError("code 5")


class IsUsed(Forgets):
    """Gives the address as it got it; the error is complete."""

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        raise base.DeviceInUse("busy", address=handle.address)  # type: ignore[arg-type]


class ForgetsInErase(acme.Erases):
    fault: ClassVar[Exception | None] = AcmeError(5)


class Comparing(base.VendorReason):
    """Compares itself with texts, and has no hash for that reason."""

    HOT = "it is too hot"

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    __hash__ = None  # type: ignore[assignment]


class TextReason(str, base.VendorReason):
    """Is text as well."""

    OLD = "its firmware is too old"


class RejectsWithText(Planted):
    reason: ClassVar[base.VendorReason] = TextReason.OLD

    def wrong(self, right: base.Device, usable: base.UsableFunction) -> Iterable[Any]:
        reason = base.RejectReason.UNSUPPORTED
        yield base.RejectedDevice(right.address, reason, "", self.reason)


class RejectsWithoutHash(RejectsWithText):
    reason: ClassVar[base.VendorReason] = Comparing.HOT


class _Lazy(type(base.PluginBase)):  # type: ignore[misc]
    @property
    def contract_version(cls) -> tuple[int, int]:
        raise RuntimeError("no file VERSION")


class VersionFails(acme.Acme, metaclass=_Lazy):
    """Reads its version from a file that is missing."""
