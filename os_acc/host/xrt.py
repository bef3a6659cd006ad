# SPDX-License-Identifier: Apache-2.0

"""AMD/Xilinx cards on XRT's drivers, xclmgmt and xocl.

The attributes are in the directories of the card's two PCI functions and
readable by any user (https://xilinx.github.io/XRT/2024.1/html/sysfs.html;
mgmt-sysfs.c and xocl_sysfs.c of XRT 2.16)::

    0000:3b:00.0/   driver -> xclmgmt; mgmt_pf, interface_uuids, ready,
                    dev_offline, mfg, recovery
    0000:3b:00.1/   driver -> xocl; user_pf, xclbinuuid, ready

No tool is run: ``xbmgmt examine`` shows the same attributes
(ReportPlatform.cpp).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from os_acc.exception import HostStepFailed, is_exhaustion
from os_acc.host.attributes import function_path, read_text
from os_acc.host.pci import read_function
from os_acc.objects.drivers import (
    XRT_MANAGEMENT_DRIVER,
    XRT_USER_DRIVER,
    XRT_VENDOR,
    xrt_interface_id,
    xrt_xclbin_id,
)
from os_acc.objects.pci import PciAddress, PciFunction

_FUNCTIONS = 8
# PCI class "processing accelerators", used by the functions of shells.
_ACCELERATOR = 0x1200


@dataclasses.dataclass(frozen=True, slots=True)
class ManagementFunction:
    """A card's management function.

    :ivar interface_id: canonical UUID that xclbins must match; None if the card
        accepts none at present.
    :ivar why: the reason if it accepts none.
    """

    function: PciFunction
    interface_id: str | None
    why: str = ""


def is_management(root: str, function: PciFunction) -> bool:
    """Return whether a function programs and flashes a card.

    A function without xclmgmt is recognised by its place beside a user function,
    whose device id is the next one (the tables in xocl_devices.h).

    :raises HostStepFailed: the kernel reports an error.
    """
    if function.identity.vendor != XRT_VENDOR or function.driver == XRT_USER_DRIVER:
        return False
    if function.driver == XRT_MANAGEMENT_DRIVER:
        return True
    if function.address.function != 0:
        return False
    return any(
        other.driver == XRT_USER_DRIVER or _is_next(function, other)
        for other in _beside(root, function.address)
    )


def management_of(root: str, user: PciFunction) -> ManagementFunction | None:
    """Return the card of a user function; None if xclmgmt has none in its slot.

    :raises HostStepFailed: the kernel reports an error.
    """
    found = [
        other
        for other in _beside(root, user.address)
        if other.driver == XRT_MANAGEMENT_DRIVER
    ]
    return read_management(root, found[0].address) if len(found) == 1 else None


def read_management(root: str, address: PciAddress) -> ManagementFunction | None:
    """Return a card by its management function; None if xclmgmt has none there.

    :raises HostStepFailed: the kernel reports an error.
    """
    function = read_function(root, address)
    if function is None or function.driver != XRT_MANAGEMENT_DRIVER:
        return None
    place = function_path(root, address)
    why = _why_not(place)
    if why:
        return ManagementFunction(function, None, why)
    try:
        text = read_text(f"{place}/interface_uuids")
    except HostStepFailed as error:
        if is_exhaustion(error):
            raise
        # EINVAL: the shell has no metadata, like old shells, which are identified
        # only by their creation time.
        return ManagementFunction(function, None, "its shell has no interface uuid")
    found = xrt_interface_id(text) if text else None
    why = "" if found else f"its interface_uuids say {(text or '')[:120]!r}"
    return ManagementFunction(function, found, why)


def read_xclbin(root: str, user: PciAddress) -> str | None:
    """Return the canonical UUID of the xclbin loaded by xocl; None: unknown.

    xocl reports only an xclbin that it loaded itself since it was bound.

    :raises HostStepFailed: the kernel reports an error.
    """
    text = read_text(function_path(root, user, "xclbinuuid"))
    return xrt_xclbin_id(text) if text else None


def _why_not(place: str) -> str:
    for name, good, why in (
        ("ready", "1", "it is not ready"),
        ("dev_offline", "0", "it is offline"),
        ("mfg", "0", "it runs its factory image"),
        ("recovery", "0", "it runs its recovery image"),
    ):
        text = read_text(f"{place}/{name}")
        if text != good and (text is not None or name == "ready"):
            return why
    return ""


def _is_next(function: PciFunction, other: PciFunction) -> bool:
    return (
        other.address.function == 1
        and other.identity.vendor == XRT_VENDOR
        and other.identity.product == function.identity.product + 1
        and function.class_code >> 8 == other.class_code >> 8 == _ACCELERATOR
    )


def _beside(root: str, address: PciAddress) -> Iterator[PciFunction]:
    """Yield the other functions of a slot."""
    for number in range(_FUNCTIONS):
        if number != address.function:
            place = dataclasses.replace(address, function=number)
            function = read_function(root, place)
            if function is not None and function.identity.vendor == XRT_VENDOR:
                yield function
