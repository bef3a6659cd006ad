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

"""Where os_acc keeps what has to survive a reboot: one option, two readers.

The service reads it with all the others; the privileged helper, which reads
none of those, finds the cached bitstreams by it.
"""

from __future__ import annotations

import os
import stat

from oslo_config import cfg

GROUP = "os_acc"

OPTION = cfg.StrOpt(
    "state_path",
    default="/var/lib/os_acc",
    help="The directory of the leases, the journal and the locks. It has "
    "to be on a local file system that survives a reboot, and to belong "
    "to the user that nova-compute runs as.",
)

#: The directory below it with the images that were fetched.
BITSTREAMS = "bitstreams"


def is_lost_and_found(path: str) -> bool:
    """Whether it is root's lost+found, which a file system has at its top.

    Only of a directory that may be a mount point: a name alone proves nothing.
    """
    if os.path.basename(path) != "lost+found":
        return False
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0
