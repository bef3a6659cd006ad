# SPDX-License-Identifier: Apache-2.0

"""The exceptions of Nova 34 for the errors of os_acc.

nova-compute decides by the class whether it tries another host: after
``BuildAbortException`` it does not, and the user of the server reads the reason; after
``ComputeResourcesUnavailable`` it does. A server that exists is on this host, where
only ``InternalError`` applies. It leaves the server in the state ERROR, unless it is
rolled back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception

from os_acc import exception


@contextlib.contextmanager
def converted(instance: Any, *, restarts: bool) -> Iterator[None]:
    """Convert the errors of os_acc in a block.

    :param restarts: the server exists; see above.
    :raises BuildAbortException: no host can serve the request.
    :raises ComputeResourcesUnavailable: another host may serve it.
    :raises InternalError: the server exists.
    """
    try:
        yield
    except exception.OsAccError as error:
        if restarts:
            raise nova_exception.InternalError(
                f"accelerators of instance {instance.uuid}: {error}"
            ) from error
        if error.elsewhere and error.fault is not exception.Fault.REQUEST:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=str(error)
            ) from error
        raise nova_exception.BuildAbortException(
            instance_uuid=instance.uuid, reason=str(error)
        ) from error


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    """Let a server that Nova has not changed yet stay in its state.

    :raises InstanceFaultRollback: the block has raised ``InternalError``.
    """
    try:
        yield
    except nova_exception.InternalError as error:
        raise nova_exception.InstanceFaultRollback(inner_exception=error) from error
