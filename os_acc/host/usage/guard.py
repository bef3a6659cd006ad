# SPDX-License-Identifier: Apache-2.0

"""A device about which the kernel will not speak counts as used."""

from __future__ import annotations

from collections.abc import Callable

from os_acc.exception import HostStepFailed


def judge(name: str, use: Callable[[], str | None]) -> str | None:
    """How the host uses a device; an error is told as a use of its own.

    One broken device must neither be taken from the host by mistake nor keep
    all others from being judged.
    """
    try:
        return use()
    except HostStepFailed as error:
        return f"{name} cannot be judged: {error.message}"
