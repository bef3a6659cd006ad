# SPDX-License-Identifier: Apache-2.0

"""The weigher compares the free accelerators of hosts."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from nova import objects
from nova.conf import CONF
from nova.scheduler import weights

from os_acc import exception
from os_acc.nova import scheduling
from os_acc.nova.weighers import AcceleratorWeigher

NIC = "CUSTOM_ACCELERATOR_NIC"
#: The free units of each provider, by host.
HOSTS = {"many": {"card1": 8, "card2": 3}, "few": {"card3": 1, "card4": 1, "card5": 0}}


class Placement:
    """Answers for the hosts that it knows.

    :ivar unknown: the hosts for which it gives no answer.
    """

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        self.asked: list[str] = []

    def read(self, host: str, resource_class: str) -> dict[str, Any]:
        self.asked.append(host)
        if host in self.unknown:
            raise exception.ServiceUnavailable(
                "placement is down", service=exception.ServiceType.PLACEMENT
            )
        return {
            card: {"resources": {NIC: {"capacity": free, "used": 0}}, "traits": []}
            for card, free in HOSTS[host].items()
        }


@pytest.fixture
def placement(monkeypatch: pytest.MonkeyPatch) -> Iterator[Placement]:
    objects.register_all()
    found = Placement()
    monkeypatch.setattr(scheduling, "read_summaries", found.read)
    scheduling.host_providers.cache_clear()
    yield found
    scheduling.host_providers.cache_clear()


def spec_of(extra_specs: dict[str, str]) -> Any:
    return objects.RequestSpec(
        flavor=objects.Flavor(extra_specs=extra_specs),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
    )


def state(host: str, **metadata: str) -> SimpleNamespace:
    """Return a host with a candidate for each provider with a free unit."""
    return SimpleNamespace(
        uuid=host,
        host=host,
        nodename=host,
        aggregates=[SimpleNamespace(metadata=metadata)],
        allocation_candidates=[
            {"allocations": {card: {"resources": {NIC: 1}}}, "mappings": {"1": [card]}}
            for card, free in HOSTS[host].items()
            if free
        ],
    )


def weigh(extra_specs: dict[str, str]) -> list[float]:
    hosts = [weights.WeighedHost(state(host), 0) for host in HOSTS]
    return AcceleratorWeigher().weigh_objects(hosts, spec_of(extra_specs))


ONE = {f"resources1:{NIC}": "1"}


def test_the_free_units_of_a_host_are_its_weight(placement):
    assert weigh(ONE) == [11, 2]


@pytest.mark.parametrize("host", list(HOSTS))
def test_if_one_host_is_unknown_providers_are_counted(placement, host):
    placement.unknown.add(host)
    assert weigh(ONE) == [2, 2]


def test_a_server_without_accelerators_asks_nothing(placement):
    assert weigh({}) == [0, 0]
    assert placement.asked == []


def test_a_single_host_has_the_same_weight(placement):
    assert AcceleratorWeigher()._weigh_object(state("few"), spec_of(ONE)) == 2


def test_an_aggregate_overrides_the_multiplier(placement):
    weigher = AcceleratorWeigher()
    assert weigher.weight_multiplier(state("few")) == 1.0
    packing = state("few", accelerator_weight_multiplier="-2")
    assert weigher.weight_multiplier(packing) == -2.0
    CONF.set_override("accelerator_weight_multiplier", 0.5, "os_acc_scheduler")
    try:
        assert weigher.weight_multiplier(state("few")) == 0.5
    finally:
        CONF.clear_override("accelerator_weight_multiplier", "os_acc_scheduler")
