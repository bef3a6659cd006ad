# SPDX-License-Identifier: Apache-2.0

"""Services on one host, with threads that plug and unplug at the same time."""

from __future__ import annotations

import collections
import dataclasses
import faulthandler
import os
import random
import threading
import time
import traceback
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc import exception, inspection
from os_acc.attach.manager import Manager
from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store.leases import Store
from os_acc.testing import HostSpec, TestHost, helper, hosts
from tests.stress import observation, simulated_host

#: Seconds after which a service that does not end is aborted.
PATIENCE = 900
DEVICES = 64

_VFIO = "vfio-pci"
_AT_ONCE = 3
_PAUSE = 0.02


def host() -> HostSpec:
    """Build forty-eight VFs, twelve GPUs with their siblings, four FPGAs."""
    nics = [
        hosts.nic(f"0000:{bus:02x}", 0, name=f"ens{bus}", vfs=6, boot_vfs=6)
        for bus in range(0x10, 0x18)
    ]
    gpus = [
        function
        for number, bus in enumerate(range(0x40, 0x4C))
        for function in hosts.gpu(f"0000:{bus:02x}", 1, card=number)
    ]
    fpgas = [hosts.fpga(f"0000:{bus:02x}", 1) for bus in range(0x80, 0x84)]
    return HostSpec((*nics, *gpus, *fpgas))


class SharedHost(TestHost):
    """The host of several services, each with helpers of its own.

    :ivar in_use: a directory with a file for each device that an instance uses.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory, host(), node_name="host")
        self.in_use = os.path.join(directory, "in-use")
        os.mkdir(self.in_use)
        self._config_file = self.write_config()

    def serve(self) -> Manager:
        """Start a service in this process, with helpers that are processes."""
        return self.start_with_helpers(self._config_file)

    def stop(self) -> None:
        """End the helpers of this process."""
        for context in helper.CONTEXTS:
            context.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance that has its accelerators."""

    uuid: str
    request: tuple[dict[str, Any], dict[str, str]]
    entries: list[dict[str, Any]]


class Tenant:
    """A thread of a service: its instances come and go.

    :param cycles: number of instances that are plugged and unplugged.
    """

    def __init__(
        self, shared: SharedHost, manager: Manager, seed: str, cycles: int
    ) -> None:
        self._shared = shared
        self._kernel = shared.kernel
        self._manager = manager
        self._random = random.Random(seed)
        self._cycles = cycles
        self._instances: list[Instance] = []
        self.deeds: collections.Counter[str] = collections.Counter()

    def run(self, providers: Sequence[Provider], over: threading.Event) -> None:
        """Plug and unplug until all cycles are done, or another thread has failed."""
        begun = 0
        while (begun < self._cycles or self._instances) and not over.is_set():
            room = begun < self._cycles and len(self._instances) < _AT_ONCE
            if room and (not self._instances or self._random.random() < 0.6):
                begun += self._come(providers)
            else:
                self._go()

    def _come(self, providers: Sequence[Provider]) -> bool:
        count = self._random.choices((1, 2, 3, 4), (20, 2, 1, 1))[0]
        handles = [each for each in providers for _ in each.device.handles]
        chosen = self._random.sample(handles, count)
        request = simulated_host.request_of(
            providers, [str(each.device.address) for each in chosen]
        )
        consumer = {"uuid": str(uuid.UUID(int=self._random.getrandbits(128)))}
        try:
            entries = self._manager.plug(consumer, *request)
        except exception.NoDeviceAvailable:
            self.deeds["refused for want of a device"] += 1
            assert not self._manager.attached(consumer)
            if self._instances:
                self._go()
            return False
        assert len(entries) == count
        self._use(entries)
        if self._random.random() < 0.2:
            self.deeds["plugged again"] += 1
            again = self._random.choice((request, (None, None)))
            assert self._manager.plug(consumer, *again) == entries
        if self._random.random() < 0.2:
            self.deeds["looked at"] += 1
            assert self._manager.attached(consumer) == {consumer["uuid"]: entries}
        if self._random.random() < 0.02:
            assert len(offered(self._manager.providers())) == DEVICES
        self._instances.append(Instance(consumer["uuid"], request, entries))
        return True

    def _go(self) -> None:
        number = self._random.randrange(len(self._instances))
        instance = self._instances.pop(number)
        for entry in instance.entries:
            os.unlink(self._mark(entry))
        count = self._manager.unplug({"uuid": instance.uuid})
        assert count == len(instance.entries)
        self.deeds["plug and unplug cycles"] += 1
        self.deeds["devices"] += count

    def _use(self, entries: Iterable[dict[str, Any]]) -> None:
        """Mark devices as in use, without the library; fail if one is already."""
        for entry in entries:
            try:
                os.close(os.open(self._mark(entry), os.O_CREAT | os.O_EXCL))
            except FileExistsError as error:
                raise AssertionError(f"{entry['pci_id']} was given twice") from error
            assert self._kernel.state(entry["pci_id"]).driver == _VFIO

    def _mark(self, entry: dict[str, Any]) -> str:
        return os.path.join(self._shared.in_use, entry["pci_id"])


def serve(
    shared: SharedHost, seed: str, shares: Sequence[int]
) -> tuple[collections.Counter[str], list[str]]:
    """Run a service with a thread for each share of cycles.

    :returns: counts of the calls, and the tracebacks of failures.
    """
    _end_in_time()
    manager = shared.serve()
    providers = manager.providers()
    over = threading.Event()
    troubles: list[str] = []

    def work(tenant: Tenant) -> None:
        try:
            tenant.run(providers, over)
        except BaseException:  # noqa: BLE001 - reported to the parent
            troubles.append(traceback.format_exc())
            over.set()

    tenants = [
        Tenant(shared, manager, f"{seed}, {number}", share)
        for number, share in enumerate(shares)
    ]
    threads = [threading.Thread(target=work, args=(each,)) for each in tenants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.stop()
    deeds = sum((each.deeds for each in tenants), collections.Counter[str]())
    return deeds, troubles


def observe(shared: SharedHost, end: str) -> collections.Counter[str]:
    """Check store and kernel meanwhile, until a file exists.

    A lease that is read as held, and read unchanged afterwards, was held all the
    time between: then its devices are bound to vfio-pci.
    """
    _end_in_time()
    store, kernel = (
        Store.open(shared.state_path, inspection.STORE_SECONDS),
        shared.kernel,
    )
    seen: collections.Counter[str] = collections.Counter()
    while not os.path.exists(end):
        before = store.leases()
        drivers = {each.address: each.driver for each in kernel.snapshot()}
        lasting = set(before) & set(store.leases())
        assert sum(len(each.members) for each in before) == len(
            observation.members(before)
        )
        for lease in filter(_is_held, lasting):
            for address in map(str, lease.members):
                assert drivers[address] == _VFIO, f"{address} of {lease}"
            seen["leases found with their devices"] += 1
        seen["looks from outside"] += 1
        time.sleep(_PAUSE)
    return seen


def offered(providers: Iterable[Provider]) -> frozenset[str]:
    """Return the devices of some providers."""
    return frozenset(
        str(handle.address) for each in providers for handle in each.device.handles
    )


def _end_in_time() -> None:
    """Print the stack of every thread and exit, if they wait for one another."""

    def end() -> None:
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    # Not faulthandler's own clock: pytest has started that, and a forked
    # child would wait for its thread.
    watchdog = threading.Timer(PATIENCE, end)
    watchdog.daemon = True
    watchdog.start()


def _is_held(lease: Lease) -> bool:
    return lease.state is LeaseState.HELD
