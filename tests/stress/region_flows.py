# SPDX-License-Identifier: Apache-2.0

"""Flows, which are killed, that program the regions of guests again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from os_acc.attach.manager import Manager
from os_acc.testing import FunctionSpec, TestHost, hosts
from os_acc.testing.demo.host import GZIP, fill_images
from tests.stress.flows import DFL, INSTANCE, Flow, Program, by_name, plug_bystander
from tests.stress.simulated_host import request

CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
FIRST_IMAGE = "44444444-4444-4444-8444-444444444444"
SECOND_IMAGE = "55555555-5555-4555-8555-555555555555"
#: The function that each image of the guest requests.
_FUNCTIONS: Mapping[str, str] = {FIRST_IMAGE: GZIP, SECOND_IMAGE: CRYPTO}


class RestoredRegion(Program):
    """A guest that could program its card is unplugged: the card is programmed again.

    After any kill no lease of that programming stays, and the service's retries
    complete it.
    """

    name = "a region that is restored at its release"

    def prepare(self, bench: TestHost) -> None:
        super().prepare(bench)
        self._plug(bench.start_here())
        bench.kernel.program_as_guest(DFL, hosts.DFL_FUNCTION)

    def act(self, bench: TestHost) -> Iterator[None]:
        manager = bench.start_here(**self._options(bench))
        yield
        manager.unplug({"uuid": INSTANCE})

    def resume(self, bench: TestHost, manager: Manager) -> None:
        manager = bench.start(**self._options(bench))
        manager.unplug({"uuid": INSTANCE})
        for attempt in manager.retrier.retry():
            attempt.result()
        unverified = manager.store.recorded_state().unverified_regions
        assert not unverified
        assert not unverified.guest_writable
        assert bench.kernel.held_by_hardware(DFL) == (GZIP,)

    @staticmethod
    def _options(bench: TestHost) -> Mapping[str, Any]:
        bench.groups["os_acc_bitstreams"]["reprogram_at_release"] = True
        # The programming must have time within the unplug.
        return {"unplug_timeout": 3600.0}


class Rebuild(Flow):
    """The guest of a card gets another image, which requests another function.

    After any kill the leases are kept. The next plug finishes the rebuild if it was
    recorded, and any later one gives the guest the function of its image.
    """

    name = "a rebuild with another function"
    more: ClassVar[tuple[FunctionSpec, ...]] = (hosts.dfl("0000:b3", 1),)
    places: ClassVar[tuple[str, ...]] = (DFL,)
    unready = frozenset({INSTANCE})
    counts = frozenset({1})

    def prepare(self, bench: TestHost) -> None:
        plug_bystander(bench)
        fill_images(bench.images)
        bench.images.put_gbs("crypto.gbs", CRYPTO)
        for image, function in _FUNCTIONS.items():
            wanted = {"tags": None, "function_id": function}
            bench.images.put(image, b"a disk", id=image, **wanted)
        manager = bench.start_here()
        manager.plug(_guest(FIRST_IMAGE), *request(manager, self.places))

    def run(self, manager: Manager) -> None:
        manager.plug(_guest(SECOND_IMAGE), None, None)

    def resume(self, bench: TestHost, manager: Manager) -> None:
        (image,) = {lease.guest.image_id for lease in manager.store.leases(INSTANCE)}
        manager.plug({"uuid": INSTANCE}, None, None)
        self._check(bench, manager, image)
        for image in (FIRST_IMAGE, SECOND_IMAGE):
            manager.plug(_guest(image), None, None)
            self._check(bench, manager, image)

    def _check(self, bench: TestHost, manager: Manager, image: str) -> None:
        for place in self.places:
            assert bench.kernel.held_by_hardware(place) == (_FUNCTIONS[image],)
            assert bench.kernel.state(place).driver == "vfio-pci"
        assert not manager.store.recorded_state().unverified_regions


class RebuildOfTwo(Rebuild):
    """The guest has two cards: both follow the image, or neither."""

    name = "a rebuild of a guest with two cards"
    more = (hosts.dfl("0000:b3", 1), hosts.dfl("0000:b4", 1))
    places = (DFL, "0000:b4:00.0")
    counts = frozenset({2})


def _guest(image: str) -> dict[str, str]:
    return {"uuid": INSTANCE, "image_id": image}


FLOWS: Mapping[str, Flow] = by_name(RestoredRegion, Rebuild, RebuildOfTwo)
