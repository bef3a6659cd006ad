# SPDX-License-Identifier: Apache-2.0

"""The attributes of a QuickAssist PF (Documentation/ABI/testing/sysfs-driver-qat).

They behave as in adf_sysfs.c of drivers/crypto/intel/qat/qat_common.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from os_acc.objects import qat
from os_acc.testing.attribute_specs import AttributeSpec, SimulatedFunction, keep

_STATE: Final = "qat/state"
_SERVICES: Final = "qat/cfg_services"
_UP, _DOWN = "up", "down"
_6XXX: Final = "0x4948"


def attributes(
    services: str = "sym;asym", *, is_up: bool = True, is_used: bool = False
) -> tuple[AttributeSpec, ...]:
    """Return the attributes of a PF.

    :param services: ``cfg_services`` at boot.
    :param is_up: whether its driver starts it at boot.
    :param is_used: whether a user of the host holds it.
    """
    return (
        AttributeSpec(
            _STATE, _UP if is_up else _DOWN, refuse_state if is_used else set_state
        ),
        AttributeSpec(_SERVICES, services, set_services),
    )


def refuse_state(function: SimulatedFunction, _text: str) -> None:
    """Do as state_store() while adf_dev_in_use()."""
    raise _refuse(errno.EBUSY, function)


def set_state(function: SimulatedFunction, text: str) -> None:
    """Do as state_store(): Linux 6.1 refuses to stop a device that is down."""
    wanted = text.removesuffix("\n")
    is_down = function.read(_STATE) == _DOWN
    if wanted not in (_UP, _DOWN) or (wanted == _DOWN and is_down):
        raise _refuse(errno.EINVAL, function)
    keep(function, _STATE, text)


def set_services(function: SimulatedFunction, text: str) -> None:
    """Do as cfg_services_store(), which refuses a device that is up."""
    try:
        services = qat.parse_services(text.removesuffix("\n"))
    except ValueError as error:
        raise _refuse(errno.EINVAL, function) from error
    most = 3 if function.read("device") == _6XXX else 2
    if not qat.are_possible(services) or len(services) > most:
        raise _refuse(errno.EINVAL, function)
    if function.read(_STATE) == _UP:
        raise _refuse(errno.EINVAL, function)
    keep(function, _SERVICES, text)


def _refuse(number: int, function: SimulatedFunction) -> OSError:
    return OSError(number, os.strerror(number), function.address)
