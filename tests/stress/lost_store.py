# SPDX-License-Identifier: Apache-2.0

"""A store that is lost while devices are in use, and the holders of the devices.

The holders are known outside the library: from the functions that plugs have
returned, without those that were unplugged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import pathlib
import random
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.device import Provider
from os_acc.store.database import Database
from os_acc.testing import HostSpec, Snapshot, TestHost, hosts
from tests.stress import simulated_host as benches
from tests.stress.recorder import Recorder
from tests.stress.simulated_host import simulated_host

_T = TypeVar("_T")
PAGE = 4096
#: About how often one process may detect a lost store: another service may have
#: damaged the file that this one replaces.
_LOSSES = 5
GPU, NIC = "0000:17:00.0", "0000:3b:00.0"
STRAY = "0000:f1:00.0"
_PREBOUND = ("0000:5e:00.0", "0000:5f:00.0")
#: The model has no erasures: the disks keep their data.
_ANY = '{"address": "*:*:*.*", "allow_no_erase": true}'


class Kind(enum.Enum):
    """The use of a consumer's device; the value is ``attach_target``."""

    GUEST = "VM"
    #: A guest's device, but on vfio-pci at boot, and not yet opened by a guest.
    PREBOUND = "vm"
    HOST = "host"
    NONE = "none"


#: For each kind a device that a consumer has all the time, and one that another
#: consumer plugs when the store is lost.
DEVICES = {
    Kind.GUEST: (GPU, NIC),
    Kind.PREBOUND: _PREBOUND,
    Kind.HOST: ("0000:a1:00.0", "0000:a2:00.0"),
    Kind.NONE: ("0000:a3:00.0", "0000:a4:00.0"),
}
SPEC = (*(f'{{"address": "{each}", "prebound": true}}' for each in _PREBOUND), _ANY)


class Loss(enum.Enum):
    """The loss of the store's file."""

    DELETED = "deleted"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"

    def strike(self, bench: TestHost, rng: random.Random) -> None:
        """Lose the store of a host, if there is one."""
        self.strike_file(pathlib.Path(bench.directory, "state", "os_acc.sqlite"), rng)

    def strike_file(self, file: pathlib.Path, rng: random.Random) -> None:
        """Lose a store, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            match self:
                case Loss.DELETED:
                    file.unlink()
                case Loss.TRUNCATED:
                    os.truncate(file, PAGE * rng.randrange(file.stat().st_size // PAGE))
                case Loss.DAMAGED:
                    _damage(file, rng)


def _damage(file: pathlib.Path, rng: random.Random) -> None:
    """Overwrite the schema, or a few pages."""
    pages = range(file.stat().st_size // PAGE)
    with open(file, "r+b") as store:
        for page in {0, *rng.sample(pages, 3)} if rng.random() < 0.5 else pages[1:]:
            store.seek(page * PAGE)
            store.write(rng.randbytes(PAGE))


def host() -> HostSpec:
    """Build a host: a card, VFs, cards of each kind, one that a program prepared."""
    places = (*_PREBOUND, "0000:a3", "0000:a4", STRAY)
    return HostSpec(
        (
            *hosts.gpu("0000:17", 0),
            hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=2),
            *(hosts.fpga(place[:7], 0) for place in places),
            hosts.nvme_disk("0000:a1", 1, 0),
            hosts.nvme_disk("0000:a2", 2, 0),
        )
    )


def build(directory: str) -> TestHost:
    """Build the host; the operator has put three cards on vfio-pci."""
    bench = simulated_host(directory, host(), device_spec=list(SPEC))
    kernel = bench.kernel
    for address in (*_PREBOUND, STRAY):
        device = f"sys/bus/pci/devices/{address}"
        kernel.write(kernel.path(device, "driver_override"), "vfio-pci")
        kernel.write(kernel.path("sys/bus/pci/drivers_probe"), address)
        if address == STRAY:
            kernel.write(kernel.path(device, "driver_override"), "\n")
    return bench


def consumer(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _unchecked(_address: str) -> None:
    """Accept any function that a consumer has been given."""


@dataclasses.dataclass(slots=True)
class Holders:
    """The holder of each function, by the answers of plugs alone.

    :ivar by_function: the consumer of each function that a plug has returned.
    :ivar check: checks a function that a consumer has just been given.
    """

    check: Callable[[str], None] = _unchecked
    by_function: dict[str, str] = dataclasses.field(default_factory=dict)

    def plug(self, manager: Manager, holder: str, place: str, kind: Kind) -> bool:
        """Plug a card; return whether that was possible.

        :raises AssertionError: the device belongs to another consumer.
        """
        try:
            # The store may be lost before the plug begins.
            if (request := request_for(manager, place, kind)) is None:
                return False
            entries = manager.plug({"uuid": holder}, *request)
        except exception.OsAccError:
            return False
        self.given(holder, entries)
        return True

    def given(self, holder: str, entries: list[dict[str, Any]]) -> None:
        """Note the entries that a plug has returned."""
        for entry in entries:
            address = "{domain}:{bus}:{device}.{function}".format_map(
                entry["attach_handle_info"]
            )
            if address not in self.by_function:
                self.check(address)
            other = self.by_function.setdefault(address, holder)
            assert other == holder, f"{address} is given twice: to {other} and {holder}"

    def unplug(self, manager: Manager, holder: str) -> None:
        """Release the devices of a consumer; those without a lease stay as they are."""
        once_noticed(lambda: manager.unplug({"uuid": holder}))
        for address in [
            each for each, has in self.by_function.items() if has == holder
        ]:
            del self.by_function[address]


def request_for(manager: Manager, place: str, kind: Kind) -> Any:
    """Return a request for a card; None if it is not offered."""
    offered = {str(each.device.address): each for each in offers(manager)}
    if place not in offered:
        return None
    selected, specs = benches.request_of(offered.values(), [place])
    if kind in (Kind.HOST, Kind.NONE):
        specs["accel1:attach_target"] = kind.value
    return selected, specs


def offers(manager: Manager) -> tuple[Provider, ...]:
    """Return the offered providers, even if the store was replaced meanwhile."""
    return once_noticed(manager.providers)


def once_noticed(call: Callable[[], _T]) -> _T:
    """Repeat a call while it detects that the store was lost; return its result."""
    for _ in range(_LOSSES):
        with noticed():
            return call()
    return call()


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Suppress the error of the first operation that detects a lost store."""
    with contextlib.suppress(exception.StateUnavailable):
        yield


def try_everything(manager: Manager, holders: Holders) -> int:
    """Plug every card in turn, for a guest and the host; return how many were free."""
    given = 0
    places = sorted(str(each.device.address) for each in offers(manager))
    for number, place in enumerate(places):
        for kind in (Kind.GUEST, Kind.NONE):
            stranger = consumer(0x1000 + 2 * number + (kind is Kind.NONE))
            if holders.plug(manager, stranger, place, kind):
                given += 1
                holders.unplug(manager, stranger)
    return given


def tidy_up(manager: Manager, prebound: Collection[str] = ()) -> None:
    """Release, as the operator, the helper's devices of lost leases.

    :param prebound: the functions on vfio-pci before: only their driver is named.
    """
    offers(manager)
    for address in manager.store.damaged_claims():
        if address in manager.store.damaged_claims():
            operator_actions.release_device(manager, address, None)
    while claimed := sorted(manager.discover().recorded_state.helper_claims):
        driver = "vfio-pci" if str(claimed[0]) in prebound else None
        operator_actions.release_device(manager, claimed[0], driver)


def check(
    bench: TestHost, manager: Manager, holders: Holders, pristine: Snapshot
) -> None:
    """Check, also after a restart, that no device in use is given away or lost."""
    try_everything(manager, holders)
    manager = bench.start()
    try_everything(manager, holders)
    for holder in sorted(set(holders.by_function.values())):
        holders.unplug(manager, holder)
    tidy_up(manager, _PREBOUND)
    assert not manager.store.leases()
    assert bench.kernel.snapshot() == pristine
    offered = {str(each.device.address) for each in manager.providers()}
    missing = {place for pair in DEVICES.values() for place in pair} - offered
    assert not missing, f"{missing} are offered to no one any more"


def watch_transactions(recorder: Recorder, is_lost: Callable[[], bool]) -> None:
    """Make each beginning of a transaction a point, too.

    If the store was lost, another thread of the process detects it first, so that
    the watched one gets no error.
    """
    begin = Database.transaction
    reported: set[int] = set()

    def watched(database: Database, *given: Any, **options: Any) -> Any:
        recorder.touch("a transaction")
        if is_lost() and id(database) not in reported:
            reported.add(id(database))
            with recorder.quiet(), noticed(), begin(database, *given, **options):
                pass
        return begin(database, *given, **options)

    Database.transaction = watched  # type: ignore[method-assign, assignment]
