# SPDX-License-Identifier: Apache-2.0

"""Which boot of the host this is."""

from __future__ import annotations

import os

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import read_text
from os_acc.objects.instance import canonical_uuid


def boot_id(root: str) -> str:
    """The UUID that the kernel chose when it started.

    Documentation/admin-guide/sysctl/kernel.rst, "random".

    :raises HostStepFailed: it cannot be read, or is no UUID.
    """
    path = os.path.join(root, "proc/sys/kernel/random/boot_id")
    text = read_text(path)
    parsed = canonical_uuid(text)
    if parsed is None:
        raise HostStepFailed(
            f"{path} says {text!r}, not a UUID", hint="is /proc mounted?"
        )
    return parsed
