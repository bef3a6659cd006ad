# SPDX-License-Identifier: Apache-2.0

"""A running guest moves to another host with its accelerators.

Nova asks the target, then the source, then the target again. The data that the three
exchange, ``LibvirtLiveMigrateData``, have no field of os_acc. ``target_mdevs`` carries
the devices of the source until the last question: Nova itself sets it only then, and
for its own vGPUs. An empty one is the target's statement that it understands this. At
the end it maps each mediated device of the source to one of the target, as
``pci_dev_map_src_dst`` maps the functions; Nova writes both into the definition of the
guest.

The source keeps its leases until the guest has left. The target plugs the allocation of
the server, which the scheduler has moved there, in the last question. The virt driver
is not called on every way out of a migration (see "Server operations" in the manual):
what the target then still holds has no allocation, and :mod:`.reconciliation` releases
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nova import exception as nova_exception
from nova.conf import CONF
from nova.virt.libvirt import driver, host

from os_acc import exception
from os_acc.nova import conversion
from os_acc.nova.guest_devices import GuestDevices
from os_acc.nova.initialization import DeferredNode
from os_acc.nova.servers import ServerAccelerators
from os_acc.objects.api import InstanceDict, MigratingDevice

_Error = nova_exception.MigrationPreCheckError
#: Errors that refuse this target; any other one would put the server into ERROR.
_REFUSALS = (
    *(exception.OsAccError, nova_exception.NovaException),
    *(KeyError, TypeError, ValueError),
)


class MigratingDriver(driver.LibvirtDriver):  # type: ignore[misc]
    """Nova's libvirt driver; running guests move with their accelerators."""

    _node: DeferredNode
    _servers: ServerAccelerators
    _guest_definition: Callable[[str], tuple[GuestDevices, bool] | None]

    def check_can_live_migrate_destination(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Tell the source that this host can take over accelerators."""
        first = super().check_can_live_migrate_destination
        data = first(context, instance, *args, **kwargs)
        if conversion.may_request_accelerators(instance.flavor):
            data.target_mdevs = {}
        return data

    def check_can_live_migrate_source(
        self,
        context: Any,
        instance: Any,
        dest_check_data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Describe the accelerators to the target.

        :raises MigrationPreCheckError: one cannot be migrated, or this host is too old,
            or the target has not this driver.
        """
        devices = self._migrating(instance)
        if devices:
            _check_movable(devices)
            _check_versions(self._host, devices)
            if "target_mdevs" not in dest_check_data:
                raise _Error(reason="the target host has no virt driver of os_acc")
        first = super().check_can_live_migrate_source
        data = first(context, instance, dest_check_data, *args, **kwargs)
        if devices:
            data.target_mdevs = {each["address"]: json.dumps(each) for each in devices}
        return data

    def _migrating(self, instance: Any) -> list[MigratingDevice]:
        if not conversion.may_request_accelerators(instance.flavor):
            return []
        try:
            if not self._node.attached({"uuid": instance.uuid}):
                if self._requests_accelerators(instance):
                    raise _Error(reason="no lease of its accelerators is recorded")
                return []
            return self._node.ready().migration_source({"uuid": instance.uuid})
        except exception.OsAccError as error:
            raise _Error(reason=str(error)) from error

    def _requests_accelerators(self, instance: Any) -> bool:
        # An ordinary server moves to a host where os_acc cannot serve.
        if not conversion.may_request_accelerators(instance.flavor):
            return False
        return self._node.ready().requests_accelerators(instance.flavor.extra_specs)

    def check_source_migrate_data_at_dest(
        self,
        ctxt: Any,
        instance: Any,
        migrate_data: Any,
        migration: Any,
        limits: Any,
        allocs: Any,
    ) -> Any:
        """Plug the accelerators of the target, and pair them with those of the source.

        :raises MigrationPreCheckError: this host cannot take over one of them.
        """
        described = {}
        if "target_mdevs" in migrate_data:
            described, migrate_data.target_mdevs = migrate_data.target_mdevs, {}
        last = super().check_source_migrate_data_at_dest
        data = last(ctxt, instance, migrate_data, migration, limits, allocs)
        if described:
            try:
                devices = [json.loads(each) for each in described.values()]
                _check_versions(self._host, devices)
                self._take_over(ctxt, instance, data, allocs, devices)
            except BaseException as error:
                # Nova has claimed its own vGPUs, and expects no failure any more.
                self.instance_claimed_mdevs.pop(instance.uuid, None)
                if isinstance(error, _REFUSALS):
                    raise _Error(reason=str(error)) from error
                raise
        return data

    def _take_over(
        self,
        context: Any,
        instance: Any,
        data: Any,
        allocations: Any,
        devices: list[MigratingDevice],
    ) -> None:
        guest = self._guest_definition(instance.uuid)
        if guest is not None and guest[1]:
            raise _Error(reason="a guest of the server runs on the target host")
        moved, info = _as_moved(instance)
        # An earlier attempt may have left them.
        self._servers.release(instance)
        try:
            self._servers.attach(context, moved, info, allocations, restarts=True)
            found = self._node.ready().migration_pairs(info, devices)
            functions = {at: to for at, to in found.items() if ":" in at}
            ordered = _ordered({**data.pci_dev_map_src_dst, **functions})
        except BaseException:
            self._servers.release(instance)
            raise
        mdevs = {at: to for at, to in found.items() if ":" not in at}
        data.target_mdevs = {**data.target_mdevs, **mdevs}
        data.pci_dev_map_src_dst = ordered

    def pre_live_migration(
        self,
        context: Any,
        instance: Any,
        block_device_info: Any,
        network_info: Any,
        disk_info: Any,
        migrate_data: Any,
    ) -> Any:
        """Prepare the accelerators for the guest that arrives, after a restart as well.

        :raises MigrationPreCheckError: they are not those of the pairs.
        """
        moved, info = _as_moved(instance)
        self._servers.renew(context, moved, info)
        ready = self._servers.guest_devices(instance)
        is_lost = not ready and self._requests_accelerators(instance)
        if is_lost or ready - GuestDevices(*_targets(migrate_data)):
            raise _Error(reason=f"the accelerators here are others by now: {ready}")
        first = context, instance, block_device_info, network_info
        return super().pre_live_migration(*first, disk_info, migrate_data)

    def post_live_migration_at_source(
        self, context: Any, instance: Any, network_info: Any
    ) -> None:
        """Return the accelerators of a guest that has left to the host."""
        try:
            super().post_live_migration_at_source(context, instance, network_info)
        finally:
            self._servers.release(instance)


def _ordered(pairs: Mapping[str, str]) -> dict[str, str]:
    """Order pairs of addresses: Nova replaces one after the other in a definition.

    :raises MigrationPreCheckError: devices of two groups have each other's addresses.
    """
    left, found = dict(pairs), dict[str, str]()
    while left:
        ready = [at for at, to in left.items() if to == at or to not in left]
        if not ready:
            raise _Error(reason=f"addresses are exchanged: {', '.join(sorted(left))}")
        found |= {at: left.pop(at) for at in ready}
    return found


def _check_movable(devices: list[MigratingDevice]) -> None:
    why = [f"{each['address']} {each['reason']}" for each in devices if each["reason"]]
    if why:
        raise _Error(reason=f"accelerators that cannot be migrated: {'; '.join(why)}")
    if CONF.libvirt.live_migration_permit_post_copy:
        raise _Error(
            reason="VFIO has no post-copy: set [libvirt] "
            "live_migration_permit_post_copy to false for servers with accelerators"
        )


def _check_versions(here: Any, devices: list[MigratingDevice]) -> None:
    """Check libvirt and QEMU as Nova does for its own vGPUs and functions.

    :raises MigrationPreCheckError: one is too old.
    """
    # A guest with both kinds needs the versions of functions: they are newer.
    is_function = any(":" in each["address"] for each in devices)
    kind = "VFIO_PCI_VARIANT" if is_function else "MDEV_LIVEMIG"
    names = (f"MIN_{kind}_{each}_VERSION" for each in ("LIBVIRT", "QEMU"))
    # Nova removes a minimum when it requires a newer version of every host.
    oldest = [getattr(driver, each, (0, 0, 0)) for each in names]
    if not here.has_min_version(*oldest, host.HV_DRIVER_QEMU):
        libvirt, qemu = (".".join(map(str, each)) for each in oldest)
        name = here.get_hostname()
        raise _Error(
            reason=f"host {name} needs libvirt {libvirt} and QEMU {qemu} or newer"
        )


def _as_moved(instance: Any) -> tuple[Any, InstanceDict]:
    """Return a server with the NUMA cells that the target has claimed for it."""
    moved = instance.obj_clone()
    if moved.migration_context is not None:
        moved.apply_migration_context()
    networks = instance.get_network_info()
    return moved, conversion.instance_info(moved, instance.image_meta, networks)


def _targets(data: Any) -> Iterator[frozenset[str]]:
    """Yield the addresses and the UUIDs of the devices that a guest gets here."""
    for name in ("pci_dev_map_src_dst", "target_mdevs"):
        yield frozenset(getattr(data, name).values() if name in data else ())
