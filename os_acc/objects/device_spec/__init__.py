# SPDX-License-Identifier: Apache-2.0

"""Which devices the operator gave to os_acc, and which to Nova.

The syntax of ``[os_acc] device_spec`` is that of Nova's ``[pci] device_spec``
(``nova/pci/devspec.py``), with tags of our own. Nova takes every key that it
does not know for a tag, so that a misspelt one matches every device; here an
unknown key is an error.
"""

from os_acc.objects.claim import DeviceTags
from os_acc.objects.device_spec.nova import (
    nova_claims,
    nova_mdev_addresses,
    nova_numa_policies,
)
from os_acc.objects.device_spec.parser import parse
from os_acc.objects.device_spec.spec import DeviceSpec, DeviceSpecEntry

__all__ = [
    "DeviceSpec",
    "DeviceSpecEntry",
    "DeviceTags",
    "nova_claims",
    "nova_mdev_addresses",
    "nova_numa_policies",
    "parse",
]
