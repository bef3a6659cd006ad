# SPDX-License-Identifier: Apache-2.0

"""Act as the owner of the state directory.

What root writes there, nova-compute could not write any more.
"""

from __future__ import annotations

import os
import pwd

from os_acc import exception
from os_acc.store import owner_of


def check_owner(state_path: str) -> tuple[int, int]:
    """User and group id of whoever owns the state directory.

    :raises StateUnavailable: there is no such directory.
    """
    if not os.path.exists(state_path):
        raise exception.StateUnavailable(
            f"there is no state directory {state_path}",
            hint="make it for the user that nova-compute runs as: "
            f"install -d -o nova -g nova -m 0750 {state_path}",
        )
    return owner_of(state_path)


def become_owner(state_path: str) -> None:
    """Where this is root: be the owner from now on, with its groups.

    :raises StateUnavailable: there is no such directory.
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
    # The user last: nobody but root may change groups. All three ids, so
    # that there is no way back.
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def name_of(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
