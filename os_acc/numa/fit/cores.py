# SPDX-License-Identifier: Apache-2.0

"""Whether a host cell has dedicated CPUs as a thread policy wants them.

The verdict is that of Nova's ``_pack_instance_onto_cores``
(``nova/virt/hardware.py``), by counting: which CPU becomes which does not
matter to it.
"""

from __future__ import annotations

from os_acc.numa.fit.reasons import Reason, ReasonKind
from os_acc.objects.numa import CPUThreadPolicy, NUMACell


def refusal(
    host: NUMACell,
    cpus: int,
    policy: CPUThreadPolicy | None,
    *,
    emulator: bool = False,
) -> Reason | None:
    """Why that many CPUs cannot be dedicated here; None: they can.

    :param policy: None is ``prefer``.
    :param emulator: one more is for the threads of the emulator. Nova gives it
        none where the guest's cell has no dedicated CPU itself.
    """
    free = [len(core & host.free_pcpus) for core in host.siblings]
    if policy is CPUThreadPolicy.ISOLATE:
        threads = max(map(len, host.siblings), default=1) or 1
        whole = sum(each == threads for each in free)
        if threads > 1 and whole and host.pcpuset != host.cpuset:
            return Reason(ReasonKind.THREADS)
        # Nova counts no CPU at all as none found.
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
    """Why they cannot all be siblings, as many to each core as to the others."""
    if not any(len(core) > 1 for core in host.siblings):
        return Reason(ReasonKind.NO_THREADS)
    packed = [
        threads * sum(each >= threads for each in free)
        for threads in range(2, max(free) + 1)
    ]
    if not packed or max(packed) < cpus:
        return Reason(ReasonKind.SIBLINGS, cpus, max(packed, default=0))
    return None
