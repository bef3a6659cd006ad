# SPDX-License-Identifier: Apache-2.0

"""A simulated host with its state, which is cheap to copy."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_config import cfg

from os_acc import conf, service, testing
from os_acc.attach.manager import Manager
from os_acc.bitstreams import options as bitstreams
from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, LeaseState, Owner
from os_acc.privsep import images as privsep_images
from os_acc.privsep import kernel as privsep_kernel
from os_acc.profiles import options as profiles
from os_acc.testing import FakeKernel, HostSpec

#: What is written to in place, so that copies must not share it.
_IN_PLACE = (".kernel/notes", "run", "../state", "../images", "../profiles")
_EVERYTHING = '{"address": "*:*:*.*"}'


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """One host's tree and one state directory, below one directory."""

    directory: str
    device_spec: tuple[str, ...] = (_EVERYTHING,)
    # Long: a busy machine may stop for a while, and no kill waits for it.
    write_timeout: float = 600.0

    @property
    def root(self) -> str:
        return os.path.join(self.directory, "host")

    @property
    def kernel(self) -> FakeKernel:
        return FakeKernel(self.root)

    @property
    def images(self) -> str:
        """The directory from which regions are programmed."""
        return os.path.join(self.directory, "images")

    def build(self, host: HostSpec) -> FakeKernel:
        """Make the host in an empty directory."""
        os.makedirs(self.root)
        return FakeKernel.build(self.root, host)

    @property
    def profiles(self) -> str:
        """The directory of the device profiles."""
        return os.path.join(self.directory, "profiles")

    def boot(self) -> Manager:
        """The library in this process, which talks to this host for good."""
        if privsep_kernel.current.root != self.root:
            privsep_kernel.current = self.kernel
        return self.manager()

    def manager(self) -> Manager:
        """The library, started anew as ``initialize()`` does."""
        options = cfg.ConfigOpts()
        options([], default_config_files=[], default_config_dirs=[])
        conf.register(options)
        for name, value in {
            "state_path": os.path.join(self.directory, "state"),
            "device_spec": list(self.device_spec),
            "node_name": "host",
            "write_timeout": self.write_timeout,
            # Nothing here is about a slow start, which a busy machine has.
            "initialize_timeout": 600.0,
            "helper_start_timeout": 600.0,
        }.items():
            options.set_override(name, value, group="os_acc")
        bitstreams.register(options)
        for name, value in {"source": "directory", "directory": self.images}.items():
            options.set_override(name, value, group=bitstreams.GROUP.name)
        profiles.register(options)
        options.set_override("catalogue", self.profiles, group=profiles.GROUP.name)
        cache = os.path.join(self.directory, "state", bitstreams.DIRECTORY)
        privsep_images.current = privsep_images.Images(cache)
        return service.build(options, self.root, Owner.NOVA)

    def copy(self, directory: str) -> Bench:
        """The same host and state elsewhere."""
        os.mkdir(directory)
        other = dataclasses.replace(self, directory=directory)
        _link_tree(self.root, other.root)
        for name in _IN_PLACE:
            _copy(os.path.join(self.root, name), os.path.join(other.root, name))
        return other

    def remove(self) -> None:
        shutil.rmtree(self.directory)


def _link_tree(source: str, target: str) -> None:
    # The tree's files are replaced, never written to: see os_acc.testing.tree.
    os.mkdir(target)
    with os.scandir(source) as found:
        for entry in found:
            path = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), path)
            elif entry.is_file():
                # Who opens a card's node exclusively locks it on its own host.
                copy = shutil.copyfile if entry.name.startswith("dfl-") else os.link
                copy(entry.path, path)
            elif entry.name != "locks":
                _link_tree(entry.path, path)


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    elif os.path.exists(source):
        os.unlink(target)
        shutil.copyfile(source, target)


def request(
    manager: Manager, places: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """A Placement allocation and a flavor that ask for these cards.

    :param places: the address of each provider, one request group for each.
    """
    return ask(manager.providers(), places)


def ask(
    offered: Iterable[Provider], places: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """As :func:`request`, of what has been offered."""
    providers = {str(each.device.address): each for each in offered}
    return testing.request(*(providers[place] for place in places))


def plug(manager: Manager, consumer: str, *places: str) -> list[dict[str, Any]]:
    """Plug cards for a consumer."""
    return manager.plug({"uuid": consumer}, *request(manager, places))


def by_consumer(leases: Iterable[Lease]) -> Mapping[str, list[Lease]]:
    """The leases of each consumer."""
    found: dict[str, list[Lease]] = {}
    for lease in leases:
        found.setdefault(lease.consumer, []).append(lease)
    return found


def unfinished(leases: Iterable[Lease]) -> list[Lease]:
    """Those that say that an operation has begun and not ended."""
    begun = (LeaseState.PREPARING, LeaseState.RELEASING)
    return [lease for lease in leases if lease.state in begun]
