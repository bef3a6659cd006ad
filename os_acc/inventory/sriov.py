# SPDX-License-Identifier: Apache-2.0

"""Creation of the virtual functions that ``[os_acc] device_spec`` requests."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Final

from oslo_log import log

from os_acc import exception
from os_acc.helper import client
from os_acc.host import pci
from os_acc.host.attributes import function_path, read_text
from os_acc.host.pci import Host
from os_acc.inventory.eligibility import matches
from os_acc.objects import qat
from os_acc.objects.device import DeviceTags
from os_acc.objects.device_spec import OperatorRules
from os_acc.objects.drivers import DFL_DRIVER
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState
from os_acc.privsep import nvme
from os_acc.privsep.fpga import set_ports
from os_acc.privsep.nvme.vf_resources import share_resources
from os_acc.privsep.qat import set_qat_services
from os_acc.privsep.sriov import set_num_vfs
from os_acc.store.leases import Store
from os_acc.store.locks import Locks, device_lock

LOG = log.getLogger(__name__)

#: Seconds until a PF that keeps its driver is tried again. An attempt may cause kernel
#: events, which lead to the next look.
PAUSE: Final = 300.0
_NVME: Final = "nvme"


class VfMaker:
    """Create the VFs of each named PF with ``num_vfs``; failures are logged.

    A PF that Nova's options claim, or that is leased as a whole, is skipped.

    :param root: the directory with ``sys`` and ``proc``.
    """

    def __init__(
        self,
        root: str,
        rules: OperatorRules,
        store: Store,
        locks: Locks,
        helper: client.Helper,
    ) -> None:
        self._root = root
        self._rules = rules
        self._store = store
        self._locks = locks
        self._helper = helper
        self._attempts: dict[PciAddress, _Attempt] = {}

    @property
    def failures(self) -> dict[PciAddress, str]:
        """The failure of the last attempt on each PF that has failed."""
        found = self._attempts.items()
        return {at: each.failure for at, each in found if each.failure}

    def make(self, deadline: float, *, is_start: bool = False) -> None:
        """Create the VFs of PFs without any, such as one that arrived later.

        A PF that failed is tried again once it has another driver, or after a while.
        One whose VFs an operator has removed is left alone.

        :param is_start: try all PFs. One that has VFs keeps them: the kernel changes a
            number of VFs only through zero, which would take them from guests. The
            helper is called nevertheless: it may have been killed before the last step.
        """
        if not self._rules.named.requests_vfs:
            return
        try:
            host = pci.scan(self._root)
        except exception.OsAccError as error:
            LOG.warning("cannot look for PFs without VFs: %s", error)
            return
        for function, tags in requests(self._rules, host):
            last = self._attempts.get(function.address, _Attempt(None))
            if is_start or last.is_due(function):
                self._try(host, function, tags, deadline)
            else:
                seen = dataclasses.replace(last, driver=function.driver)
                self._attempts[function.address] = seen
        for gone in self._attempts.keys() - host.functions.keys():
            del self._attempts[gone]

    def _try(
        self, host: Host, function: PciFunction, tags: DeviceTags, deadline: float
    ) -> None:
        address, text = function.address, ""
        try:
            with self._locks.hold([device_lock(address)], deadline):
                store = self._store.until(deadline)
                epoch = store.next_epoch()
                try:
                    self._make(host, function, tags, epoch, deadline)
                except client.EpochRefused as error:
                    # The epoch in the store is too old: the store was lost, the clock
                    # was ahead, or the PF has just been leased.
                    epoch = store.next_epoch(error.accepted)
                    self._make(host, function, tags, epoch, deadline)
        except exception.OsAccError as error:
            text = "; ".join((str(error), *getattr(error, "__notes__", ())))
            before = self._attempts.get(address)
            if before is None or before.failure != text:
                LOG.error("cannot create VFs of %s: %s", address, text)
        self._attempts[address] = _Attempt(function.driver, text, time.monotonic())

    def _make(
        self,
        host: Host,
        function: PciFunction,
        tags: DeviceTags,
        epoch: int,
        deadline: float,
    ) -> None:
        """Make the VFs, unless the PF is leased.

        :param epoch: drawn before the leases are read: the helper refuses it once a
            later lease has the PF.
        """
        recorded = self._store.until(deadline).recorded_state()
        count, services = plan(self._root, self._rules, host, function, tags, recorded)
        change = functools.partial(self._helper.change, function, epoch, deadline)
        if services is not None and not function.vfs:
            # Before the VFs exist: a change stops the device.
            change(set_qat_services, qat.number_of(services))
        if function.driver == _NVME:
            if not function.vfs:
                # No VFs are created for which the drive lacks resources.
                change(share_resources, count, nvme.context)
            change(set_num_vfs, count)
            change(share_resources, count, nvme.context)
            return
        if function.driver != DFL_DRIVER or function.vfs:
            change(set_num_vfs, count)
            return
        # The driver creates a VF for each port that the host has released.
        change(set_ports, count)
        try:
            change(set_num_vfs, count)
        except exception.OsAccError as error:
            try:
                change(set_ports, 0)
            except exception.OsAccError as why:
                error.add_note(f"cannot return the ports to the host: {why}")
            raise


def requests(
    rules: OperatorRules, host: Host
) -> Iterator[tuple[PciFunction, DeviceTags]]:
    """Yield the functions whose tags have ``num_vfs``, which no VF has."""
    for address, tags in matches(rules.named, host):
        if tags.num_vfs is not None:
            yield host.functions[address], tags


def plan(
    root: str,
    rules: OperatorRules,
    host: Host,
    function: PciFunction,
    tags: DeviceTags,
    recorded: RecordedState,
) -> tuple[int, qat.QatServices | None]:
    """Return the number of VFs to make of a PF, and their services.

    :raises HostStepFailed: they cannot be made, or others exist.
    """
    if (
        rules.nova.match(function, host.netdevs, host.functions) is not None
        or function.address in rules.nova_mdev_parents
        or not rules.nova_mdev_types.isdisjoint(pci.mdev_types(root, function.address))
    ):
        raise _failed(function, "Nova claims it")
    if not function.total_vfs:
        hint = "enable SR-IOV in the firmware of the card and of the host"
        raise _failed(function, "it has no SR-IOV", hint=hint)
    if function.driver is None and not function.vfs:
        hint = "load its driver; the VFs are created once it is bound"
        raise _failed(function, "no driver is bound to it", hint=hint)
    if function.address in recorded.taken and not _is_claimed_for_vfs(
        function, host, recorded
    ):
        raise _failed(function, "it is leased as a whole")
    count, services = _requested(tags, function, recorded)
    # No change may take VFs that exist from guests.
    remove = "remove all VFs while no guest has one, or change"
    if function.vfs and len(function.vfs) != count:
        text = f"it has {len(function.vfs)} VFs, not {count}"
        raise _failed(function, text, hint=f"{remove} num_vfs")
    if function.vfs and services is not None:
        path = function_path(root, function.address, qat.SERVICES)
        found = read_text(path) or ""
        if set(found.split(";")) != set(services):
            wanted = qat.services_text(services)
            raise _failed(
                function,
                f"its VFs have the services {found}, not {wanted}",
                hint=f"{remove} qat_services",
            )
    return count, services


def _is_claimed_for_vfs(
    function: PciFunction, host: Host, recorded: RecordedState
) -> bool:
    """Return whether a PF is claimed for VFs that are gone: they are to come back."""
    address, claims = function.address, recorded.helper_claims
    if address in recorded.leased.union(recorded.damaged_claims):
        return False
    of_vfs = (each.recorded_uuids for each in recorded.leases if each.physfns)
    return claims[address] in {*itertools.chain(*of_vfs)} or any(
        lease == claims[address] and each not in host.functions
        for each, lease in claims.items()
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """The driver of a PF, and the last attempt: its failure, and the monotonic time."""

    driver: str | None
    failure: str = ""
    at: float = 0.0

    def is_due(self, function: PciFunction) -> bool:
        """Return whether another attempt is to be made."""
        if function.driver is None:
            return False
        if function.driver != self.driver:
            return not function.vfs
        return bool(self.failure) and time.monotonic() >= self.at + PAUSE


def _failed(
    function: PciFunction, text: str, hint: str = ""
) -> exception.HostStepFailed:
    return exception.HostStepFailed(text, address=str(function.address), hint=hint)


def _requested(
    tags: DeviceTags, function: PciFunction, recorded: RecordedState
) -> tuple[int, qat.QatServices | None]:
    """Return the number of VFs that a PF's tags request, and the services or None."""
    assert tags.num_vfs is not None
    ids = function.identity.numbers[:2]
    count, total = tags.num_vfs, function.total_vfs
    if ids in qat.PFS and count != total:
        # adf_sriov_configure() ignores the number (qat_common/adf_sriov.c).
        text = f"its driver creates all {total} VFs at once, not {count}"
        raise _failed(function, text, f"set num_vfs to {total}")
    if count > total:
        raise _failed(
            function, f"it can have {total} VFs, not {count}", "lower num_vfs"
        )
    if tags.qat_services is None:
        return count, None
    if ids not in qat.CONFIGURABLE:
        hint = "remove qat_services: only QuickAssist 4xxx and later have it"
        raise _failed(function, "its services cannot be configured", hint)
    if not function.vfs and function.address in recorded.leased_in_parts:
        lost = recorded.leased_in_parts[function.address]
        text = f"{lost}, a VF that is gone, is still leased"
        raise _failed(function, text, "unplug its guest, then restart the service")
    return count, qat.parse_services(tags.qat_services)
