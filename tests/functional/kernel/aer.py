# SPDX-License-Identifier: Apache-2.0

"""Errors of PCI Express that the kernel finds, although no device reports one.

The module ``aer-inject`` lets the kernel read an error in the registers of a function
and its root port (Documentation/PCI/pcieaer-howto.rst, "Software error injection").
"""

from __future__ import annotations

import os
import struct

_NODE = "/dev/aer_inject"
#: struct aer_error_inj of drivers/pci/pcie/aer_inject.c: bus, device, function,
#: uncorrectable and correctable status, four words of a header log, domain.
_ERROR = struct.Struct("=BBBxIIIIIII")

#: An uncorrectable error that is not fatal: bit 14 of the status register.
COMPLETION_TIMEOUT = 1 << 14


def inject(address: str, uncorrectable: int) -> None:
    """Inject uncorrectable errors into a function below a root port.

    :raises OSError: it has no Advanced Error Reporting, or its root port none.
    """
    domain, bus, slot = address.split(":")
    device, function = slot.split(".")
    place = (int(bus, 16), int(device, 16), int(function))
    header = (0, 1, 2, 3)
    error = _ERROR.pack(*place, uncorrectable, 0, *header, int(domain, 16))
    fd = os.open(_NODE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, error)
    finally:
        os.close(fd)
