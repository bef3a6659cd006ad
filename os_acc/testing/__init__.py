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


"""A kernel to test against: a directory tree that behaves like Linux.

::

    kernel = FakeKernel.build(path, hosts.two_socket_host())
    with kernel.installed():
        ...
"""

from os_acc.testing import hosts
from os_acc.testing.dfl_specs import DflSpec
from os_acc.testing.kernel import FakeKernel, FunctionState, Snapshot
from os_acc.testing.specs import (
    ClassDevice,
    DriverSpec,
    FunctionSpec,
    HostSpec,
    NodeSpec,
    SriovSpec,
)
from os_acc.testing.writes import Outcome, Write

__all__ = [
    "ClassDevice",
    "DflSpec",
    "DriverSpec",
    "FakeKernel",
    "FunctionSpec",
    "FunctionState",
    "HostSpec",
    "NodeSpec",
    "Outcome",
    "Snapshot",
    "SriovSpec",
    "Write",
    "hosts",
]
