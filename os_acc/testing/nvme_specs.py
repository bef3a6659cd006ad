# SPDX-License-Identifier: Apache-2.0

"""Frozen values that describe a simulated NVMe controller."""

from __future__ import annotations

import dataclasses

#: Bits of OACS: Format NVM, Namespace Management, Virtualization Management.
FORMATS, MANAGES, VIRTUALIZES = 1 << 1, 1 << 3, 1 << 7
#: Bits of SANICAP.
CRYPTO, BLOCK, OVERWRITE = 0b001, 0b010, 0b100
#: Bits of CMIC: several controllers, and the controller is a VF.
SEVERAL, OF_VF = 0b010, 0b100


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeSpec:
    """An NVMe controller; the names are those of the Base Specification.

    :ivar namespaces: the NSIDs attached to it.
    :ivar unattached: the NSIDs of further namespaces of the subsystem.
    :ivar private: the namespaces of each VF, by the number of the VF, from 1.
    :ivar shared: the NSIDs that are attached to another controller as well.
    :ivar others: CNTLIDs of further controllers of the subsystem.
    :ivar serial: SN, 20 characters of ASCII at most; '': that of its class device.
        A drive keeps its data under it, also at another address.
    :ivar unvmcap: the capacity that no namespace has, in bytes.
    :ivar vq_flexible: the flexible queue resources, which VFs have to be given; 0: a VF
        has resources of its own. So too ``vi_flexible``, of interrupts.
    :ivar is_greedy: the primary controller has all of them at first.
    :ivar refusal: the status with which Format NVM and Sanitize end; 0: they succeed.
    :ivar dlfeat: 0: unknown contents of deallocated blocks; 1: zeroes; 2: ones.
    """

    namespaces: tuple[int, ...] = (1,)
    unattached: tuple[int, ...] = ()
    private: tuple[tuple[int, ...], ...] = ()
    shared: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    oacs: int = FORMATS
    fna: int = 0b100
    sanicap: int = 0
    cmic: int = 0
    oncs: int = 1 << 2
    unvmcap: int = 0
    vq_flexible: int = 0
    vi_flexible: int = 0
    is_greedy: bool = False
    dlfeat: int = 1
    serial: str = ""
    refusal: int = 0
