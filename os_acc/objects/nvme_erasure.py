# SPDX-License-Identifier: Apache-2.0

"""The rules for the erasure of an NVMe device between two guests.

A sanitize operation erases the whole NVM subsystem (NVM Express Base Specification
2.0, section 8.21). Format NVM erases one namespace, or all of them, as the controller
reports in FNA (section 5.14). Neither may reach the data of others.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence

from os_acc import exception
from os_acc.objects.nvme import NvmeController, NvmeNamespace, ReadValue, SanitizeAction


class EraseMethod(enum.StrEnum):
    """A way to erase an NVMe device; the value is the name for the operator."""

    SANITIZE_CRYPTO = "sanitize-crypto"
    SANITIZE_BLOCK = "sanitize-block"
    SANITIZE_OVERWRITE = "sanitize-overwrite"
    FORMAT_CRYPTO = "format-crypto"
    FORMAT = "format"
    DEALLOCATE = "deallocate"

    @property
    def sanitize_action(self) -> SanitizeAction | None:
        """The operation of the Sanitize command; None: another command."""
        return _ACTIONS.get(self)

    @property
    def secure_erase(self) -> int:
        """The SES field of Format NVM; 0: another command."""
        return {EraseMethod.FORMAT: 1, EraseMethod.FORMAT_CRYPTO: 2}.get(self, 0)


_ACTIONS = {
    EraseMethod.SANITIZE_CRYPTO: SanitizeAction.CRYPTO_ERASE,
    EraseMethod.SANITIZE_BLOCK: SanitizeAction.BLOCK_ERASE,
    EraseMethod.SANITIZE_OVERWRITE: SanitizeAction.OVERWRITE,
}


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeDevice:
    """A drive or a VF, with all that an erasure of it could reach.

    :ivar controller: its controller.
    :ivar namespaces: the namespaces attached to it.
    :ivar shared: those of them to which other controllers are attached as well, or may
        be, if the controller does not list them.
    :ivar unattached: the other namespaces of the subsystem, which it cannot format.
    :ivar neighbours: the other controllers of the subsystem, without its own VFs that
        do not exist; None: the controller does not list them.
    :ivar is_vf: it is an SR-IOV virtual function.
    """

    controller: NvmeController
    namespaces: tuple[NvmeNamespace, ...]
    shared: tuple[int, ...] = ()
    unattached: tuple[int, ...] = ()
    neighbours: frozenset[int] | None = frozenset()
    is_vf: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether its subsystem has no other controller.

        A command that reaches the whole subsystem then reaches only what its guest had.
        """
        return not self.is_vf and self.neighbours == frozenset()

    @property
    def is_blank(self) -> bool:
        """Whether there is no namespace that could hold the data of a guest.

        A drive that lists none had some: they were deleted, or its answer is wrong.
        """
        return self.is_vf and not self.namespaces

    @property
    def lacks_namespaces(self) -> bool:
        """Whether a guest may have deleted a namespace of the drive, with its data."""
        if self.is_vf or not self.controller.manages:
            return False
        return self.controller.unallocated > 0 or not self.namespaces

    @property
    def lack(self) -> str:
        """Why a drive lacks disks for its next consumer; '' if it does not.

        A guest can delete or detach its namespaces, and an erasure makes none. Those of
        VFs, also of VFs that do not exist now, are not attached to their PF.
        """
        if self.is_vf or not self.controller.manages:
            return ""
        if not self.namespaces:
            return "has no namespace attached: use nvme create-ns and nvme attach-ns"
        if self.unattached and not self.controller.virtualizes:
            which = _list(self.unattached)
            return f"has namespace {which} not attached: use nvme attach-ns"
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class EraseChoice:
    """The method for a device, or why there is none.

    :ivar method: None: no method is allowed.
    :ivar reasons: for each rule, the methods that it forbids, of those that were tried
        before ``method``; for operators.
    """

    method: EraseMethod | None
    reasons: Mapping[str, Sequence[EraseMethod]]

    def __str__(self) -> str:
        found = (f"{', '.join(each)}: {why}" for why, each in self.reasons.items())
        return "; ".join(found) or "no method is configured"


def choose(device: NvmeDevice, methods: Iterable[EraseMethod]) -> EraseChoice:
    """Return the first of the operator's methods that the rules allow."""
    reasons: dict[str, list[EraseMethod]] = {}
    for method in methods:
        why = refusal(device, method)
        if not why:
            return EraseChoice(method, reasons)
        reasons.setdefault(why, []).append(method)
    return EraseChoice(None, reasons)


def refusal(device: NvmeDevice, method: EraseMethod) -> str:
    """Return the rule that forbids a method for a device; '' if it is allowed."""
    if method.sanitize_action is not None:
        return _no_sanitize(device, method.sanitize_action)
    if not (device.namespaces or device.is_vf or device.controller.manages):
        return "it lists no namespace, and has no command to delete one"
    if device.shared:
        return f"namespace {_list(device.shared)} is shared with another controller"
    if device.unattached and not device.is_vf:
        return (
            f"namespace {_list(device.unattached)} is not attached, and only Sanitize "
            "reaches it"
        )
    if device.lacks_namespaces:
        return (
            "it has capacity without a namespace (UNVMCAP), and only Sanitize reaches "
            "the data of namespaces that were deleted"
        )
    if method.secure_erase:
        return _no_format(device, method)
    return _no_deallocate(device)


def _no_sanitize(device: NvmeDevice, action: SanitizeAction) -> str:
    if device.is_vf:
        return "Sanitize erases the whole subsystem, of which a VF is a part"
    if device.neighbours is None:
        return "Sanitize erases the whole subsystem, which may have other controllers"
    if device.neighbours:
        return (
            "Sanitize erases the whole subsystem, which has controller "
            f"{_list(device.neighbours)} as well"
        )
    if action not in device.controller.sanitizes:
        return "the controller does not support it (SANICAP)"
    return ""


def _no_format(device: NvmeDevice, method: EraseMethod) -> str:
    controller = device.controller
    if not controller.formats:
        return "the controller does not support Format NVM (OACS)"
    if method is EraseMethod.FORMAT_CRYPTO and not controller.crypto_erases:
        return "the controller does not support cryptographic erase (FNA)"
    reaches_all = controller.format_reaches_all or controller.erase_reaches_all
    # All namespaces of a drive that is alone are attached to it, as the caller has
    # checked: they had the same guest, and the subsystem has no others.
    if reaches_all and not device.is_alone:
        return "Format NVM erases all namespaces of the subsystem (FNA)"
    return ""


def _no_deallocate(device: NvmeDevice) -> str:
    if not device.controller.deallocates:
        return "the controller does not support Dataset Management (ONCS)"
    unknown = [
        each.number
        for each in device.namespaces
        if each.read_value is ReadValue.UNKNOWN
    ]
    if unknown:
        return f"namespace {_list(unknown)} may return old data (DLFEAT)"
    return ""


def _list(numbers: Iterable[int]) -> str:
    return exception.some(map(str, sorted(numbers)), 4)
