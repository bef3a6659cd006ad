# SPDX-License-Identifier: Apache-2.0

"""NUMA affinity: which devices a policy allows, and where a guest fits.

Nothing here reads the host; its topology is a value. A virt driver or a filter
of the scheduler asks :func:`fit_to_host` which of a host's cells carry a guest
together with its networks and its devices, and why others do not
(:func:`lacking` says that of networks and devices, cell by cell), or
:func:`fit_as_nova` what Nova 34 itself will say. The values that a
:class:`Question` is made of are here and in :mod:`os_acc.objects.numa`.
"""

from __future__ import annotations

from os_acc.numa.fit.devices import DevicePool, DeviceRequest, free_pools
from os_acc.numa.fit.nova import fit_as_nova
from os_acc.numa.fit.question import Question
from os_acc.numa.fit.reasons import Reason, ReasonKind
from os_acc.numa.fit.search import CellRefusal, Fit, Unmet, fit_to_host, lacking

__all__ = [
    "CellRefusal",
    "DevicePool",
    "DeviceRequest",
    "Fit",
    "Question",
    "Reason",
    "ReasonKind",
    "Unmet",
    "fit_as_nova",
    "fit_to_host",
    "free_pools",
    "lacking",
]
