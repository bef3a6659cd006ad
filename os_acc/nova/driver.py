# SPDX-License-Identifier: Apache-2.0

"""Nova's libvirt driver with accelerators of os_acc.

``[DEFAULT] compute_driver = os_acc.LibvirtDriver``. Each method adds one step to the
method of Nova's driver that it overrides (``nova.virt.libvirt.driver``, Nova 31 to 34),
and copies nothing of it; :mod:`os_acc.nova.hooks` lists those that Nova may rename.
nova-compute calls them in threads of its own, for several servers at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.conf import CONF
from nova.virt.libvirt import driver
from oslo_log import log
from oslo_serialization import jsonutils

import os_acc
from os_acc import exception
from os_acc.conf import DriverSettings
from os_acc.nova import (
    conversion,
    guest_devices,
    hooks,
    initialization,
    reconciliation,
    scheduling,
    servers,
)
from os_acc.nova.allocations import ServerAllocations
from os_acc.nova.guest_devices import GuestDevices
from os_acc.nova.live_migration import MigratingDriver
from os_acc.objects.api import InstanceDict
from os_acc.scheduling.accel_keys import DEVICE_PROFILE

LOG = log.getLogger(__name__)


class LibvirtDriver(MigratingDriver):
    """Nova's libvirt driver; servers get accelerators of this host."""

    _iommufd = False

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._restarts = servers.Restarts()
        #: The devices that each server has lost to the snapshot that is being made.
        self._snapshots: dict[str, GuestDevices] = {}

    # -- the host ---------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Discover the accelerators of this host.

        :raises InvalidConfiguration: an option of os_acc has an invalid value, or
            Nova's options name a device that os_acc has leased, or this release of
            Nova lacks a method that the driver needs, or libvirt lacks iommufd.
        """
        hooks.check(LibvirtDriver, driver.LibvirtDriver)
        LOG.info(
            "The virt driver is %s.%s of os-acc %s",
            *(type(self).__module__, type(self).__qualname__),
            metadata.version("os-acc"),
        )
        super().init_host(host)
        self._service_host = host
        settings = DriverSettings.load(CONF)
        self._iommufd = settings.iommufd
        oldest = guest_devices.LIBVIRT_WITH_IOMMUFD
        if settings.iommufd and not self._host.has_min_version(lv_ver=oldest):
            raise exception.InvalidConfiguration(
                "[os_acc_driver] iommufd is set, and libvirt is older than 12.1",
                hint="upgrade libvirt, or remove the option",
            )
        self._node = self._new_node(settings.initialize_interval)
        self._node.start()
        self._check_claims()
        self._allocations = ServerAllocations(lambda: self.virtapi.reportclient)
        self._servers = servers.ServerAccelerators(
            self._node, self._allocations, self._kept_definition, settings.iommufd
        )
        self._reconciler = reconciliation.LeaseReconciler(
            self._node, self._allocations, self._guest_definition, host
        )

    def cleanup_host(self, host: str) -> None:
        """End the threads of this driver."""
        self._node.stop()
        self._reconciler.stop()
        super().cleanup_host(host)

    def _new_node(self, interval: float) -> initialization.DeferredNode:
        name = self._host.get_hostname()
        return initialization.DeferredNode(
            name, lambda: os_acc.initialize(node_name=name, unmanaged=True), interval
        )

    def _check_claims(self) -> None:
        try:
            held, unerased = self._node.attached(), self._node.unerased()
        except exception.OsAccError as error:
            LOG.warning("cannot compare leases with Nova's devices: %s", error)
            return
        initialization.check_mdev_claims(
            self.pgpu_type_mapping, self.pgpu_type_default, held
        )
        named = CONF.pci.device_spec
        if named and (held or unerased):
            devices = jsonutils.loads(self._get_pci_passthrough_devices())
            initialization.check_claims(named, devices, held, unerased)

    def _guest_definition(self, server: str) -> tuple[GuestDevices, bool] | None:
        """Return the devices in the definition of a guest, and whether it runs.

        :raises InternalError: libvirt does not answer.
        """
        try:
            for guest in self._host.list_guests(only_running=False):
                if guest.uuid == server:
                    devices = GuestDevices.of_definition(guest.get_config())
                    return devices, bool(guest.is_active())
        except driver.libvirt.libvirtError as error:
            raise nova_exception.InternalError(f"libvirt: {error}") from error
        return None

    def _kept_definition(self, server: str) -> tuple[GuestDevices, bool] | None:
        """Return :meth:`_guest_definition`; in a rescue, the one that comes back."""
        found = self._guest_definition(server)
        saved = guest_devices.saved_definition(server)
        if found is None or not saved.exists():
            return found
        return GuestDevices.of_xml(saved.read_text()), False

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Publish the accelerators after Nova's own inventory.

        nova-compute calls it for the first time when it has processed the servers of
        this host: leases of those that left while it was stopped can be released now.
        """
        super().update_provider_tree(provider_tree, nodename, allocations)
        self._reconciler.start()
        self._node.update_provider_tree(
            provider_tree, nodename, self._reconciler.unallocated
        )

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """Let the scheduler choose the cells of a guest with accelerators."""
        found: dict[str, Any] = super().get_available_resource(nodename)
        if found.get("numa_topology"):
            topology = objects.NUMATopology.obj_from_db_obj(found["numa_topology"])
            scheduling.declare_cell_networks(topology)
            found["numa_topology"] = jsonutils.dumps(topology.obj_to_primitive())
        return found

    # -- a guest that is created on this host -------------------------------------

    def spawn(
        self,
        context: Any,
        instance: Any,
        image_meta: Any,
        injected_files: Any,
        admin_password: Any,
        allocations: Any,
        network_info: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Attach the allocated accelerators before the guest is created."""
        servers.check_image(instance)
        info = conversion.instance_info(instance, image_meta, network_info)
        restarts = self._restarts.has(context, instance)
        asked = context, instance, info, allocations
        with self._with_devices(*asked, restarts=restarts, arrives=not restarts):
            first = (context, instance, image_meta, injected_files, admin_password)
            super().spawn(*first, allocations, network_info, *args, **kwargs)

    def finish_migration(
        self,
        context: Any,
        migration: Any,
        instance: Any,
        disk_info: Any,
        network_info: Any,
        image_meta: Any,
        resize_instance: bool,
        allocations: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Attach the accelerators that the destination of a resize has allocated."""
        info = conversion.instance_info(instance, image_meta, network_info)
        asked = context, instance, info, allocations
        arrives = migration.source_compute != migration.dest_compute
        with self._with_devices(*asked, restarts=True, arrives=arrives):
            first = (context, migration, instance, disk_info, network_info, image_meta)
            last = (resize_instance, allocations, *args)
            super().finish_migration(*first, *last, **kwargs)

    @contextlib.contextmanager
    def _with_devices(
        self,
        context: Any,
        instance: Any,
        info: InstanceDict,
        allocations: Any,
        **kwargs: bool,
    ) -> Iterator[None]:
        """Attach accelerators; release new ones if the block fails."""
        is_new = self._servers.attach(context, instance, info, allocations, **kwargs)
        self._restarts.end()
        try:
            self._servers.mark_snapshots(instance)
            yield
        except BaseException:
            # The accelerators of a running guest stay until Nova ends it.
            if is_new and not self._is_running(instance):
                self._servers.release(instance)
            raise

    def _is_running(self, instance: Any) -> bool:
        try:
            return bool(self._host.get_guest(instance).is_active())
        except nova_exception.InstanceNotFound:
            return False

    def _get_guest_xml(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        disk_info: Any,
        image_meta: Any,
        rescue: Any = None,
        *args: Any,
        mdevs: Any = None,
        accel_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Define the accelerators that the server holds; a rescue guest has none."""
        if rescue is None:
            entries = self._servers.ready_entries(instance)
            ours = GuestDevices.of_entries(entries)
            mdevs = [*(mdevs or ()), *sorted(ours.mdevs)]
            accel_info = [*(accel_info or ()), *conversion.accel_info(entries)]
        first = (context, instance, network_info, disk_info, image_meta, rescue)
        more = {**kwargs, "mdevs": mdevs, "accel_info": accel_info}
        return super()._get_guest_xml(*first, *args, **more)

    def _get_all_assigned_mediated_devices(self, instance: Any = None) -> Any:
        """Return the guest of each vGPU; without a server, all that are in use.

        To Nova, the mediated devices in a guest's definition are its vGPUs, which stay
        when it is defined again (``_hard_reboot``, ``rescue``), and those without a
        guest are free (``_get_existing_mdevs_not_assigned``). The devices of os_acc
        have the UUIDs of leases, and must be in neither set.

        :raises InternalError: the store cannot be read.
        """
        found: dict[str, str] = super()._get_all_assigned_mediated_devices(instance)
        if instance is None:
            # A lease may exist before its guest, and while its guest is not defined.
            return self._servers.mediated_devices() | found
        # Nova's reshape passes a tuple that has no flavor.
        flavor = getattr(instance, "flavor", None)
        if not found or (flavor and not conversion.may_request_accelerators(flavor)):
            return found
        if flavor and not self.mdev_classes & conversion.requested_classes(flavor):
            # Includes the device of a replaced lease.
            return {}
        ours = self._servers.mediated_devices()
        return {uuid: guest for uuid, guest in found.items() if uuid not in ours}

    def _guest_add_accel_pci_devices(self, guest: Any, accel_info: Any) -> None:
        """Leave functions alone that keep another VFIO driver than vfio-pci.

        As managed devices, libvirt would bind them to vfio-pci. Nova has no word for
        iommufd.
        """
        count = len(guest.devices)
        super()._guest_add_accel_pci_devices(guest, accel_info)
        added = guest.devices[count:]
        for device, entry in zip(added, accel_info, strict=True):
            if "vfio_driver" in entry:
                device.managed = "no"
        if self._iommufd:
            guest.devices[count:] = map(guest_devices.through_iommufd, added)

    # -- a guest that starts again ------------------------------------------------

    def _hard_reboot(
        self, context: Any, instance: Any, network_info: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare the accelerators, which Nova's ``destroy`` leaves attached."""
        self._restarts.mark(context, instance)
        try:
            self._renew(context, instance, network_info)
            super()._hard_reboot(context, instance, network_info, *args, **kwargs)
        finally:
            self._restarts.end()

    def _renew(self, context: Any, instance: Any, network_info: Any = None) -> None:
        info = conversion.instance_info(instance, instance.image_meta, network_info)
        self._servers.renew(context, instance, info)

    def rebuild(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Note that the ``destroy`` that follows belongs to a rebuild.

        :raises ImageUnacceptable: the image is a snapshot of another server, and this
            is an evacuation.
        :raises InstanceFaultRollback: likewise, or os_acc cannot serve: the server
            stays as it is.
        :raises NotImplementedError: otherwise; nova-compute then calls ``destroy`` and
            ``spawn`` in the same request.
        """
        if kwargs.get("evacuate"):
            servers.check_image(instance)
        else:
            self._servers.keep_allocation(context, instance)
            self._servers.check_ready(instance)
            with servers.rolled_back():
                servers.check_image(instance)
                # After a failed move, a migration may have the server's data.
                self._servers.settle(context, instance)
            self._restarts.mark(context, instance)
        super().rebuild(context, instance, *args, **kwargs)

    def unrescue(self, context: Any, instance: Any) -> None:
        """Prepare the accelerators that the rescue guest did not have.

        Nova defines the guest as ``rescue`` has found and saved it: with devices that
        may be another server's by now, and without those that the server got since.
        """
        self._renew(context, instance)
        saved = guest_devices.saved_definition(instance.uuid)
        definition, devices = saved.read_text(), self._servers.guest_devices(instance)
        # The guest that rescues has Nova's devices, but not those of Cyborg.
        is_cyborgs = DEVICE_PROFILE in instance.flavor.extra_specs
        if not is_cyborgs and (devices or "<hostdev" in definition):
            rescuing = self._host.get_guest(instance).get_config()
            others = GuestDevices.of_definition(rescuing)
            fresh = saved.with_suffix(".new")
            fresh.write_text(guest_devices.redefined(definition, devices, others))
            fresh.replace(saved)
        super().unrescue(context, instance)

    def suspend(self, context: Any, instance: Any) -> None:
        """Detach the accelerators from the guest, whose memory libvirt then saves.

        The leases stay. The state of the devices is lost: VFIO cannot save it.
        """
        guest = self._host.get_guest(instance)
        devices = self._servers.guest_devices(instance)
        try:
            guest_devices.detach_functions(guest, devices)
            # Nova detaches the mediated devices of every service.
            super().suspend(context, instance)
        except BaseException:
            guest_devices.attach_missing(guest, devices)
            raise
        if instance.uuid in self._snapshots:
            self._snapshots[instance.uuid] = devices

    def resume(
        self, context: Any, instance: Any, network_info: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare the accelerators, and attach them to the resumed guest."""
        # The server stays suspended: else Nova would discard its saved memory.
        with servers.rolled_back():
            self._renew(context, instance, network_info)
        with self._reattached(instance, self._servers.guest_devices(instance)):
            super().resume(context, instance, network_info, *args, **kwargs)

    def snapshot(
        self,
        context: Any,
        instance: Any,
        image_id: str,
        update_task_state: Callable[..., Any],
    ) -> None:
        """Attach the accelerators again to a guest that Nova suspends for a snapshot.

        Nova resumes the guest before it uploads the image, which takes longer. It
        suspends none for a live snapshot.
        """

        def attach_and_update(*args: Any, **kwargs: Any) -> Any:
            self._attach_to_running(instance, self._snapshots[instance.uuid])
            return update_task_state(*args, **kwargs)

        self._snapshots[instance.uuid] = GuestDevices()
        try:
            super().snapshot(context, instance, image_id, attach_and_update)
        finally:
            self._attach_to_running(instance, self._snapshots.pop(instance.uuid))

    def _attach_to_running(self, instance: Any, devices: GuestDevices) -> None:
        if devices and self._is_running(instance):
            with self._reattached(instance, devices):
                pass

    @contextlib.contextmanager
    def _reattached(self, instance: Any, devices: GuestDevices) -> Iterator[None]:
        """Attach the accelerators to the guest that the block resumes."""
        try:
            yield
            guest_devices.attach_missing(self._host.get_guest(instance), devices)
        except BaseException:
            self._end_guest_without(devices, instance)
            raise

    def _end_guest_without(self, devices: GuestDevices, instance: Any) -> None:
        """End a guest that runs without one of its accelerators."""
        with contextlib.suppress(nova_exception.InstanceNotFound):
            guest = self._host.get_guest(instance)
            has = GuestDevices.of_definition(guest.get_config())
            if guest.is_active() and devices - has:
                guest.poweroff()

    # -- a guest that ends, or leaves the host --------------------------------------

    def destroy(
        self, context: Any, instance: Any, network_info: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Return the accelerators to the host, unless the guest starts again."""
        # A resize to another cell: nova-compute destroys the guest, not its disks.
        # Another host may resize a server that was evacuated from this one.
        leaves_cell = (
            instance.task_state == task_states.RESIZE_MIGRATING
            and instance.host == self._service_host
        )
        moving = self._servers.moving(context, instance)
        with moving if leaves_cell else contextlib.nullcontext():
            super().destroy(context, instance, network_info, *args, **kwargs)
        if not (leaves_cell or self._restarts.has(context, instance)):
            self._servers.release(instance)

    def cleanup(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        *args: Any,
        destroy_vifs: bool = True,
        **kwargs: Any,
    ) -> None:
        """Return the leases of a confirmed resize to another cell to the host."""
        super().cleanup(
            context, instance, network_info, *args, destroy_vifs=destroy_vifs, **kwargs
        )
        if instance.task_state == task_states.RESIZE_MIGRATED and not destroy_vifs:
            self._servers.release_migrations(context, instance)

    def migrate_disk_and_power_off(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Keep the accelerators for the migration, which can be reverted."""
        with self._servers.moving(context, instance):
            return super().migrate_disk_and_power_off(
                context, instance, *args, **kwargs
            )

    def finish_revert_migration(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        migration: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Prepare the accelerators that the migration has kept."""
        self._servers.take_back(instance, migration)
        self._renew(context, instance, network_info)
        super().finish_revert_migration(
            context, instance, network_info, migration, *args, **kwargs
        )

    def confirm_migration(
        self, context: Any, migration: Any, instance: Any, network_info: Any
    ) -> None:
        """Return the accelerators that the migration has kept to the host."""
        try:
            super().confirm_migration(context, migration, instance, network_info)
        finally:
            # Nova deletes the allocation of the migration also after an error.
            self._servers.release(instance, migration.uuid)
