# SPDX-License-Identifier: Apache-2.0

"""A store with rows in all tables, and one flipped bit.

A service that starts on it reports the damage, or behaves as without it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
import traceback
from collections.abc import Iterator
from typing import Any

from os_acc.attach.manager import Manager
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.records import NameKind, PlacementName, PublishedNames
from os_acc.objects.region import RecordedImage, Region
from os_acc.store import snapshot
from os_acc.testing import HostSpec, hosts
from os_acc.testing.nova import FakeProviderTree
from tests.stress import fault_trials
from tests.stress.simulated_host import plug, request, simulated_host
from tests.unit.store.store_files import execute, file_in

CARD, NIC = "0000:17:00.0", "0000:3b:00.0"
#: Consumers of a card with two functions, of a VF, of a lease with a damaged record,
#: and of a VF that only the privileged helper has on record.
FIRST, SECOND, LOST, UNLEASED = (
    f"{number}1111111-1111-4111-8111-111111111111" for number in range(1, 5)
)
#: How the log reports a row that is set aside.
_REPORT = re.compile("damaged")
#: A provider whose device has gone.
_GONE = "99999999-9999-4999-8999-999999999999"
_FAST = PlacementName(NameKind.TRAIT, "CUSTOM_FAST")
_CLASS = PlacementName(NameKind.RESOURCE_CLASS, "CUSTOM_GONE")
_REGION = Region(
    PciAddress.parse("0000:b3:00.0"),
    PciIdentity(0x8086, 0x0B2B, 0, 0, 0),
    0,
    hosts.DFL_INTERFACE,
    None,
)
#: The tables that need rows, so that a flip in them matters.
TABLES = (
    *("meta", "leases", "claims", "damaged_leases", "events", "requests", "regions"),
    *("providers", "provider_origins", "provider_plugins", "helper_claims"),
    *("published_names", "created_names", "mdev_totals"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a service that depend on its store.

    :ivar written: Nova's provider tree after it was updated.
    """

    attached: Any
    providers: Any
    plugged: Any
    written: Any
    recorded: Any


class Flips:
    """A host and the sound store of its service, in a directory."""

    def __init__(self, directory: str) -> None:
        nic = hosts.nic("0000:3b", 0, name="ens1f0", vfs=4, boot_vfs=4)
        spec = HostSpec((*hosts.gpu("0000:17"), nic))
        self.bench = simulated_host(directory, spec)
        self.state = pathlib.Path(directory, "state")
        self.file = file_in(str(self.state))
        with self.bench.installed():
            self._asked = self._fill()
            self.content = self.file.read_bytes()
            manager = self.bench.start()
            self.expected = self._answers(manager)
            self.offered = self._free(manager)
            assert not self.reported

    def _fill(self) -> dict[str, Any]:
        manager = self.bench.start()
        store = manager.store
        asked = {
            FIRST: request(manager, [CARD]),
            SECOND: request(manager, [NIC]),
        }
        for consumer, what in asked.items():
            manager.plug({"uuid": consumer}, *what)
        plug(manager, LOST, NIC)
        execute(
            self.file,
            f"UPDATE leases SET payload = payload || ' ' WHERE consumer = '{LOST}'",
        )
        store.leases()
        plug(manager, UNLEASED, NIC)
        # As in a store that is older than the lease.
        execute(
            self.file,
            "DELETE FROM claims WHERE lease IN"
            f" (SELECT uuid FROM leases WHERE consumer = '{UNLEASED}')",
            f"DELETE FROM leases WHERE consumer = '{UNLEASED}'",
        )
        self.bench.start().discover()
        store.record_providers(
            {_GONE: "CUSTOM_GONE"},
            plugins={_GONE: "pci"},
            mdev_totals={MdevType("mtty", "mtty-1"): 24},
        )
        names = frozenset({_FAST, _CLASS})
        store.change_published_names(PublishedNames({_GONE: names}, names, {_FAST: 7}))
        store.mark_region_unverified(_REGION.key, "an image")
        store.mark_region_verified(
            dataclasses.replace(_REGION, number=1).key,
            "a function",
            RecordedImage("an image", "sha512", "5a"),
        )
        uuid = "55555555-5555-4555-8555-555555555555"
        store.add_requests([AcceleratorRequest(uuid, "a profile", 0)])
        return asked

    def _answers(self, manager: Manager) -> Answers:
        consumers = (FIRST, SECOND, LOST)
        attached = [manager.attached({"uuid": each}) for each in consumers]
        plugged = [
            manager.plug({"uuid": consumer}, *what)
            for consumer, what in self._asked.items()
        ]
        # The confirming plugs have changed nothing.
        # A store that replaces a damaged one has another identity.
        recorded = dataclasses.replace(
            snapshot.read(str(self.state)), store="", epoch=0
        )
        return Answers(
            attached,
            manager.providers(),
            plugged,
            _tree(manager),
            (recorded, manager.store.providers()),
        )

    def _free(self, manager: Manager) -> set[str]:
        """Return the functions that a plug could get."""
        inventory = manager.discover()
        taken = manager.store.recorded_state().taken
        return {
            str(handle.address)
            for provider in inventory.providers.values()
            for handle in provider.device.handles
            if not taken.intersection(handle.members)
        }

    @property
    def reported(self) -> bool:
        """Return whether a damaged file is kept beside the store."""
        return any(".damaged-" in each.name for each in self.state.iterdir())

    def trouble(self, bit: int) -> str:
        """Flip a bit; return the failure if it is neither reported nor harmless."""
        changed = bytearray(self.content)
        changed[bit // 8] ^= 1 << bit % 8
        if why := self.trouble_with(changed):
            page, offset = divmod(bit // 8, 4096)
            return f"bit {bit % 8} of byte {offset} of page {page + 1}: {why}"
        return ""

    def trouble_with(self, content: bytes) -> str:
        """Start a service on a damaged store; return its failure, or nothing."""
        for file in self.state.glob("os_acc.sqlite*"):
            file.unlink()
        self.file.write_bytes(content)
        with self.bench.installed(), fault_trials.listening() as log:
            try:
                manager = self.bench.start()
                if self.reported or any(map(_REPORT.search, log)):
                    # Plug nothing: a plug would replace the lease that was set aside,
                    # and change the host.
                    more = self._free(manager) - self.offered
                    return f"{more} are offered" if more else ""
                found = self._answers(manager)
            except Exception:  # noqa: BLE001 - each error is a finding
                return traceback.format_exc()
        return "" if found == self.expected else "".join(self._different(found))

    def _different(self, found: Answers) -> Iterator[str]:
        for field in dataclasses.fields(Answers):
            is_now = getattr(found, field.name)
            was = getattr(self.expected, field.name)
            if is_now != was:
                yield f"{field.name}: {is_now}\nwithout it: {was}\n"

    def bits(self, seed: object, number: int) -> Iterator[int]:
        """Yield random bits, spread evenly over all pages."""
        dice = random.Random(f"{seed}")
        for _ in range(number):
            yield dice.randrange(len(self.content) * 8)


def _tree(manager: Manager) -> dict[str, Any]:
    tree = FakeProviderTree()
    tree.new_root("host", "66666666-6666-4666-8666-666666666666", 1)
    tree.new_child("gone", "host", _GONE, 1)
    tree.update_inventory("gone", {"CUSTOM_GONE": {"total": 1}})
    tree.add_traits("gone", "CUSTOM_FAST", "CUSTOM_OF_OTHERS")
    manager.update_provider_tree(tree, "host")
    found = map(tree.data, tree.get_provider_uuids())
    return {
        each.uuid: (each.name, each.parent_uuid, each.inventory, sorted(each.traits))
        for each in found
    }
