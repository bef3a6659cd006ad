# SPDX-License-Identifier: Apache-2.0

"""Reset methods, and resets, which leave no trace here (drivers/pci/pci.c)."""

from __future__ import annotations

import errno

from os_acc.testing import functions
from os_acc.testing.drivers import refuse
from os_acc.testing.tree import Transaction


def reset(tree: Transaction, address: str, text: str) -> None:
    """Do as reset_store()."""
    path = functions.place(tree, address)
    if text.strip() != "1":
        raise refuse(errno.EINVAL, address)
    if not tree.read(f"{path}/reset_method"):
        raise refuse(errno.ENOTTY, address)


def set_methods(tree: Transaction, address: str, text: str) -> None:
    """Do as reset_method_store(): some supported methods, none, or default."""
    path = functions.place(tree, address)
    supported = functions.spec(tree, address).reset_methods
    wanted = supported if text.strip() == "default" else tuple(text.split())
    if not set(wanted) <= set(supported):
        raise refuse(errno.EINVAL, address)
    line = " ".join(wanted)
    tree.put(f"{path}/reset_method", f"{line}\n" if line else "", 0o644)
