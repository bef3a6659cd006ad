# SPDX-License-Identifier: Apache-2.0

"""The exceptions of Nova 34 for the errors of os_acc.

nova-compute decides by the class whether it tries another host: after
``BuildAbortException`` it does not, and the user of the server reads the reason; after
``ComputeResourcesUnavailable`` it does. A server that exists is on this host, where
only ``InternalError`` applies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception

from os_acc import exception


@contextlib.contextmanager
def while_building(instance: Any) -> Iterator[None]:
    """Convert the errors of an attachment that the scheduler has asked for.

    :raises BuildAbortException: no host can serve the request.
    :raises ComputeResourcesUnavailable: another host may serve it.
    """
    try:
        yield
    except exception.OsAccError as error:
        if error.elsewhere and error.fault is not exception.Fault.REQUEST:
            raise nova_exception.ComputeResourcesUnavailable(
                reason=str(error)
            ) from error
        raise nova_exception.BuildAbortException(
            instance_uuid=instance.uuid, reason=str(error)
        ) from error


@contextlib.contextmanager
def while_restarting(instance: Any) -> Iterator[None]:
    """Convert the errors for a server that exists.

    :raises InternalError: always, with the error's message and hint.
    """
    try:
        yield
    except exception.OsAccError as error:
        raise nova_exception.InternalError(
            f"cannot prepare the accelerators of instance {instance.uuid}: {error}"
        ) from error
