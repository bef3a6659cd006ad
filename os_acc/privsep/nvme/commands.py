# SPDX-License-Identifier: Apache-2.0

"""The admin commands that os_acc sends to an NVMe controller, and no others.

NVM Express Base Specification 2.0, section 5; include/uapi/linux/nvme_ioctl.h.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import os
import struct
from collections.abc import Iterator

from os_acc.exception import InvalidInput
from os_acc.objects import nvme
from os_acc.objects.nvme import (
    FlexibleResources,
    NvmeController,
    NvmeHealth,
    NvmeNamespace,
    SanitizeAction,
    SanitizeStatus,
    SecondaryController,
)
from os_acc.privsep import kernel

_GET_LOG_PAGE, _IDENTIFY, _FORMAT, _SANITIZE = 0x02, 0x06, 0x80, 0x84
_VIRTUALIZATION_MANAGEMENT = 0x1C
_ALL_NAMESPACES = 0xFFFF_FFFF
# The CNS field of Identify.
_NAMESPACE, _CONTROLLER, _ACTIVE, _ALLOCATED = 0x00, 0x01, 0x02, 0x10
_ATTACHED, _CONTROLLERS, _CAPABILITIES, _SECONDARIES = 0x12, 0x13, 0x14, 0x15
# A controller that repeats a page never ends its list.
_PAGES = 16
# The LID field of Get Log Page.
_HEALTH, _SANITIZE_STATUS = 0x02, 0x81
# struct nvme_passthru_cmd: opcode, flags, rsvd1, nsid, cdw2, cdw3, metadata, addr,
# metadata_len, data_len, cdw10 to cdw15, timeout_ms, result.
_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
# The kernel resets the controller when a command exceeds its time limit
# (nvme_timeout() in drivers/nvme/host/pci.c): a format gets 24 hours, longer than any
# takes.
_QUICK_MS, _FORMAT_MS = 60_000, 86_400_000


class VirtualizationAction(enum.IntEnum):
    """The ACT field of Virtualization Management (section 5.26)."""

    ALLOCATE_TO_PRIMARY = 0x1
    OFFLINE = 0x7
    ASSIGN = 0x8
    ONLINE = 0x9


_LOCKED = "the drive is locked (TCG Opal): unlock it or revert it, with its PSID"
# Status codes of a drive that does not let itself be erased (sections 3.3.3.2.1, .3).
_MEANINGS = {
    0x15: _LOCKED,
    0x286: _LOCKED,
    0x1C: "its last sanitize operation failed: only another one makes it usable",
    0x1D: "a sanitize operation is running in it: wait until it has ended",
    0x20: "the namespace is write protected: end that with Set Features 84h",
    0x23: "the command is locked down (Command and Feature Lockdown)",
}


@dataclasses.dataclass(frozen=True, slots=True)
class AdminQueue:
    """The admin queue of one controller.

    :ivar node: the path of its character device.
    :ivar device: its device number as in sysfs, ``major:minor``.
    :ivar fd: an open descriptor of it, on which all commands go; None: each command
        opens it.
    """

    node: str
    device: str
    fd: int | None = dataclasses.field(default=None, compare=False)

    @contextlib.contextmanager
    def opened(self) -> Iterator[AdminQueue]:
        """Keep the controller open, so that its number can become no other one's."""
        if self.fd is not None:
            yield self
            return
        fd = kernel.current.open_controller(self.node, self.device)
        try:
            yield dataclasses.replace(self, fd=fd)
        finally:
            os.close(fd)

    def controller(self) -> NvmeController:
        """Return what the controller reports of itself.

        :raises OSError: it refused the command, or answered nonsense; so do all
            methods.
        """
        return NvmeController.parse(self._identify(_CONTROLLER))

    def namespace(self, number: int) -> NvmeNamespace:
        """Return what the controller reports of an attached namespace."""
        data = self._identify(_NAMESPACE, number)
        with self._parsing():
            return NvmeNamespace.parse(number, data)

    def active(self) -> tuple[int, ...]:
        """Return the NSIDs of the namespaces attached to the controller."""
        return self._namespaces(_ACTIVE)

    def allocated(self) -> tuple[int, ...]:
        """Return the NSIDs of all namespaces of the subsystem."""
        return self._namespaces(_ALLOCATED)

    def attached(self, number: int) -> frozenset[int]:
        """Return the controllers to which a namespace is attached, by CNTLID."""
        return self._controllers(_ATTACHED, number)

    def controllers(self) -> frozenset[int]:
        """Return all controllers of the subsystem, by CNTLID."""
        return self._controllers(_CONTROLLERS)

    def secondaries(self) -> tuple[SecondaryController, ...]:
        """Return the secondary controllers of this primary controller."""
        found: list[SecondaryController] = []
        for _ in range(_PAGES):
            # The list begins with the CNTID of Command Dword 10.
            first = found[-1].number + 1 if found else 0
            data = self._identify(_SECONDARIES | first << 16)
            with self._parsing():
                page = nvme.parse_secondaries(data)
            found += page
            if len(page) < nvme.LISTED_SECONDARIES:
                return tuple(found)
        raise self._too_many("secondary controllers")

    def flexible_resources(self) -> tuple[FlexibleResources, FlexibleResources]:
        """Return the queues and interrupts that this primary controller distributes.

        A controller without Virtualization Management refuses the command, and has
        none. QEMU has some, and does not set bit 7 of OACS.
        """
        try:
            data = self._identify(_CAPABILITIES)
        except OSError as error:
            if error.errno != errno.EREMOTEIO:
                raise
            data = bytes(nvme.IDENTIFY_SIZE)
        return nvme.parse_flexible(data)

    def virtualize(
        self,
        action: VirtualizationAction,
        controller: int,
        kind: int = 0,
        count: int = 0,
    ) -> None:
        """Carry out an action of Virtualization Management.

        :param controller: CNTLID of the controller that gets the resources.
        :param kind: 0: queues; 1: interrupts.
        """
        cdw10 = controller << 16 | kind << 8 | action
        self._send(_VIRTUALIZATION_MANAGEMENT, 0, cdw10, count)

    def health(self) -> NvmeHealth:
        """Return the SMART / Health Information of the controller."""
        return NvmeHealth.parse(self._log(_HEALTH))

    def sanitize_status(self) -> SanitizeStatus:
        """Return the state of the last sanitize operation."""
        return SanitizeStatus.parse(self._log(_SANITIZE_STATUS))

    def format(self, namespace: NvmeNamespace, secure_erase: int) -> None:
        """Erase a namespace in its present format; return when it is done.

        :param secure_erase: the SES field.
        """
        cdw10 = namespace.format | secure_erase << 9
        self._send(_FORMAT, namespace.number, cdw10, milliseconds=_FORMAT_MS)

    def sanitize(self, action: SanitizeAction) -> None:
        """Start a sanitize operation, of one pass if it overwrites."""
        one_pass = 1 << 4 if action is SanitizeAction.OVERWRITE else 0
        self._send(_SANITIZE, 0, action | one_pass)

    def _namespaces(self, cns: int) -> tuple[int, ...]:
        """Return all pages of a list: each begins behind the NSID of the command."""
        found: list[int] = []
        for _ in range(_PAGES):
            page = nvme.parse_namespaces(self._identify(cns, found[-1] if found else 0))
            found += page
            if len(page) < nvme.LISTED_NAMESPACES:
                return tuple(found)
        raise self._too_many("namespaces")

    def _controllers(self, cns: int, namespace: int = 0) -> frozenset[int]:
        data = self._identify(cns, namespace)
        with self._parsing():
            found = nvme.parse_controllers(data)
        if len(found) == nvme.LISTED_CONTROLLERS:
            raise self._too_many("controllers")
        return frozenset(found)

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except InvalidInput as error:
            raise OSError(errno.EPROTO, str(error), self.node) from error

    def _too_many(self, what: str) -> OSError:
        # A part of a list would hide what an erasure reaches.
        return OSError(errno.EOVERFLOW, f"lists too many {what}", self.node)

    def _identify(self, cdw10: int, namespace: int = 0) -> bytes:
        return self._send(_IDENTIFY, namespace, cdw10, size=nvme.IDENTIFY_SIZE)

    def _log(self, number: int) -> bytes:
        # NUMDL in bits 31:16 is the number of dwords, less one.
        cdw10 = (nvme.LOG_SIZE // 4 - 1) << 16 | number
        return self._send(_GET_LOG_PAGE, _ALL_NAMESPACES, cdw10, size=nvme.LOG_SIZE)

    def _send(
        self,
        opcode: int,
        namespace: int,
        cdw10: int,
        cdw11: int = 0,
        *,
        size: int = 0,
        milliseconds: int = _QUICK_MS,
    ) -> bytes:
        """Send a command; return its data.

        :param size: of the data that the controller returns, in bytes.
        """

        def command(buffer: int) -> bytes:
            return _COMMAND.pack(
                *(opcode, 0, 0, namespace, 0, 0, 0, buffer if size else 0),
                *(0, size, cdw10, cdw11, 0, 0, 0, 0, milliseconds, 0),
            )

        with self.opened() as queue:
            assert queue.fd is not None
            try:
                status, data = kernel.current.nvme_admin(queue.fd, command, size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.node) from error
        if status:
            # Status code type and status code (section 3.3.3.2).
            text = f"command {opcode:02x}h ended with NVMe status {status:#x}"
            if meaning := _MEANINGS.get(status & 0x7FF):
                text = f"{text}: {meaning}"
            raise OSError(errno.EREMOTEIO, text, self.node)
        return data
