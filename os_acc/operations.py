# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What an operator does with single devices, past Nova.

Each of these acts on one device, says what it expects of it, and goes
through the same intent, lock and read-back as a plug or an unplug.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType

from oslo_utils import uuidutils

from os_acc import bindings, exception, hints
from os_acc.host import boot, vfio
from os_acc.host.view import Host
from os_acc.inventory import Inventory
from os_acc.manager import Manager
from os_acc.objects.device import Refusal
from os_acc.objects.instance import consumer_uuid
from os_acc.objects.lease import Lease, LeaseState, Owner, PriorBinding
from os_acc.objects.pci import PciAddress
from os_acc.privsep.functions import is_driver_name
from os_acc.store.locks import consumer_lock

_NOTHING: Mapping[PciAddress, str] = MappingProxyType({})


def release_device(
    manager: Manager,
    address: PciAddress,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
    force: bool = False,
) -> None:
    """Give a quarantined or an unknown device back to the host.

    :param driver: the driver that an unknown device is to go to, '' for
        none; only for a device of which no lease says it.
    :param siblings: the same for those functions of its IOMMU group that
        are prepared for a guest as well.
    :param force: forget a quarantined lease even where its device still
        cannot be given back.
    :raises DeviceNotFound: there is nothing to release at this address.
    :raises OsAccError: as the host refused it; nothing is forgotten.
    """
    _check_address(address)
    deadline = time.monotonic() + manager.settings.unplug_timeout
    store = manager.store.until(deadline)
    if address in store.damaged_claims():
        store.forget_damaged(address)
        return
    lease = store.lease_of(address)
    if lease is None:
        lease = _temporary(manager, address, driver, siblings, deadline)
    with manager.locks.hold([consumer_lock(lease.consumer)], deadline):
        _release(manager, address, lease, deadline, force=force)


def _release(
    manager: Manager,
    address: PciAddress,
    seen: Lease,
    deadline: float,
    *,
    force: bool,
) -> None:
    store = manager.store.until(deadline)
    lease = store.lease_of(address)
    if lease is None:
        (lease,) = store.add([seen])
    elif lease.uuid != seen.uuid or lease.state is LeaseState.HELD:
        raise exception.ConsumerConflict(
            f"{address} is leased to {lease.consumer}",
            hint="unplug that instance instead: os-acc unplug <uuid>",
        )
    for failed, error in manager.life.release([lease], deadline).failed:
        current = store.lease_of(failed.address)
        # An unknown device that is in use was not touched: it stays unknown.
        untouched = current is not None and not current.provider
        if current is not None and (
            force or (untouched and isinstance(error, exception.DeviceInUse))
        ):
            store.delete([current])
        if not force:
            raise error


def adopt_device(
    manager: Manager,
    address: PciAddress,
    consumer: str,
    driver: str | None,
    *,
    siblings: Mapping[PciAddress, str] = _NOTHING,
) -> Lease:
    """Record who has a device that is prepared for a guest without a lease.

    :param driver: the driver to which it goes back one day, '' for none.
    :param siblings: the same for those functions of its IOMMU group that
        are prepared for a guest as well.
    :raises DeviceNotFound: it is not on vfio-pci, or not named for os_acc.
    :raises AlreadyLeased: a lease has it.
    :raises ConsumerConflict: the consumer has something unfinished.
    """
    _check_address(address)
    consumer = consumer_uuid(consumer)
    deadline = time.monotonic() + manager.settings.plug_timeout
    store = manager.store.until(deadline)
    draft = dataclasses.replace(
        _temporary(manager, address, driver, siblings, deadline), consumer=consumer
    )
    with manager.locks.hold([consumer_lock(consumer)], deadline):
        held = store.leases(consumer)
        if any(each.state is not LeaseState.HELD for each in held):
            raise exception.ConsumerConflict(
                f"consumer {consumer} has accelerators that are not ready",
                hint="unplug it, or release those that are quarantined, first",
            )
        if held:
            # One consumer has one request: it joins what is there.
            draft = dataclasses.replace(draft, request=held[0].request)
        (lease,) = store.add([dataclasses.replace(draft, state=LeaseState.HELD)])
        return lease


def _check_address(address: object) -> None:
    if not isinstance(address, PciAddress):
        raise exception.InvalidPciAddress(f"{hints.shown(address)} is no PciAddress")


def _is_ours(stock: Inventory, address: PciAddress) -> bool:
    """Whether the operator gave it to os_acc, and to nobody else."""
    for refused in stock.refused:
        if refused.address == address:
            return refused.reason is not Refusal.NOVA_CLAIMS
    return any(
        address in handle.members
        for provider in stock.providers.values()
        for handle in provider.device.handles
    )


def _driver(address: PciAddress, name: str | None) -> str:
    if name is None:
        raise exception.InvalidInput(
            f"nothing is recorded of the driver that {address} had",
            hint="name it: --driver NAME, or for another function of the group "
            "--sibling ADDRESS=NAME; '' for none",
        )
    if not is_driver_name(name):
        raise exception.InvalidInput(f"{hints.shown(name)} is not the name of a driver")
    return name


def _temporary(
    manager: Manager,
    address: PciAddress,
    driver: str | None,
    siblings: Mapping[PciAddress, str],
    deadline: float,
) -> Lease:
    """A lease for a device that has none, as its group stands now."""
    stock = manager.take_stock(deadline)
    host = stock.host
    function = host.function(address)
    if not _is_ours(stock, address):
        raise exception.DeviceNotFound(
            f"{address} is not for os_acc to touch",
            hint="name it in [os_acc] device_spec, and not in Nova's own options",
        )
    if not vfio.is_vfio_driver(function.driver):
        raise exception.DeviceNotFound(
            f"{address} is not prepared for a guest: it is with "
            f"{function.driver or 'no driver'}"
        )
    members = _prepared(host, address)
    return Lease(
        uuid=uuidutils.generate_uuid(),
        consumer=uuidutils.generate_uuid(),
        owner=Owner.COMMAND,
        state=LeaseState.RELEASING,
        group="",
        provider="",
        resource_class="",
        address=address,
        iommu_group=host.group_of(address).number,
        numa_node=function.numa_node,
        prior=tuple(
            _prior(
                manager,
                each,
                driver if each == address else siblings.get(each),
                deadline,
            )
            for each in members
        ),
        request="",
        boot_id=boot.boot_id(manager.root),
        physfns=bindings.physfns(host.function(each) for each in members),
    )


def _prepared(host: Host, address: PciAddress) -> tuple[PciAddress, ...]:
    """The functions of a group that are on vfio-pci: they go together."""
    members = (host.functions.get(each) for each in host.group_of(address).members)
    return tuple(
        function.address
        for function in members
        if function is not None and vfio.is_vfio_driver(function.driver)
    )


def _prior(
    manager: Manager, address: PciAddress, driver: str | None, deadline: float
) -> PriorBinding:
    (now,) = bindings.read_prior(manager.root, [address], deadline)
    return dataclasses.replace(
        now, driver=_driver(address, driver) or None, driver_override=None
    )
