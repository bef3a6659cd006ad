# SPDX-License-Identifier: Apache-2.0

"""Commands of an operator for one device."""

from __future__ import annotations

from os_acc.attach import operator_actions
from os_acc.objects import mdev
from os_acc.objects.lease import Lease
from os_acc.testing import TestHost, uuid_of


def release(
    host: TestHost, address: object, driver: str | None = None, *, force: bool = False
) -> None:
    """Do as ``os-acc device release``."""
    place = mdev.parse_address(str(address))
    operator_actions.release_device(host.manager, place, driver, force=force)


def adopt(
    host: TestHost, address: object, driver: str | None = None, number: int = 1
) -> Lease:
    """Do as ``os-acc device adopt``, for an instance."""
    place = mdev.parse_address(str(address))
    return operator_actions.adopt_device(host.manager, place, uuid_of(number), driver)
