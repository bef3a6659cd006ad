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
