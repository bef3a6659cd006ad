# SPDX-License-Identifier: Apache-2.0

"""NUMA affinity: the devices that a policy allows, and the fit of a guest.

Nothing here reads the host; its topology is a value. :func:`fit_to_host` returns
the host cells that can carry a guest with its networks and devices, and the
reasons against the other cells (:func:`lacking` returns the networks and devices
that each cell lacks). Callers are virt drivers and scheduler filters. The values
of a :class:`Question` are defined here and in :mod:`os_acc.objects.numa`.
"""

from __future__ import annotations

from os_acc.numa.fit.devices import DevicePool, DeviceRequest, free_pools
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
    "fit_to_host",
    "free_pools",
    "lacking",
]
