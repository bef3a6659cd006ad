# SPDX-License-Identifier: Apache-2.0

"""A kernel to test against: a directory tree that behaves like Linux.

::

    kernel = FakeKernel.build(path, hosts.two_socket_host())
    with kernel.installed():
        ...

:class:`TestHost` is such a kernel with os_acc's service on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from os_acc.testing import hosts
from os_acc.testing.device_specs import AttributeSpec, DflSpec, SimulatedFunction
from os_acc.testing.kernel import FakeKernel, FunctionState, Snapshot
from os_acc.testing.nova import instance, request, uuid_of
from os_acc.testing.records import load_host
from os_acc.testing.specs import (
    ClassDeviceSpec,
    DriverSpec,
    FunctionSpec,
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    NodeSpec,
    SriovSpec,
)
from os_acc.testing.writes import Write, WriteOutcome

if TYPE_CHECKING:
    from os_acc.testing.test_host import TestHost

__all__ = [
    "AttributeSpec",
    "ClassDeviceSpec",
    "DflSpec",
    "DriverSpec",
    "FakeKernel",
    "FunctionSpec",
    "FunctionState",
    "HostSpec",
    "MdevParentSpec",
    "MdevTypeSpec",
    "NodeSpec",
    "SimulatedFunction",
    "Snapshot",
    "SriovSpec",
    "TestHost",
    "Write",
    "WriteOutcome",
    "hosts",
    "instance",
    "load_host",
    "request",
    "uuid_of",
]


def __getattr__(name: str) -> Any:
    # A helper process imports this package, and needs no service.
    if name == "TestHost":
        from os_acc.testing.test_host import TestHost

        return TestHost
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
