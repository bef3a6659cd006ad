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

"""Which devices the operator gave to os_acc, and which to Nova.

The syntax of ``[os_acc] device_spec`` is that of Nova's ``[pci] device_spec``
(``nova/pci/devspec.py``), with tags of our own. Nova takes every key that it
does not know for a tag, so that a misspelt one matches every device; here an
unknown key is an error.
"""

from os_acc.device_spec.nova import (
    nova_claims,
    nova_mdev_addresses,
    nova_numa_policies,
)
from os_acc.device_spec.parser import parse
from os_acc.device_spec.spec import DeviceSpec, Entry
from os_acc.objects.claim import Tags

__all__ = [
    "DeviceSpec",
    "Entry",
    "Tags",
    "nova_claims",
    "nova_mdev_addresses",
    "nova_numa_policies",
    "parse",
]
