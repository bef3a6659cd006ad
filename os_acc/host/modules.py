# SPDX-License-Identifier: Apache-2.0

"""The kernel's modules for VFIO, from ``modules.alias``.

A variant of vfio-pci names its devices by aliases that begin with ``vfio_pci:``
(``PCI_DRIVER_OVERRIDE_DEVICE_VFIO`` in include/linux/pci.h, ``do_pci_entry()`` in
scripts/mod/file2alias.c), and vfio-pci names all. No module is loaded for them, and no
probe chooses a driver by them: user space does (Documentation/driver-api/vfio.rst).
"""

from __future__ import annotations

import fnmatch
import functools
import os
from typing import Final

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import read_lines, read_text
from os_acc.objects.pci import PciFunction

_PREFIX: Final = "alias vfio_pci:"


def best_vfio_module(root: str, function: PciFunction) -> str | None:
    """Return the module whose alias fits a function best; None: no alias does.

    The alias with the fewest wildcards is the best one, as for libvirt; of equals the
    first.

    :raises HostStepFailed: ``modules.alias`` cannot be read.
    """
    release = read_text(os.path.join(root, "proc/sys/kernel/osrelease"))
    if not release:
        return None
    name = _name(function)
    fitting = [
        (alias.count("*"), number, module)
        for number, (alias, module) in enumerate(_aliases(root, release))
        if fnmatch.fnmatchcase(name, alias)
    ]
    return min(fitting)[2] if fitting else None


def _aliases(root: str, release: str) -> tuple[tuple[str, str], ...]:
    path = os.path.join(root, "lib/modules", release, "modules.alias")
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise HostStepFailed(
            f"cannot read {path}: {error.strerror}", errno=error.errno or 0
        ) from error
    return _parsed(path, state.st_ino, state.st_size, state.st_mtime_ns)


# The file has some 30,000 lines, and depmod replaces it.
@functools.lru_cache(4)
def _parsed(
    path: str, _node: int, _size: int, _time: int
) -> tuple[tuple[str, str], ...]:
    parts = (line.split() for line in read_lines(path) if line.startswith(_PREFIX))
    return tuple((each[1], each[2]) for each in parts if len(each) == 3)


def _name(function: PciFunction) -> str:
    """Return a function's modalias (modalias_show() in drivers/pci/pci-sysfs.c)."""
    identity, code = function.identity, function.class_code
    return (
        f"vfio_pci:v{identity.vendor:08X}d{identity.product:08X}"
        f"sv{identity.subsystem_vendor:08X}sd{identity.subsystem_product:08X}"
        f"bc{code >> 16:02X}sc{code >> 8 & 0xFF:02X}i{code & 0xFF:02X}"
    )
