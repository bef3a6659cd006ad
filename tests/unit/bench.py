# SPDX-License-Identifier: Apache-2.0

"""A fake host with a manager on it, as one compute service would have it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oslo_config import cfg

from os_acc import conf, privsep, service
from os_acc.attach.manager import Manager
from os_acc.objects.device import Provider, RejectedDevice
from os_acc.objects.lease import LeaseState, Owner
from os_acc.objects.pci import PciAddress
from os_acc.privsep import record, worker
from os_acc.profiles import options as profiles
from os_acc.testing import FakeKernel, HostSpec

EVERYTHING = '{"address": "*:*:*.*"}'


def uuid_of(number: int) -> str:
    """The uuid of the instance with this number."""
    return f"{number:08x}-1111-4111-8111-111111111111"


def instance(number: int) -> dict[str, Any]:
    """What Nova passes of an instance."""
    return {"uuid": uuid_of(number), "name": f"instance-{number}"}


class Bench:
    """One host; managers come and go on it as services are restarted.

    :ivar catalogue: where device profiles are; empty for the default.
    """

    catalogue = ""

    def __init__(self, place: Path, spec: HostSpec, **options: object) -> None:
        self.kernel = FakeKernel.build(place / "host", spec)
        self.root = self.kernel.root
        self.state_path = str(place / "state")
        self.options: dict[str, object] = {
            "state_path": self.state_path,
            "device_spec": [EVERYTHING],
            "node_name": "node1",
            **options,
        }
        self._manager: Manager | None = None

    @property
    def manager(self) -> Manager:
        """The service as it runs now; started when it is first needed."""
        return self._manager or self.restart()

    def restart(self, **options: object) -> Manager:
        """Start the service anew, with these options changed."""
        self._manager = service.build(self.config(**options), self.root, Owner.NOVA)
        return self._manager

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Meanwhile, another service that gives the kernel little time."""
        before = self.manager
        self.restart(write_timeout=0.2)
        try:
            yield
        finally:
            self._manager = before

    def read(self) -> cfg.ConfigOpts:
        """The configuration files: there are none."""
        config = cfg.ConfigOpts()
        config([], default_config_files=[], default_config_dirs=[])
        return config

    def config(self, **options: object) -> cfg.ConfigOpts:
        """The service's configuration."""
        config = self.read()
        conf.register(config)
        for name, value in (self.options | options).items():
            config.set_override(name, value, group="os_acc")
        if self.catalogue:
            profiles.register(config)
            group = profiles.GROUP.name
            config.set_override("catalogue", self.catalogue, group=group)
        return config

    def provider(self, address: str) -> Provider:
        """The provider that offers this function, or the VFs of this PF."""
        for provider in self.manager.providers():
            handles = provider.device.handles
            places = {provider.device.address, *(each.address for each in handles)}
            if address in map(str, places):
                return provider
        raise LookupError(f"{address} is not offered")

    def refused(self, address: str) -> RejectedDevice:
        """Why a function is not offered."""
        for refused in self.manager.discover().refused:
            if str(refused.address) == address:
                return refused
        raise LookupError(f"{address} is not refused")

    def plug(self, number: int, *addresses: str, amount: int = 1) -> list[Any]:
        """Plug as many accelerators of each of these providers."""
        found = [self.provider(address) for address in addresses]
        selected, specs = request(*found, amount=amount)
        return self.manager.plug(instance(number), selected, specs)

    def plugged(self, number: int) -> list[str]:
        """The addresses that an instance has, by what is recorded."""
        leases = self.manager.store.leases(uuid_of(number))
        return [str(lease.address) for lease in leases]

    def unplug(self, number: int) -> int:
        return self.manager.unplug(instance(number))

    def drivers(self, *addresses: str) -> list[str | None]:
        return [self.kernel.state(address).driver for address in addresses]

    def to_driver(self, address: str, driver: str) -> None:
        """Do what an operator can do behind os_acc's back.

        :param driver: empty for none.
        """
        device = self.kernel.path("sys/bus/pci/devices", address)
        if self.drivers(address) != [None]:
            self.kernel.write(f"{device}/driver/unbind", address)
        if driver:
            self.kernel.write(f"{device}/driver_override", driver)
            self.kernel.write(self.kernel.path("sys/bus/pci/drivers_probe"), address)
        assert self.drivers(address) == [driver or None]

    def forget_records(self) -> None:
        """Leave what is taken as another program would have left it."""
        for parts, *_ in record.claimed():
            record.remove(PciAddress(*parts))

    def end(self) -> None:
        """Let everything that hangs go on, and wait until it has ended."""
        self.kernel.lift()
        for function in self.kernel.snapshot():
            self.kernel.let_go(function.address)
        for pid in tuple(worker._stuck):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        worker._stuck.clear()


def state_of(bench: Bench, number: int = 1) -> LeaseState:
    """The state of the one lease of an instance."""
    (lease,) = bench.manager.store.leases(uuid_of(number))
    return lease.state


def request(*providers: Provider, amount: int = 1) -> tuple[Any, Any]:
    """``selected_rp`` and extra specs, with a group for each provider."""
    classes = {each.uuid: each.device.resource_class for each in providers}
    groups = {str(number): uuid for number, uuid in enumerate(classes, start=1)}
    selected = {
        "allocations": {
            uuid: {"resources": {name: amount}} for uuid, name in classes.items()
        },
        "mappings": {suffix: [uuid] for suffix, uuid in groups.items()},
    }
    specs = {
        f"resources{suffix}:{classes[uuid]}": str(amount)
        for suffix, uuid in groups.items()
    }
    return selected, specs | {"group_policy": "none"}


@contextlib.contextmanager
def privileged_here() -> Iterator[None]:
    """Run privileged code in this process; its writes in forked children."""
    contexts = (privsep.base, privsep.inspect, privsep.image)
    before = [context.client_mode for context in contexts]
    for context in contexts:
        context.set_client_mode(False)
    try:
        yield
    finally:
        for context, mode in zip(contexts, before, strict=True):
            context.set_client_mode(mode)
