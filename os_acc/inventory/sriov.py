# SPDX-License-Identifier: Apache-2.0

"""Creation of the virtual functions that ``[os_acc] device_spec`` requests."""

from __future__ import annotations

from oslo_log import log

from os_acc import exception
from os_acc.helper import client
from os_acc.host import pci
from os_acc.host.view import Host
from os_acc.inventory import discovery
from os_acc.objects import dfl
from os_acc.objects.pci import PciFunction, PciRole
from os_acc.store.leases import Store
from os_acc.store.locks import Locks, device_lock

LOG = log.getLogger(__name__)


def make(
    root: str,
    rules: discovery.OperatorRules,
    store: Store,
    locks: Locks,
    helper: client.Helper,
    deadline: float,
) -> None:
    """Create the VFs of each named PF with ``num_vfs``; failures are logged.

    A PF that Nova's options claim, or that is leased as a whole, is skipped.

    A PF that has VFs keeps them: the kernel changes a number of VFs only through
    zero, which would take them from guests. The helper is called nevertheless,
    because it may have been killed before the last step.
    """
    if not rules.named.wants_vfs:
        return
    host = pci.scan(root)
    for function in host.functions.values():
        tags = rules.named.match(function, host.netdevs, host.functions)
        if tags is None or tags.num_vfs is None or function.role is not PciRole.PF:
            continue
        if _is_novas(root, rules, host, function):
            LOG.error("cannot create VFs of %s: Nova claims it", function.address)
            continue
        try:
            with locks.hold([device_lock(function.address)], deadline):
                current = store.until(deadline)
                if function.address in current.recorded_state().taken:
                    LOG.warning(
                        "cannot create VFs of %s: it is leased as a whole",
                        function.address,
                    )
                    continue
                _make_one(function, tags.num_vfs, current, helper, deadline)
        except exception.OsAccError as error:
            reasons = "; ".join((str(error), *getattr(error, "__notes__", ())))
            LOG.error("cannot create VFs of %s: %s", function.address, reasons)


def _is_novas(
    root: str, rules: discovery.OperatorRules, host: Host, function: PciFunction
) -> bool:
    return (
        rules.nova.match(function, host.netdevs, host.functions) is not None
        or function.address in rules.nova_mdev_parents
        or not rules.nova_mdev_types.isdisjoint(pci.mdev_types(root, function.address))
    )


def _make_one(
    function: PciFunction,
    count: int,
    store: Store,
    helper: client.Helper,
    deadline: float,
) -> None:
    if len(function.vfs) not in (0, count):
        raise exception.HostStepFailed(
            f"it has {len(function.vfs)} VFs, not {count}",
            address=str(function.address),
            hint="remove all VFs while no guest has one, or change num_vfs",
        )
    try:
        _set(function, count, store.next_epoch(), helper, deadline)
    except client.EpochRefused as error:
        # The epoch in the store is too old: the store was lost, or the clock was ahead.
        _set(function, count, store.next_epoch(error.accepted), helper, deadline)


def _set(
    function: PciFunction,
    count: int,
    epoch: int,
    helper: client.Helper,
    deadline: float,
) -> None:
    if function.driver != dfl.DRIVER or function.vfs:
        helper.set_num_vfs(function, count, epoch, deadline)
        return
    # The driver creates a VF for each port that the host has released.
    helper.release_ports(function, count, epoch, deadline)
    try:
        helper.set_num_vfs(function, count, epoch, deadline)
    except exception.OsAccError as error:
        try:
            helper.assign_ports(function, epoch, deadline)
        except exception.OsAccError as why:
            error.add_note(f"cannot return the ports to the host: {why}")
        raise
