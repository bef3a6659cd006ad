# SPDX-License-Identifier: Apache-2.0

"""The flows of families with plugins of os_acc: NVMe, network cards, QuickAssist.

A free NVMe function with data of a guest was never erased. A PF with VFs but other
services than the configured ones would give them to guests.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import ClassVar

from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel
from os_acc.privsep.nvme import disks
from os_acc.testing import FakeKernel, TestHost, hosts
from os_acc.testing.device_specs import BLOCK, NvmeSpec
from tests.stress.flows import INSTANCE, NIC, OWN_PLUGINS, Flow, PlugFlow, by_name
from tests.stress.plugin_flows import advance
from tests.stress.simulated_host import plug

DISK = "0000:d9:00.0"
NVME = "0000:41:00.0"
QAT = "0000:d8:00.0"

_DATA = b"data of a guest."
_NVME = hosts.nvme_sriov("0000:41", 1, private=((2,), (3,)))
assert _NVME.sriov is not None
_WITH_VFS = dataclasses.replace(
    _NVME, sriov=dataclasses.replace(_NVME.sriov, boot_vfs=2)
)


class ErasedDrive(PlugFlow):
    """A drive that a guest has written to is formatted after the unplug."""

    name = "a drive that is erased"
    more = (dataclasses.replace(hosts.nvme_disk("0000:d9", 1), nvme=NvmeSpec()),)
    plugins = (*OWN_PLUGINS, "nvme")
    groups: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "os_acc_nvme": {"erase_methods": ["format"]}
    }
    places = (DISK,)
    #: The namespace of each function that may be attached.
    namespaces: ClassVar[Mapping[str, int]] = {DISK: 1}

    def run(self, manager: Manager) -> None:
        plug(manager, INSTANCE, *self.places)
        self._write(manager)
        manager.unplug({"uuid": INSTANCE})
        while self._advance(manager):
            pass

    def resume(self, bench: TestHost, manager: Manager) -> None:
        self._check(bench, manager)
        while self._advance(manager):
            self._check(bench, manager)
        assert len(plug(manager, INSTANCE, *self.places)) == 1
        manager.unplug({"uuid": INSTANCE})
        while self._advance(manager):
            self._check(bench, manager)
        quarantined = [
            each
            for each in manager.store.leases()
            if each.state is LeaseState.QUARANTINED
        ]
        assert not quarantined, quarantined[0].reason
        assert not any(_has_data(bench, *each) for each in self.namespaces.items())

    def _advance(self, manager: Manager) -> bool:
        """Continue each erasure by one call; return whether there was one."""
        return advance(manager)

    def _write(self, manager: Manager) -> None:
        """Write to the namespaces of the instance's functions, as its guest."""
        current = simulated_kernel()
        for lease in manager.store.leases(INSTANCE):
            address = str(lease.address)
            current.write_medium(address, self.namespaces[address], _DATA)

    def _check(self, bench: TestHost, manager: Manager) -> None:
        """Check that each function with data has a lease, and udev ignores it."""
        leased = {str(lease.address) for lease in manager.store.leases()}
        for address, number in self.namespaces.items():
            if _has_data(bench, address, number):
                assert address in leased, f"{address} is free, with data"
                mark = bench.kernel.path("run/os_acc/erasing", address)
                # Without the driver there is no disk that udev could see.
                has_disk = bench.kernel.state(address).driver == "nvme"
                is_hidden = os.path.exists(mark) or not has_disk
                assert is_hidden, f"{address} has data and no mark"


class ErasedVf(ErasedDrive):
    """A VF without a driver is bound to one for its erasure, and returned."""

    name = "a VF of a drive that is erased"
    more = (_WITH_VFS,)
    places = (NVME,)
    namespaces: ClassVar[Mapping[str, int]] = {
        "0000:41:00.1": 2,
        "0000:41:00.2": 3,
    }
    # The host has no driver for them, until the end of the test.
    strays = frozenset(namespaces)

    def prepare(self, bench: TestHost) -> None:
        for each in self.namespaces:
            place = bench.kernel.path("sys/bus/pci/devices", each)
            bench.kernel.write(f"{place}/driver/unbind", each)
        super().prepare(bench)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        super().resume(bench, manager)
        for each in self.namespaces:
            bench.kernel.write(bench.kernel.path("sys/bus/pci/drivers_probe"), each)

    def _check(self, bench: TestHost, manager: Manager) -> None:
        super()._check(bench, manager)
        leased = {str(lease.address) for lease in manager.store.leases()}
        for each in self.namespaces.keys() - leased:
            state = bench.kernel.state(each)
            assert (state.driver, state.driver_override) == (None, None), state


class SanitizedDrive(ErasedDrive):
    """A drive sanitizes itself between the calls, with its disks claimed."""

    name = "a drive that is sanitized"
    more = (
        dataclasses.replace(
            hosts.nvme_disk("0000:d9", 1), nvme=NvmeSpec(sanicap=BLOCK)
        ),
    )
    groups: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "os_acc_nvme": {"erase_methods": ["sanitize-block"]}
    }

    def _advance(self, manager: Manager) -> bool:
        """Let the drive come to half of its operation, and to the end."""
        goes_on = super()._advance(manager)
        for part in (0.5, 1.0):
            if simulated_kernel().advance_sanitize(DISK, part):
                # Without it, the host could mount the disks of the drive.
                assert disks.has_keeper(PciAddress.parse(DISK))
                super()._advance(manager)
        return goes_on


def simulated_kernel() -> FakeKernel:
    current = kernel.current
    assert isinstance(current, FakeKernel)
    return current


def _has_data(bench: TestHost, address: str, number: int) -> bool:
    try:
        return bench.kernel.read_medium(address, number).startswith(_DATA)
    except FileNotFoundError:
        return False


class NetworkVf(PlugFlow):
    """The entry of a network card's VF has its network, also after a crash."""

    name = "a VF of a network card"
    plugins = (*OWN_PLUGINS, "nic")
    device_spec = (
        f'{{"address": "{NIC}", "physical_network": "red"}}',
        *Flow.device_spec,
    )
    places = (NIC,)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        (entry,) = plug(manager, INSTANCE, *self.places)
        assert entry["attach_handle_info"]["physical_network"] == "red"
        (lease,) = manager.store.leases(INSTANCE)
        assert lease.plugin == "nic"


class QatServices(Flow):
    """The library configures the services of a PF, then makes its VFs."""

    name = "the services of a QuickAssist PF"
    more = (hosts.qat_gen4("0000:d8", 1),)
    device_spec = (
        f'{{"address": "{QAT}", "num_vfs": "16", "qat_services": "dc"}}',
        *Flow.device_spec,
    )
    counts = frozenset({0})

    def act(self, bench: TestHost) -> Iterator[None]:
        yield
        bench.start_here()

    def prepare(self, bench: TestHost) -> None:
        """Prepare nothing: the first start configures the PF."""

    def resume(self, bench: TestHost, manager: Manager) -> None:
        kernel = bench.kernel
        place = kernel.path("sys/bus/pci/devices", QAT)
        shown = {
            name: kernel.read(f"{place}/qat/{name}").strip()
            for name in ("state", "cfg_services")
        }
        assert shown == {"state": "up", "cfg_services": "dc"}
        assert kernel.state(QAT).numvfs == 16
        assert not os.path.exists(kernel.path(f"run/os_acc/{QAT}.qat"))
        kernel.write(f"{place}/sriov_numvfs", "0")


FLOWS: Mapping[str, Flow] = by_name(
    ErasedDrive, SanitizedDrive, ErasedVf, NetworkVf, QatServices
)
