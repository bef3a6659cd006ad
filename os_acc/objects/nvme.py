# SPDX-License-Identifier: Apache-2.0

"""Parse an NVMe controller's identify data and logs, for erasures and health.

NVM Express Base Specification 2.0 (sections 5.16, 5.17) and NVM Command Set
Specification 1.0 (section 4.1.5). All numbers are little-endian.
"""

from __future__ import annotations

import dataclasses
import enum

from os_acc.exception import InvalidInput

#: PCI Code and ID Assignment Specification: an NVM Express I/O controller.
CLASS = 0x010802
#: Size of each data structure of Identify, in bytes.
IDENTIFY_SIZE = 4096
#: Size of the log pages SMART / Health Information and Sanitize Status, in bytes.
LOG_SIZE = 512

#: The largest number of entries in one page of each list.
LISTED_NAMESPACES = 1024
LISTED_CONTROLLERS = 2047
LISTED_SECONDARIES = 127
#: Resources with which a secondary controller can be online (section 8.26).
LEAST_QUEUES, LEAST_INTERRUPTS = 2, 1


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeController:
    """The Identify Controller data structure (CNS 01h).

    :ivar number: CNTLID, unique in the NVM subsystem.
    :ivar shares_subsystem: CMIC bit 1: the subsystem may have further controllers.
    :ivar formats: OACS bit 1: it supports Format NVM.
    :ivar manages: OACS bit 3: it supports Namespace Management, with the lists of
        allocated namespaces and of attached controllers.
    :ivar unallocated: UNVMCAP: the capacity of the subsystem that no namespace has, in
        bytes; 0 without Namespace Management.
    :ivar virtualizes: OACS bit 7: it supports Virtualization Management, and with it
        the list of secondary controllers.
    :ivar sanitizes: SANICAP: the sanitize operations, as numbers of
        :class:`SanitizeAction`.
    :ivar format_reaches_all: FNA bit 0: a format changes all namespaces.
    :ivar erase_reaches_all: FNA bit 1: a secure erase by Format NVM erases all
        namespaces.
    :ivar crypto_erases: FNA bit 2: Format NVM supports cryptographic erase.
    :ivar deallocates: ONCS bit 2: it supports Dataset Management.
    """

    number: int
    shares_subsystem: bool
    formats: bool
    manages: bool
    unallocated: int
    virtualizes: bool
    sanitizes: frozenset[int]
    format_reaches_all: bool
    erase_reaches_all: bool
    crypto_erases: bool
    deallocates: bool

    @classmethod
    def parse(cls, data: bytes) -> NvmeController:
        """Parse the data structure.

        :raises InvalidInput: it has another size.
        """
        _check_size(data, IDENTIFY_SIZE)
        cmic, oacs, fna = data[76], _number(data, 256, 2), data[524]
        sanicap = _number(data, 328, 4)
        return cls(
            number=_number(data, 78, 2),
            shares_subsystem=bool(cmic & 0b10),
            formats=bool(oacs & 1 << 1),
            manages=bool(oacs & 1 << 3),
            unallocated=_number(data, 296, 16) if oacs & 1 << 3 else 0,
            virtualizes=bool(oacs & 1 << 7),
            sanitizes=frozenset(
                int(action) for bit, action in _SANICAP if sanicap & 1 << bit
            ),
            format_reaches_all=bool(fna & 0b001),
            erase_reaches_all=bool(fna & 0b010),
            crypto_erases=bool(fna & 0b100),
            deallocates=bool(_number(data, 520, 2) & 1 << 2),
        )


class SanitizeAction(enum.IntEnum):
    """The SANACT field of the Sanitize command."""

    BLOCK_ERASE = 2
    OVERWRITE = 3
    CRYPTO_ERASE = 4


# The bits of SANICAP, with their operations.
_SANICAP = (
    (0, SanitizeAction.CRYPTO_ERASE),
    (1, SanitizeAction.BLOCK_ERASE),
    (2, SanitizeAction.OVERWRITE),
)


class ReadValue(enum.Enum):
    """The bytes that a deallocated or unwritten block reads as (DLFEAT bits 2:0)."""

    UNKNOWN = None
    ZEROES = 0x00
    ONES = 0xFF


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeNamespace:
    """The Identify Namespace data structure (CNS 00h) of one namespace.

    :ivar number: NSID.
    :ivar blocks: NSZE, its size in logical blocks; 0: the namespace is inactive.
    :ivar block_size: of a logical block in the present format, in bytes.
    :ivar format: the present format, as the fields LBAF, MSET, PI, PIL of Format NVM.
    :ivar is_shareable: NMIC bit 0: several controllers may be attached to it.
    :ivar formatted: FPI: the part that a running format has done, 0.0 to 1.0; None: no
        format is reported.
    :ivar read_value: the contents of a deallocated block.
    """

    number: int
    blocks: int
    block_size: int
    format: int
    is_shareable: bool
    formatted: float | None
    read_value: ReadValue

    @classmethod
    def parse(cls, number: int, data: bytes) -> NvmeNamespace:
        """Parse the data structure.

        :param number: NSID, which the data structure does not have.
        :raises InvalidInput: it has another size, or an invalid format.
        """
        _check_size(data, IDENTIFY_SIZE)
        count, flbas, dps, fpi = data[25], data[26], data[29], data[32]
        low = flbas & 0xF
        high = flbas >> 5 & 0b11 if count > 16 else 0
        supported = _number(data, 128 + 4 * (high << 4 | low), 4)
        size = supported >> 16 & 0xFF
        if not 9 <= size <= 31 and _number(data, 0, 8):
            raise InvalidInput(f"namespace {number} has blocks of 2^{size} bytes")
        done = 1 - (fpi & 0x7F) / 100
        return cls(
            number=number,
            blocks=_number(data, 0, 8),
            block_size=1 << size,
            # Command Dword 10: LBAFL 3:0, MSET 4, PI 7:5, PIL 8, LBAFU 13:12.
            format=low
            | (flbas & 0x10)
            | (dps & 0b111) << 5
            | (dps & 0b1000) << 5
            | high << 12,
            is_shareable=bool(data[30] & 1),
            formatted=max(0.0, done) if fpi & 0x80 and fpi & 0x7F else None,
            read_value={1: ReadValue.ZEROES, 2: ReadValue.ONES}.get(
                data[33] & 0b111, ReadValue.UNKNOWN
            ),
        )


class SanitizeState(enum.IntEnum):
    """The state of the most recent sanitize operation (SSTAT bits 2:0)."""

    NEVER = 0
    COMPLETED = 1
    RUNNING = 2
    FAILED = 3
    COMPLETED_DEALLOCATED = 4


@dataclasses.dataclass(frozen=True, slots=True)
class SanitizeStatus:
    """The Sanitize Status log page (81h).

    :ivar state: None: a value that the specification reserves.
    :ivar progress: SPROG: the part done, 0.0 to 1.0.
    :ivar is_erased: SSTAT bit 8, Global Data Erased: no user data has been written
        since the last successful operation, or ever.
    """

    state: SanitizeState | None
    progress: float
    is_erased: bool

    @classmethod
    def parse(cls, data: bytes) -> SanitizeStatus:
        """Parse the log page.

        :raises InvalidInput: it has another size.
        """
        _check_size(data, LOG_SIZE)
        number = data[2] & 0b111
        known = number in set(SanitizeState)
        return cls(
            state=SanitizeState(number) if known else None,
            progress=_number(data, 0, 2) / 0x10000,
            is_erased=bool(data[3] & 1),
        )

    @property
    def is_running(self) -> bool:
        """Whether an operation is in progress."""
        return self.state is SanitizeState.RUNNING

    @property
    def is_completed(self) -> bool:
        """Whether the last operation completed successfully."""
        return self.state in (
            SanitizeState.COMPLETED,
            SanitizeState.COMPLETED_DEALLOCATED,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeHealth:
    """The SMART / Health Information log page (02h).

    :ivar warning: the Critical Warning field.
    :ivar spare: the remaining spare capacity, in percent.
    :ivar spare_threshold: below which the drive may fail, in percent.
    :ivar used: an estimate of the life used, in percent, 255 for more. It states no
        failure.
    :ivar media_errors: the number of unrecovered data integrity errors.
    """

    warning: int
    spare: int
    spare_threshold: int
    used: int
    media_errors: int

    @classmethod
    def parse(cls, data: bytes) -> NvmeHealth:
        """Parse the log page.

        :raises InvalidInput: it has another size.
        """
        _check_size(data, LOG_SIZE)
        return cls(data[0], data[3], data[4], data[5], _number(data, 160, 16))

    @property
    def fault(self) -> str:
        """Why the drive must not be attached; empty while it is healthy."""
        found = [text for bit, text in _WARNINGS if self.warning & 1 << bit]
        if self.spare < self.spare_threshold and not self.warning & 1:
            found.insert(0, _WARNINGS[0][1])
        return ", ".join(found)

    @property
    def readings(self) -> tuple[tuple[str, int], ...]:
        """The fields by name; numbers that exceed 63 bits are their maximum."""
        return (
            ("critical_warning", self.warning),
            ("available_spare_percent", self.spare),
            ("available_spare_threshold_percent", self.spare_threshold),
            ("used_percent", self.used),
            ("media_errors", min(self.media_errors, 2**63 - 1)),
        )


# Bit 1, the temperature, is no reason: it passes.
_WARNINGS = (
    (0, "its spare capacity is below the threshold"),
    (2, "its reliability is degraded by errors of the media"),
    (3, "its media are read-only"),
    (4, "the backup of its volatile memory has failed"),
    (5, "its persistent memory region is unreliable"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class SecondaryController:
    """One entry of the Secondary Controller List (CNS 15h).

    :ivar number: SCID, its CNTLID.
    :ivar vf_number: VFN: the number of the VF, from 1; 0: it is no VF.
    :ivar is_online: SCS bit 0.
    :ivar queues: NVQ: its queue resources.
    :ivar interrupts: NVI: its interrupt resources.
    """

    number: int
    vf_number: int
    is_online: bool
    queues: int
    interrupts: int

    @property
    def lack(self) -> str:
        """Why no driver can run the controller; '' if one can."""
        has_all = self.queues >= LEAST_QUEUES and self.interrupts >= LEAST_INTERRUPTS
        if has_all and self.is_online:
            return ""
        found = f"{self.queues} queue and {self.interrupts} interrupt resources"
        state = "online" if self.is_online else "offline"
        return f"secondary controller {self.number} is {state}, with {found}"


@dataclasses.dataclass(frozen=True, slots=True)
class FlexibleResources:
    """The queues or the interrupts that a primary controller can distribute.

    A part of the Primary Controller Capabilities (CNS 14h); section 8.26.

    :ivar total: VQFRT or VIFRT: the flexible ones; 0: each controller has its own.
    :ivar primary: VQRFAP or VIRFAP: those of the primary controller.
    :ivar private: VQPRT or VIPRT: what the primary controller has besides.
    :ivar most: VQFRSM or VIFRSM: the most of one secondary controller.
    :ivar step: VQGRAN or VIGRAN: the preferred granularity.
    """

    total: int
    primary: int
    private: int
    most: int
    step: int

    def share(self, count: int, least: int) -> int:
        """Return an even share of each of this many VFs.

        :param least: what a controller needs; the primary one keeps it.
        """
        shared = self.total - max(0, least - self.private)
        each = min(shared // count, self.most)
        return each - each % self.step if each >= self.step else each


def parse_namespaces(data: bytes) -> tuple[int, ...]:
    """Return the NSIDs of a namespace list (CNS 02h, 10h), which 0 ends.

    :raises InvalidInput: it has another size.
    """
    _check_size(data, IDENTIFY_SIZE)
    found = (_number(data, 4 * at, 4) for at in range(LISTED_NAMESPACES))
    return tuple(iter(lambda: next(found, 0), 0))


def parse_controllers(data: bytes) -> tuple[int, ...]:
    """Return the CNTLIDs of a controller list (CNS 12h, 13h).

    :raises InvalidInput: it has another size, or too many entries.
    """
    _check_size(data, IDENTIFY_SIZE)
    count = _number(data, 0, 2)
    if count > LISTED_CONTROLLERS:
        raise InvalidInput(f"a controller list of {count} entries")
    return tuple(_number(data, 2 + 2 * at, 2) for at in range(count))


def parse_secondaries(data: bytes) -> tuple[SecondaryController, ...]:
    """Return the entries of a secondary controller list.

    :raises InvalidInput: it has another size, or too many entries.
    """
    _check_size(data, IDENTIFY_SIZE)
    if data[0] > LISTED_SECONDARIES:
        raise InvalidInput(f"a secondary controller list of {data[0]} entries")
    return tuple(
        SecondaryController(
            number=_number(data, at, 2),
            vf_number=_number(data, at + 8, 2),
            is_online=bool(data[at + 4] & 1),
            queues=_number(data, at + 10, 2),
            interrupts=_number(data, at + 12, 2),
        )
        for at in range(32, 32 * (data[0] + 1), 32)
    )


def parse_flexible(data: bytes) -> tuple[FlexibleResources, FlexibleResources]:
    """Return the queues and the interrupts of the Primary Controller Capabilities.

    :raises InvalidInput: they have another size.
    """
    _check_size(data, IDENTIFY_SIZE)
    queues, interrupts = (
        FlexibleResources(
            # CRT bits 0 and 1: they are flexible at all.
            total=_number(data, at, 4) if data[4] & 1 << bit else 0,
            primary=_number(data, at + 8, 2),
            private=_number(data, at + 10, 2),
            most=_number(data, at + 12, 2),
            step=max(1, _number(data, at + 14, 2)),
        )
        for bit, at in ((0, 32), (1, 64))
    )
    return queues, interrupts


def _check_size(data: bytes, size: int) -> None:
    if len(data) != size:
        raise InvalidInput(f"{len(data)} bytes from an NVMe controller, not {size}")


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
