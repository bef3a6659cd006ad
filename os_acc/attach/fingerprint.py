# SPDX-License-Identifier: Apache-2.0

"""By what a request is known again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from os_acc.objects.lease import Lease
from os_acc.objects.request import AttachTarget
from os_acc.objects.selection import GroupAllocation


def digest(wanted: Sequence[GroupAllocation], *, found: bool = False) -> str:
    """The same for the same request, whatever devices answer it.

    :param found: nobody said which provider is whose; it was worked out.
    """
    how = ["found"] if found else []
    plain = json.dumps([*how, *(_plain(each) for each in wanted)])
    return hashlib.sha256(plain.encode()).hexdigest()


def _plain(wanted: GroupAllocation) -> tuple[Any, ...]:
    *fields, wish, _target, required, near = dataclasses.astuple(wanted)
    # As it was before there were wishes: recorded digests have to hold.
    if wish:
        fields.append(wish)
    if wanted.attach_target is not AttachTarget.VM:
        fields.append(wanted.attach_target.value)
    if required:
        fields.append(required)
    if near:
        fields.append(near.value)
    return tuple(fields)


def is_of(held: Sequence[Lease], *digests: str) -> bool:
    """Whether all these leases answer one of the requests with these digests."""
    return all(lease.request in digests for lease in held)
