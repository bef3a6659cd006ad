# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""NUMA affinity: which devices a policy allows, and where a guest fits.

Nothing here reads the host; its topology is a value. A virt driver or a filter
of the scheduler asks :func:`fit_to_host` which of a host's cells carry a guest
together with its networks and its devices, and why others do not
(:func:`lacking` says that of networks and devices, cell by cell), or
:func:`fit_as_nova` what Nova 34 itself will say. The values that a
:class:`Question` is made of are here and in :mod:`os_acc.objects.numa`.
"""

from __future__ import annotations

from os_acc.numa.devices import DevicePool, DeviceRequest
from os_acc.numa.fit import Fit, Refusal, fit_to_host
from os_acc.numa.free import free_pools
from os_acc.numa.lacks import Lacking, lacking
from os_acc.numa.nova import fit_as_nova
from os_acc.numa.question import Question
from os_acc.numa.reasons import Reason, Why

__all__ = [
    "DevicePool",
    "DeviceRequest",
    "Fit",
    "Lacking",
    "Question",
    "Reason",
    "Refusal",
    "Why",
    "fit_as_nova",
    "fit_to_host",
    "free_pools",
    "lacking",
]
