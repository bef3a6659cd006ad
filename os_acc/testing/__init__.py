# SPDX-License-Identifier: Apache-2.0

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
    ClassDeviceSpec,
    DriverSpec,
    FunctionSpec,
    HostSpec,
    NodeSpec,
    SriovSpec,
)
from os_acc.testing.writes import Write, WriteOutcome

__all__ = [
    "ClassDeviceSpec",
    "DflSpec",
    "DriverSpec",
    "FakeKernel",
    "FunctionSpec",
    "FunctionState",
    "HostSpec",
    "NodeSpec",
    "Snapshot",
    "SriovSpec",
    "Write",
    "WriteOutcome",
    "hosts",
]
