# SPDX-License-Identifier: Apache-2.0

"""Check whether one cell of a guest fits one cell of the host.

The rules are those of Nova's ``_numa_fit_instance_cell``
(``nova/virt/hardware.py``): pages, then memory, then CPUs, then overcommit. A
guest does not overcommit against itself; a guest with dedicated CPUs does not
overcommit memory. For dedicated CPUs, counting yields the verdict of
``_pack_instance_onto_cores``; the mapping of host CPUs to guest CPUs is irrelevant.
A refusal is a message; it has one form for each cause.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Final

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
) -> str | None:
    """Return the reason why this many CPUs cannot be dedicated; None: they can.

    :param policy: None is ``prefer``.
    :param emulator: require one more CPU for the emulator's threads. Nova
        provides none if the guest's cell has no dedicated CPU.
    """
    free = [len(core & host.free_pcpus) for core in host.siblings]
    if policy is CPUThreadPolicy.ISOLATE:
        threads = max(map(len, host.siblings), default=1) or 1
        whole = sum(each == threads for each in free)
        # Nova isolates CPUs on a host with threads only if shared and dedicated CPUs
        # are the same set (``vcpu_pin_set``).
        if threads > 1 and whole and host.pcpuset != host.cpuset:
            return "a whole core is requested, but its cores have several threads"
        # Nova treats a request for no CPU as a failure.
        if not 1 <= cpus <= whole:
            return f"{cpus} whole cores are requested, but {whole} are free"
        left = sum(each > 0 for each in free) - cpus
    else:
        if policy is CPUThreadPolicy.REQUIRE:
            if missing := _no_siblings(host, free, cpus):
                return missing
        elif sum(free) < cpus:
            return f"{cpus} dedicated CPUs are requested, but {sum(free)} are free"
        left = sum(free) - cpus
    if emulator and (left < 1 or not cpus):
        return "no dedicated CPU is left for the emulator's threads"
    return None


def _no_siblings(host: NUMACell, free: list[int], cpus: int) -> str | None:
    """Return the reason why the CPUs cannot be equal groups of siblings."""
    if not any(len(core) > 1 for core in host.siblings):
        return "siblings are required, but its cores have one thread each"
    packed = [
        threads * sum(each >= threads for each in free)
        for threads in range(2, max(free) + 1)
    ]
    most = max(packed, default=0)
    if not packed or most < cpus:
        return f"{cpus} CPUs on siblings are required, but {most} are available"
    return None


_KIB_OF_MIB: Final = 1024
_BY_SIZE: Final = operator.attrgetter("size_kb")
_NO_SUCH_PAGES: Final[Mapping[int | None, str]] = {
    PageSize.SMALL: "it has no pages of a known size",
    PageSize.LARGE: "it has no large pages",
    PageSize.ANY: "it has no pages of a known size",
}


def refusal(
    host: NUMACell,
    guest: InstanceNUMACell,
    limits: NUMALimits | None = None,
    *,
    emulator: bool = False,
) -> str | None:
    """Return the reason why this guest cell does not fit; None: it fits.

    :param limits: None: overcommit is not checked.
    :param emulator: require one more dedicated CPU for the emulator.
    """
    return (
        _without_memory(host, guest)
        or _without_cpus(host, guest, emulator)
        or _beyond_limits(host, guest, limits)
    )


def page_size(host: NUMACell, guest: InstanceNUMACell) -> int | str:
    """Return the page size that the guest cell would get, in KiB.

    The largest possible size is selected.

    :param guest: a cell that requests a page size.
    """
    pages = _allowed(sorted(host.mempages, key=_BY_SIZE), guest.pagesize)
    wanted = guest.memory * _KIB_OF_MIB
    even = [each for each in pages if wanted % each.size_kb == 0]
    for each in reversed(even):
        if wanted <= each.free * each.size_kb:
            return each.size_kb
    if not pages:
        return _NO_SUCH_PAGES.get(
            guest.pagesize, f"it has no pages of {guest.pagesize} KiB"
        )
    if not even:
        return _uneven(wanted, pages[0])
    return _too_few(guest, max(each.free * each.size_kb for each in even))


def _allowed(pages: Sequence[MemoryPages], size: int | None) -> Sequence[MemoryPages]:
    """Select the requested pages from pages in ascending order of size."""
    if size == PageSize.SMALL:
        return pages[:1]
    if size == PageSize.LARGE:
        return pages[1:]
    if size == PageSize.ANY:
        return pages
    return [each for each in pages if each.size_kb == size]


def _without_memory(host: NUMACell, guest: InstanceNUMACell) -> str | None:
    if guest.pagesize:
        found = page_size(host, guest)
        return found if isinstance(found, str) else None
    dedicated = guest.cpu_policy is not CPUPolicy.SHARED
    if host.mempages:
        return _without_small_pages(min(host.mempages, key=_BY_SIZE), guest, dedicated)
    wanted, free = guest.memory, host.available_memory
    if dedicated and free < wanted:
        return f"{wanted} MiB are requested, but {free} MiB are free"
    if host.memory < wanted:
        return f"{wanted} MiB are requested, but it has {host.memory} MiB"
    return None


def _without_small_pages(
    pages: MemoryPages, guest: InstanceNUMACell, dedicated: bool
) -> str | None:
    wanted = guest.memory * _KIB_OF_MIB
    if wanted % pages.size_kb:
        return _uneven(wanted, pages)
    there = (pages.free if dedicated else pages.total) * pages.size_kb
    return _too_few(guest, there) if there < wanted else None


def _too_few(guest: InstanceNUMACell, there_kib: int) -> str:
    there = there_kib // _KIB_OF_MIB
    return f"{guest.memory} MiB are requested, but pages for {there} MiB are free"


def _uneven(wanted_kib: int, pages: MemoryPages) -> str:
    return f"{wanted_kib} KiB are not a whole number of pages of {pages.size_kb} KiB"


def _without_cpus(
    host: NUMACell, guest: InstanceNUMACell, emulator: bool
) -> str | None:
    dedicated = len(guest.pcpuset) + emulator
    if guest.cpu_policy is not CPUPolicy.SHARED and dedicated > len(host.pcpuset):
        return (
            f"{dedicated} dedicated CPUs are requested, but it has {len(host.pcpuset)}"
        )
    shared = len(guest.cpuset)
    if guest.cpu_policy is not CPUPolicy.DEDICATED and shared > len(host.cpuset):
        return f"{shared} shared CPUs are requested, but it has {len(host.cpuset)}"
    if guest.cpu_policy is CPUPolicy.SHARED:
        return None
    if dedicated > (free := len(host.free_pcpus)):
        return f"{dedicated} dedicated CPUs are requested, but {free} are free"
    return dedicated_cpu_refusal(
        host, len(guest.pcpuset), guest.cpu_thread_policy, emulator=emulator
    )


def _beyond_limits(
    host: NUMACell, guest: InstanceNUMACell, limits: NUMALimits | None
) -> str | None:
    if limits is None or guest.cpu_policy is CPUPolicy.DEDICATED:
        return None
    cpus = host.cpu_usage + len(guest.cpuset)
    if cpus > (most := len(host.cpuset) * limits.cpu_allocation_ratio):
        return f"{cpus} CPUs would share its CPUs; the limit is {int(most)}"
    memory = host.memory_usage + guest.memory
    if memory > (most := host.memory * limits.ram_allocation_ratio):
        return f"{memory} MiB would be used; the limit is {int(most)} MiB"
    return None
