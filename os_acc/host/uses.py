# SPDX-License-Identifier: Apache-2.0

"""The use of one device by the host; see :mod:`os_acc.host.usage`."""

from __future__ import annotations

from collections.abc import Callable

from os_acc.exception import HostStepFailed, is_exhaustion


def judge(name: str, use: Callable[[], str | None]) -> str | None:
    """Return how the host uses a device; an error counts as a use.

    A faulty device must neither be taken from the host by mistake nor prevent the
    check of others.
    """
    try:
        return use()
    except HostStepFailed as error:
        if is_exhaustion(error):
            raise
        return f"cannot determine the use of {name}: {error.message}"
