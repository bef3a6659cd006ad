# SPDX-License-Identifier: Apache-2.0

"""NUMA affinity: the devices that a policy allows, and the fit of a guest.

Nothing here reads the host; its topology is a value. :func:`fit_to_host` returns
the host cells that carry a guest with its networks and devices, and the reasons against
the other cells. The values of a :class:`Question` are defined here and in
:mod:`os_acc.objects.numa`.
"""

from __future__ import annotations

from os_acc.numa.fit import CellRefusal, DeviceRequest, Fit, Question, fit_to_host
from os_acc.numa.nearest import DevicePool

__all__ = [
    "CellRefusal",
    "DevicePool",
    "DeviceRequest",
    "Fit",
    "Question",
    "fit_to_host",
]
