# SPDX-License-Identifier: Apache-2.0

"""Nova's libvirt driver with accelerators of os_acc.

``[DEFAULT] compute_driver = os_acc.LibvirtDriver``. Each method adds one step to the
method of Nova's driver that it overrides (``nova.virt.libvirt.driver``, Nova 34), and
copies nothing of it. nova-compute calls them in threads of its own, for several servers
at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keystoneauth1 import exceptions as keystone_exceptions
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.conf import CONF
from nova.virt.libvirt import driver

import os_acc
from os_acc import exception
from os_acc.nova import initialization, options, reconciliation, servers


class LibvirtDriver(driver.LibvirtDriver):  # type: ignore[misc]
    """Nova's libvirt driver; servers get accelerators of this host."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        #: The operations during which ``destroy`` ends a guest that starts again:
        #: the id of the request, by the UUID of the server.
        self._restarting: dict[str, str] = {}

    # -- the host ---------------------------------------------------------------

    def init_host(self, host: str) -> None:
        """Discover the accelerators of this host.

        :raises InvalidConfiguration: an option of os_acc has an invalid value.
        """
        super().init_host(host)
        options.register(CONF)
        settings = CONF[options.GROUP.name]
        self._node = initialization.DeferredNode(
            self._host.get_hostname(), self._initialize, settings.initialize_interval
        )
        self._node.start()
        self._servers = servers.ServerAccelerators(self._node, self._allocations_of)
        self._reconciler = reconciliation.LeaseReconciler(
            self._node,
            reconciliation.NovaView(self._allocations_of, self.list_instance_uuids),
            settings,
        )

    def cleanup_host(self, host: str) -> None:
        """End the threads of this driver."""
        self._node.stop()
        self._reconciler.stop()
        super().cleanup_host(host)

    def _initialize(self) -> os_acc.Node:
        return os_acc.initialize(node_name=self._host.get_hostname())

    def _allocations_of(self, context: Any, consumer: str) -> Any:
        """Return the allocations of a consumer in Placement.

        :raises ServiceUnavailable: Placement does not answer. Nova's legacy method
            ``get_allocations_for_consumer`` returns no allocations in this case.
        """
        reader = self.virtapi.reportclient
        try:
            return reader.get_allocs_for_consumer(context, consumer)["allocations"]
        except (
            nova_exception.ConsumerAllocationRetrievalFailed,
            keystone_exceptions.ClientException,
        ) as error:
            raise exception.ServiceUnavailable(
                f"cannot read the allocations of consumer {consumer}: {error}",
                service=exception.ServiceType.PLACEMENT,
            ) from error

    def process_instances_at_startup(self, context: Any, instances: Any) -> Any:
        """Release the leases of servers that left while nova-compute was stopped."""
        found = super().process_instances_at_startup(context, instances)
        self._reconciler.run_once(context)
        self._reconciler.start()
        return found

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Publish the accelerators after Nova's own inventory."""
        super().update_provider_tree(provider_tree, nodename, allocations)
        self._node.update_provider_tree(provider_tree, nodename)

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
        with self._servers.attached(
            context, instance, image_meta, allocations, network_info
        ):
            super().spawn(
                context,
                instance,
                image_meta,
                injected_files,
                admin_password,
                allocations,
                network_info,
                *args,
                **kwargs,
            )
        self._restarting.pop(instance.uuid, None)

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
        with self._servers.attached(
            context, instance, image_meta, allocations, network_info
        ):
            super().finish_migration(
                context,
                migration,
                instance,
                disk_info,
                network_info,
                image_meta,
                resize_instance,
                allocations,
                *args,
                **kwargs,
            )

    def _get_guest_xml(
        self,
        context: Any,
        instance: Any,
        network_info: Any,
        disk_info: Any,
        image_meta: Any,
        rescue: Any = None,
        *args: Any,
        accel_info: Any = None,
        **kwargs: Any,
    ) -> str:
        """Define the accelerators that the server holds; a rescue guest has none."""
        if rescue is None:
            accel_info = [
                *(accel_info or ()),
                *self._servers.accel_info(instance),
            ]
        xml: str = super()._get_guest_xml(
            context,
            instance,
            network_info,
            disk_info,
            image_meta,
            rescue,
            *args,
            accel_info=accel_info,
            **kwargs,
        )
        return xml

    # -- a guest that starts again ------------------------------------------------

    def _hard_reboot(
        self, context: Any, instance: Any, network_info: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare the accelerators, which Nova's ``destroy`` leaves attached."""
        with self._restart(context, instance):
            self._servers.renew(context, instance)
            super()._hard_reboot(context, instance, network_info, *args, **kwargs)

    @contextlib.contextmanager
    def _restart(self, context: Any, instance: Any) -> Iterator[None]:
        self._restarting[instance.uuid] = context.request_id
        try:
            yield
        finally:
            self._restarting.pop(instance.uuid, None)

    def rebuild(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Note that the ``destroy`` that follows belongs to a rebuild.

        :raises NotImplementedError: always; nova-compute then calls ``destroy`` and
            ``spawn`` in the same request.
        """
        if not kwargs.get("evacuate"):
            self._restarting[instance.uuid] = context.request_id
        raise NotImplementedError

    def unrescue(self, context: Any, instance: Any) -> None:
        """Prepare the accelerators that the rescue guest did not have."""
        self._servers.renew(context, instance)
        super().unrescue(context, instance)

    def suspend(self, context: Any, instance: Any) -> None:
        """Detach the accelerators from the guest, whose memory libvirt then saves.

        The leases stay. The state of the devices is lost: VFIO cannot save it.
        """
        devices = self._pci_devices(instance)
        guest = self._host.get_guest(instance)
        self._detach_pci_devices(guest, devices)
        try:
            super().suspend(context, instance)
        except BaseException:
            self._attach_pci_devices(guest, devices)
            raise

    def resume(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Prepare the accelerators, and attach them to the resumed guest."""
        self._servers.renew(context, instance)
        super().resume(context, instance, *args, **kwargs)
        guest = self._host.get_guest(instance)
        self._attach_pci_devices(guest, self._pci_devices(instance))

    def _pci_devices(self, instance: Any) -> list[Any]:
        """Return the accelerators of a server as Nova's PCI devices."""
        return [
            objects.PciDevice(address=entry["pci_id"], extra_info={})
            for entry in self._servers.accel_info(instance)
        ]

    # -- a guest that ends, or leaves the host --------------------------------------

    def destroy(
        self, context: Any, instance: Any, network_info: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Return the accelerators to the host, unless the guest starts again."""
        super().destroy(context, instance, network_info, *args, **kwargs)
        if self._restarting.get(instance.uuid) == context.request_id:
            return
        self._restarting.pop(instance.uuid, None)
        if instance.task_state == task_states.RESIZE_MIGRATING:
            # A resize to another cell: nova-compute destroys the guest, not its disks.
            self._servers.keep_for_migration(context, instance)
        else:
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
        """Return what a confirmed resize to another cell has kept on this host."""
        super().cleanup(
            context, instance, network_info, *args, destroy_vifs=destroy_vifs, **kwargs
        )
        if instance.vm_state == vm_states.RESIZED and not destroy_vifs:
            self._servers.release_migrations(context, instance)

    def migrate_disk_and_power_off(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> str:
        """Keep the accelerators for the migration, which can be reverted."""
        disk_info: str = super().migrate_disk_and_power_off(
            context, instance, *args, **kwargs
        )
        self._servers.keep_for_migration(context, instance)
        return disk_info

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
        self._servers.renew(context, instance)
        super().finish_revert_migration(
            context, instance, network_info, migration, *args, **kwargs
        )

    def confirm_migration(
        self, context: Any, migration: Any, instance: Any, network_info: Any
    ) -> None:
        """Return the accelerators that the migration has kept to the host."""
        super().confirm_migration(context, migration, instance, network_info)
        self._servers.release_migration(instance, migration)

    # -- operations that Nova allows and accelerators do not -------------------------

    def check_can_live_migrate_source(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuse to move a running guest that has accelerators.

        :raises MigrationPreCheckError: the server has accelerators.
        """
        if self._servers.accel_info(instance):
            raise nova_exception.MigrationPreCheckError(
                reason="the server has accelerators, which cannot be migrated live; "
                "use a cold migration"
            )
        return super().check_can_live_migrate_source(context, instance, *args, **kwargs)
