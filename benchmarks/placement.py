# SPDX-License-Identifier: Apache-2.0

"""Measure many hosts that publish to one Placement: python -m benchmarks.placement.

It needs the packages of ``tox -e openstack``. It has no floor: most of the time is
that of Placement, on SQLite here. The result is the number of requests of a host
at the first publication, with one changed device, and without a change.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence

from oslo_config import cfg

from os_acc.objects import provider_names
from os_acc.objects.device import AttachHandle, Device, Provider
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.placement.capacity import Capacity, Units
from os_acc.placement.sync import Publisher, SyncResult
from tests.functional.openstack.cloud import Cloud, read
from tests.functional.openstack.placement import Placement
from tests.unit.placement.capacity_examples import RecordedNames

_CLASS = "CUSTOM_ACCELERATOR_GPU"
_TRAITS = frozenset({"CUSTOM_PCI_10DE_2235", "CUSTOM_FAST"})
_IDENTITY = PciIdentity(0x10DE, 0x2235, 0, 0, 0, "")
_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Cycle:
    """One publication of all hosts.

    :ivar about: the preceding change.
    """

    about: str
    seconds: float
    found: tuple[SyncResult, ...]

    @property
    def reads(self) -> int:
        """Return the number of reading requests of all hosts."""
        return sum(each.reads for each in self.found)

    @property
    def writes(self) -> int:
        """Return the number of writing requests of all hosts."""
        return sum(each.writes for each in self.found)

    @property
    def refused(self) -> int:
        """Return the number of rejected changes."""
        return sum(len(each.refused) for each in self.found)

    def __str__(self) -> str:
        return (
            f"{self.about:12} {self.seconds:9.1f} s  {self.reads:7} reads"
            f"  {self.writes:7} writes  {self.refused:4} refused"
        )


class _Host:
    """A compute node, its devices, and the service that publishes them."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, devices: int) -> None:
        self._record = RecordedNames()
        self._publisher = Publisher(conf, name)
        self._wanted = [_capacity(name, number) for number in range(devices)]

    def publish(self) -> SyncResult:
        return self._publisher.sync(
            self._wanted, self._record, time.monotonic() + _SECONDS
        )

    def change_one(self) -> None:
        """Put one device out of order."""
        first, *others = self._wanted
        self._wanted = [
            dataclasses.replace(first, units={_CLASS: Units(1, 1)}),
            *others,
        ]


def _capacity(node_name: str, number: int) -> Capacity:
    place = PciAddress(0, number, 0, 0)
    handle = AttachHandle(place, (place,), iommu_group=number, numa_node=None)
    name = provider_names.of_device(node_name, provider_names.key(_IDENTITY, place))
    device = Device("pci", place, _IDENTITY, _CLASS, _TRAITS, (handle,), None)
    uuid = provider_names.uuid_of(name)
    return Capacity(uuid, Provider(uuid, name, device), {_CLASS: Units(1)})


def _cycle(about: str, hosts: Sequence[_Host]) -> Cycle:
    began = time.monotonic()
    found = tuple(host.publish() for host in hosts)
    return Cycle(about, time.monotonic() - began, found)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement")
    parser.add_argument("--hosts", type=int, default=300)
    parser.add_argument("--devices", type=int, default=16)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="os-acc-placement-") as directory:
        cloud = Cloud(pathlib.Path(directory))
        try:
            cloud.start()
            cloud.placement.start()
            print(f"{options.hosts} hosts with {options.devices} devices each")
            for cycle in cycles(Placement(cloud), options.hosts, options.devices):
                print(cycle, flush=True)
        finally:
            cloud.stop()


def cycles(placement: Placement, count: int, devices: int) -> Iterator[Cycle]:
    """Publish this number of hosts repeatedly."""
    names = [f"host-{number}-with-{devices}" for number in range(count)]
    for name in names:
        placement.make(name)
    cloud = placement.cloud
    conf = read(cloud.file_of(os_acc_placement=cloud.credentials("nova")))
    hosts = [_Host(conf, name, devices) for name in names]
    yield _cycle("first", hosts)
    yield _cycle("nothing new", hosts)
    for host in hosts:
        host.change_one()
    yield _cycle("one changed", hosts)
    yield _cycle("nothing new", hosts)


if __name__ == "__main__":
    main()
