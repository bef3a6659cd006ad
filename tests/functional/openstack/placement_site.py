# SPDX-License-Identifier: Apache-2.0

"""A compute node whose accelerators are published in the real Placement."""

from __future__ import annotations

import copy
import uuid
from pathlib import Path
from typing import Any

from os_acc.attach.manager import Manager
from os_acc.placement.changes import RefusedChange
from os_acc.placement.sync import Publisher, SyncResult
from os_acc.testing import HostSpec, TestHost, hosts
from tests.expected_errors import kind_of
from tests.functional.openstack.cloud import read
from tests.functional.openstack.placement import Known, Placement

FPGA_A, FPGA_B, GPU_A, GPU_B, NIC = (
    f"0000:{bus}:00.0" for bus in ("3b", "af", "17", "b1", "5e")
)
REGIONS = ("0000:3b:00.1", "0000:3b:00.2", "0000:af:00.1", "0000:af:00.2")
FPGA, GPU, NETWORK = (f"CUSTOM_ACCELERATOR_{each}" for each in ("FPGA", "GPU", "NIC"))

#: The specification of all devices: two cards of two regions each, four VFs, two GPUs.
NAMED = [
    '{"address": "0000:3b:*.*", "num_vfs": 2}',
    '{"address": "0000:af:*.*", "num_vfs": 2}',
    '{"address": "0000:5e:*.*", "num_vfs": 4}',
    '{"address": "0000:17:00.*"}',
    '{"address": "0000:b1:00.*"}',
]


def host() -> HostSpec:
    """Build two FPGA cards with two regions each, two GPUs, and a card with VFs."""
    two = (hosts.DFL_FUNCTION, hosts.DFL_FUNCTION)
    return HostSpec(
        (
            hosts.dfl("0000:3b", 0, functions=two, vfs=2),
            hosts.dfl("0000:af", 1, functions=two, vfs=2),
            hosts.nic("0000:5e", 0, name="ens1f0"),
            *hosts.gpu("0000:17", 0),
            *hosts.gpu("0000:b1", 1, card=2),
        )
    )


class Site(TestHost):
    """One such host, with a compute node of its own in Placement.

    :ivar root: the compute node's provider, as created by Nova.
    """

    def __init__(
        self,
        place: Path,
        placement: Placement,
        spec: HostSpec | None = None,
        **options: Any,
    ) -> None:
        self.placement = placement
        self.name = f"node-{uuid.uuid4()}"
        self._service_options: dict[str, object] = {}
        super().__init__(
            place,
            spec or host(),
            read=lambda: read(self.file(**self._service_options)),
            **{"node_name": self.name, "device_spec": NAMED, **options},
        )
        self.node = placement.make(self.name, inventories={"VCPU": 8, "MEMORY_MB": 64})
        self.publisher = self.new_publisher()

    def file(self, **told: object) -> Path:
        """Write a configuration file.

        :param told: options of [os_acc_placement], which add to the defaults and
            override
        them.
        """
        credentials = self.placement.cloud.credentials("nova")
        about = {"sync_timeout": 300, **credentials, **told}
        return self.placement.cloud.file_of(os_acc_placement=about)

    # -- actions of os_acc -----------------------------------------------------

    def new_publisher(self, **told: object) -> Publisher:
        """Return a publisher as after a restart, with these options."""
        self._service_options = told
        return Publisher(self.config(), self.name)

    def sync(self, by: Publisher | None = None) -> SyncResult:
        """Run one synchronization."""
        manager = copy.copy(self.manager)
        manager.publisher = by or self.publisher
        return manager.publish()

    def renew(self, **options: object) -> Manager:
        """Restart the service, without its state in memory."""
        manager = self.restart(**options)
        self.publisher = self.new_publisher()
        return manager

    def published(self) -> SyncResult:
        """Run one synchronization, and check that no change was rejected."""
        found = self.sync()
        assert found.refused == ()
        return found

    # -- results -------------------------------------------------------------------

    def tree(self) -> dict[str, Known]:
        """Return the providers of this node, by their names without the node's."""
        begin = f"{self.name}_accel_"
        return {
            name.removeprefix(begin): known
            for name, known in self.placement.tree(self.node).items()
        }

    def known(self, address: str) -> Known:
        """Return Placement's data of the provider of a device."""
        return self.placement.known(self.provider(address).uuid)

    def units(self, rp: str) -> dict[str, tuple[int, int]]:
        """Return (total, reserved) of each class of a provider."""
        found = self.placement.known(rp).inventories
        return {name: (each["total"], each["reserved"]) for name, each in found.items()}


def told(refused: tuple[RefusedChange, ...]) -> dict[str, Any]:
    """Return the errors of rejected changes, by object."""
    return {each.what: kind_of(each.error) for each in refused}
