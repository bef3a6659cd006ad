# SPDX-License-Identifier: Apache-2.0

"""The attributes of a QuickAssist PF (qat_common/adf_sysfs.c, adf_sriov.c).

Documentation/ABI/testing/sysfs-driver-qat.
"""

from __future__ import annotations

import errno
import os

from os_acc.objects import qat
from os_acc.testing import functions
from os_acc.testing.specs import FunctionSpec, QatSpec
from os_acc.testing.tree import Transaction

_UP, _DOWN = "up", "down"


def show(tree: Transaction, path: str, spec: QatSpec) -> None:
    """Add the attributes of a PF whose driver is bound."""
    _put(tree, path, "state", _UP if spec.is_up else _DOWN)
    _put(tree, path, "cfg_services", spec.services)


def hide(tree: Transaction, path: str) -> None:
    """Remove the attributes of a PF whose driver leaves."""
    tree.drop(f"{path}/{qat.DIRECTORY}")


def start(tree: Transaction, path: str) -> None:
    """Start a device for its VFs."""
    _put(tree, path, "state", _UP)


def check_unused(function: FunctionSpec) -> None:
    """Do as adf_dev_in_use().

    :raises OSError: EBUSY: a user of the host holds the device.
    """
    if function.qat is not None and function.qat.is_used:
        raise _refuse(errno.EBUSY, function.address)


def set_state(tree: Transaction, address: str, text: str) -> None:
    """Do as state_store(): Linux 6.1 refuses to stop a device that is down."""
    path, wanted = functions.place(tree, address), text.removesuffix("\n")
    check_unused(functions.spec(tree, address))
    if wanted not in (_UP, _DOWN):
        raise _refuse(errno.EINVAL, address)
    if wanted == _DOWN and _state(tree, path) == _DOWN:
        raise _refuse(errno.EINVAL, address)
    _put(tree, path, "state", wanted)


def set_services(tree: Transaction, address: str, text: str) -> None:
    """Do as cfg_services_store(), which a device that is up refuses."""
    path, function = functions.place(tree, address), functions.spec(tree, address)
    try:
        services = qat.parse_services(text.removesuffix("\n"))
    except ValueError as error:
        raise _refuse(errno.EINVAL, address) from error
    most = function.qat.most if function.qat else 0
    if not qat.are_possible(services) or len(services) > most:
        raise _refuse(errno.EINVAL, address)
    if _state(tree, path) == _UP:
        raise _refuse(errno.EINVAL, address)
    _put(tree, path, "cfg_services", text.removesuffix("\n"))


def _state(tree: Transaction, path: str) -> str:
    return tree.read(f"{path}/{qat.DIRECTORY}/state").strip()


def _put(tree: Transaction, path: str, name: str, text: str) -> None:
    tree.put(f"{path}/{qat.DIRECTORY}/{name}", f"{text}\n", 0o644)


def _refuse(number: int, about: str) -> OSError:
    return OSError(number, os.strerror(number), about)
