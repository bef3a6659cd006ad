# SPDX-License-Identifier: Apache-2.0

"""Switch to the owner of the state directory.

nova-compute could not write files that root created there.
"""

from __future__ import annotations

import os
import pwd

from os_acc import exception
from os_acc.store import owner_of


def check_owner(state_path: str) -> tuple[int, int]:
    """Return the user and group id of the state directory's owner.

    :raises StateUnavailable: the directory does not exist.
    """
    if not os.path.exists(state_path):
        raise exception.StateUnavailable(
            f"state directory {state_path} does not exist",
            hint="create it for the user of nova-compute: install -d -o nova "
            f"-g nova -m 0750 {state_path}",
        )
    return owner_of(state_path)


def become_owner(state_path: str) -> None:
    """Switch from root to the owner permanently, with the owner's groups.

    :raises StateUnavailable: the directory does not exist.
    """
    if os.geteuid() != 0:
        return
    uid, gid = check_owner(state_path)
    if uid == 0:
        return
    try:
        groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        groups = [gid]
    # The user last: only root may change groups. All three ids, so that the
    # switch is irreversible.
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def name_of(uid: int) -> str:
    """Return a user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
