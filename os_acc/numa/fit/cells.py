# SPDX-License-Identifier: Apache-2.0

"""Check whether one cell of a guest fits one cell of the host.

The rules are those of Nova's ``_numa_fit_instance_cell``
(``nova/virt/hardware.py``): pages, then memory, then CPUs, then overcommit. A
guest does not overcommit against itself; a guest with dedicated CPUs does not
overcommit memory. For dedicated CPUs, counting yields the verdict of
``_pack_instance_onto_cores``; the mapping of host CPUs to guest CPUs is irrelevant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from os_acc.numa.fit.reasons import Reason, ReasonKind
from os_acc.objects.numa import (
    CPUPolicy,
    CPUThreadPolicy,
    InstanceNUMACell,
    MemoryPages,
    NUMACell,
    NUMALimits,
    PageSize,
)


def dedicated_cpu_refusal(
    host: NUMACell,
    cpus: int,
    policy: CPUThreadPolicy | None,
    *,
    emulator: bool = False,
) -> Reason | None:
    """Return the reason why this many CPUs cannot be dedicated; None: they can.

    :param policy: None is ``prefer``.
    :param emulator: require one more CPU for the emulator's threads. Nova
        provides none if the guest's cell has no dedicated CPU.
    """
    free = [len(core & host.free_pcpus) for core in host.siblings]
    if policy is CPUThreadPolicy.ISOLATE:
        threads = max(map(len, host.siblings), default=1) or 1
        whole = sum(each == threads for each in free)
        if threads > 1 and whole and host.pcpuset != host.cpuset:
            return Reason(ReasonKind.THREADS)
        # Nova treats a request for no CPU as a failure.
        if not 1 <= cpus <= whole:
            return Reason(ReasonKind.WHOLE_CORES, cpus, whole)
        left = sum(each > 0 for each in free) - cpus
    else:
        if policy is CPUThreadPolicy.REQUIRE:
            if missing := _no_siblings(host, free, cpus):
                return missing
        elif sum(free) < cpus:
            return Reason(ReasonKind.FREE_PCPUS, cpus, sum(free))
        left = sum(free) - cpus
    if emulator and (left < 1 or not cpus):
        return Reason(ReasonKind.EMULATOR, 1)
    return None


def _no_siblings(host: NUMACell, free: list[int], cpus: int) -> Reason | None:
    """Return the reason why the CPUs cannot be equal groups of siblings."""
    if not any(len(core) > 1 for core in host.siblings):
        return Reason(ReasonKind.NO_THREADS)
    packed = [
        threads * sum(each >= threads for each in free)
        for threads in range(2, max(free) + 1)
    ]
    if not packed or max(packed) < cpus:
        return Reason(ReasonKind.SIBLINGS, cpus, max(packed, default=0))
    return None


_KIB_OF_MIB: Final = 1024


def refusal(
    host: NUMACell,
    guest: InstanceNUMACell,
    limits: NUMALimits | None = None,
    *,
    emulator: bool = False,
) -> Reason | None:
    """Return the reason why this guest cell does not fit; None: it fits.

    :param limits: None: overcommit is not checked.
    :param emulator: require one more dedicated CPU for the emulator.
    """
    return (
        _without_memory(host, guest)
        or _without_cpus(host, guest, emulator)
        or _beyond_limits(host, guest, limits)
    )


def page_size(host: NUMACell, guest: InstanceNUMACell) -> int | Reason:
    """Return the page size that the guest cell would get, in KiB.

    The largest possible size is selected.

    :param guest: a cell that requests a page size.
    """
    pages = _allowed(sorted(host.mempages, key=_by_size), guest.pagesize)
    wanted = guest.memory * _KIB_OF_MIB
    even = [each for each in pages if wanted % each.size_kb == 0]
    for each in reversed(even):
        if wanted <= each.free * each.size_kb:
            return each.size_kb
    if not pages:
        return Reason(ReasonKind.PAGE_SIZE, guest.pagesize or 0)
    if not even:
        return Reason(ReasonKind.UNEVEN_PAGES, wanted, pages[0].size_kb)
    return _too_few(guest, max(each.free * each.size_kb for each in even))


def _by_size(pages: MemoryPages) -> int:
    return pages.size_kb


def _allowed(pages: Sequence[MemoryPages], size: int | None) -> Sequence[MemoryPages]:
    """Select the requested pages from pages in ascending order of size."""
    if size == PageSize.SMALL:
        return pages[:1]
    if size == PageSize.LARGE:
        return pages[1:]
    if size == PageSize.ANY:
        return pages
    return [each for each in pages if each.size_kb == size]


def _without_memory(host: NUMACell, guest: InstanceNUMACell) -> Reason | None:
    if guest.pagesize:
        found = page_size(host, guest)
        return found if isinstance(found, Reason) else None
    dedicated = guest.cpu_policy is not CPUPolicy.SHARED
    if host.mempages:
        return _without_small_pages(min(host.mempages, key=_by_size), guest, dedicated)
    if dedicated and host.available_memory < guest.memory:
        return Reason(ReasonKind.FREE_MEMORY, guest.memory, host.available_memory)
    if host.memory < guest.memory:
        return Reason(ReasonKind.MEMORY, guest.memory, host.memory)
    return None


def _without_small_pages(
    pages: MemoryPages, guest: InstanceNUMACell, dedicated: bool
) -> Reason | None:
    wanted = guest.memory * _KIB_OF_MIB
    if wanted % pages.size_kb:
        return Reason(ReasonKind.UNEVEN_PAGES, wanted, pages.size_kb)
    there = (pages.free if dedicated else pages.total) * pages.size_kb
    return _too_few(guest, there) if there < wanted else None


def _too_few(guest: InstanceNUMACell, there_kib: int) -> Reason:
    return Reason(ReasonKind.FREE_PAGES, guest.memory, there_kib // _KIB_OF_MIB)


def _without_cpus(
    host: NUMACell, guest: InstanceNUMACell, emulator: bool
) -> Reason | None:
    dedicated = len(guest.pcpuset) + emulator
    if guest.cpu_policy is not CPUPolicy.SHARED and dedicated > len(host.pcpuset):
        return Reason(ReasonKind.PCPUS, dedicated, len(host.pcpuset))
    if guest.cpu_policy is not CPUPolicy.DEDICATED and len(guest.cpuset) > len(
        host.cpuset
    ):
        return Reason(ReasonKind.CPUS, len(guest.cpuset), len(host.cpuset))
    if guest.cpu_policy is CPUPolicy.SHARED:
        return None
    if dedicated > len(host.free_pcpus):
        return Reason(ReasonKind.FREE_PCPUS, dedicated, len(host.free_pcpus))
    return dedicated_cpu_refusal(
        host, len(guest.pcpuset), guest.cpu_thread_policy, emulator=emulator
    )


def _beyond_limits(
    host: NUMACell, guest: InstanceNUMACell, limits: NUMALimits | None
) -> Reason | None:
    if limits is None or guest.cpu_policy is CPUPolicy.DEDICATED:
        return None
    cpus = host.cpu_usage + len(guest.cpuset)
    if cpus > (most := len(host.cpuset) * limits.cpu_allocation_ratio):
        return Reason(ReasonKind.CPU_LIMIT, cpus, int(most))
    memory = host.memory_usage + guest.memory
    if memory > (most := host.memory * limits.ram_allocation_ratio):
        return Reason(ReasonKind.RAM_LIMIT, memory, int(most))
    return None
