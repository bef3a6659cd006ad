# SPDX-License-Identifier: Apache-2.0

"""A service that publishes in a double of Placement, and examples to publish."""

from __future__ import annotations

import dataclasses
import time

from os_acc.exception import ServiceType
from os_acc.objects import provider_names
from os_acc.placement.capacity import Capacity, Units
from os_acc.placement.sync import Publisher, SyncResult
from tests.expected_errors import has
from tests.unit.placement import capacity_examples
from tests.unit.placement.capacity_examples import CLASS, RecordedNames


def capacity(number=1, total=4, reserved=0, traits=("CUSTOM_FAST",), name=CLASS):
    found = capacity_examples.provider(number % 32, traits=traits)
    called = provider_names.of_device("node1", str(number))
    provider = dataclasses.replace(
        found, uuid=provider_names.uuid_of(called), name=called
    )
    device = dataclasses.replace(provider.device, resource_class=name)
    provider = dataclasses.replace(provider, device=device)
    return Capacity(provider.uuid, provider, {name: Units(total, reserved)})


ONE, TWO = capacity(1), capacity(2)
#: A check of errors for ``pytest.raises``.
OF_PLACEMENT = has(service=ServiceType.PLACEMENT)


class Service:
    """A service that publishes, with its record."""

    def __init__(self, double, record=None, named=(), client=None, **values):
        self.record = record or RecordedNames()
        conf = double.config(**values)
        self.publisher = Publisher(conf, "node1", client, named=named)

    def sync(self, *wanted, seconds=120.0) -> SyncResult:
        return self.publisher.sync(wanted, self.record, time.monotonic() + seconds)

    def plan(self, *wanted):
        values = self.record.published_names()
        return self.publisher.difference(wanted, values, time.monotonic() + 120.0)


class Clock:
    """A time of day that the test sets."""

    def __init__(self) -> None:
        self.now = time.time()

    def pass_by(self, seconds):
        self.now += seconds
