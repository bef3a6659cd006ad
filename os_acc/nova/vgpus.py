# SPDX-License-Identifier: Apache-2.0

"""Nova's vGPUs on a host where os_acc has mediated devices as well.

Nova keeps no record of its mediated devices: those in a guest's definition are the
guest's vGPUs, and a server with a vGPU gets any that no guest has. Those of os_acc
have the UUIDs of leases, and must be in neither set.
"""

from __future__ import annotations

from typing import Any

from nova.virt.libvirt import driver

from os_acc.nova import conversion
from os_acc.nova.servers import ServerAccelerators


class VgpuDriver(driver.LibvirtDriver):  # type: ignore[misc]
    """Nova's libvirt driver, with a view of mediated devices that os_acc has."""

    _servers: ServerAccelerators

    def _get_all_assigned_mediated_devices(self, instance: Any = None) -> Any:
        """Return the guest of each vGPU; without a server, all that are in use.

        Nova keeps a server's vGPUs when it defines its guest again (``_hard_reboot``,
        ``rescue``, ``finish_revert_migration``), and gives those in use to no other
        server (``_get_existing_mdevs_not_assigned``).

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
        if flavor and not conversion.requests_any(flavor, self.mdev_classes):
            # Also that of a lease which another one has replaced.
            return {}
        ours = self._servers.mediated_devices()
        return {uuid: guest for uuid, guest in found.items() if uuid not in ours}
