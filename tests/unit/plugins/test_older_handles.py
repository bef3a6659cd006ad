# SPDX-License-Identifier: Apache-2.0

"""Plugins that build their handles themselves, for each version of the contract.

A plugin for an older contract does not know the attributes that are new in 1.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

import pytest

from os_acc.objects.device import RejectReason
from os_acc.plugins import base
from tests.unit.attach.test_variant_drivers import MLX5, SPEC, VF

HERE: Final = "tests.unit.plugins.test_older_handles"
PLAIN: Final = ""
NETWORK: Final = ', "physical_network": "net1"'
VARIANT: Final = ', "vfio_driver": "auto"'


class Builds1x2(base.PluginBase):
    """Builds each handle of the attributes that version 1.2 has."""

    contract_version: ClassVar[tuple[int, int]] = (1, 2)
    more: ClassVar[dict[str, Any]] = {}

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        for usable in candidates.usable:
            handle = base.AttachHandle(
                address=usable.function.address,
                members=usable.members,
                iommu_group=usable.iommu_group,
                numa_node=usable.function.numa_node,
                numa_policy=usable.tags.numa_policy,
                **self.more,
            )
            yield base.Device(
                plugin=self.name,
                address=usable.function.address,
                identity=usable.function.identity,
                resource_class="CUSTOM_ACCELERATOR_ACME",
                traits=frozenset(),
                handles=(handle,),
                numa_node=None,
            )


class Builds1x3(Builds1x2):
    contract_version = (1, 3)


class Builds1x4(Builds1x2):
    contract_version = (1, 4)


class Alters(Builds1x2):
    more: ClassVar[dict[str, Any]] = {"physical_network": "another"}


class Faulty(Builds1x2):
    more: ClassVar[dict[str, Any]] = {"fault": "too hot"}


@pytest.fixture
def make_host(make_bench, install_plugins):
    """Return a function that builds a host with a card of two VFs, tagged so."""

    def make(plugin: str, tags: str):
        install_plugins(bad=f"{HERE}:{plugin}")
        named = f'{{"address": "0000:3b:00.*"{tags}}}'
        return make_bench(SPEC, device_spec=[named])

    return make


@pytest.mark.parametrize("tags", [PLAIN, NETWORK, VARIANT, NETWORK + VARIANT])
@pytest.mark.parametrize("plugin", ["Builds1x2", "Builds1x3", "Faulty"])
def test_attributes_that_an_older_plugin_does_not_know_are_the_librarys(
    make_host, plugin, tags
):
    host = make_host(plugin, tags)
    inventory = host.manager.discover(float("inf"))
    assert inventory.broken_rules == ()
    (handle,) = host.provider(VF).device.handles
    assert handle.physical_network == ("net1" if NETWORK in tags else None)
    assert handle.driver == (MLX5 if VARIANT in tags else "vfio-pci")
    assert handle.fault == ("too hot" if plugin == "Faulty" else "")


@pytest.mark.parametrize(
    ("plugin", "tags"),
    [("Builds1x4", NETWORK), ("Builds1x4", VARIANT), ("Alters", NETWORK)],
)
def test_a_plugin_that_knows_them_does_not_alter_them(make_host, plugin, tags):
    refused = make_host(plugin, tags).rejected(VF)
    assert refused.reason is RejectReason.INVALID
    assert f"the handle of {VF} was altered" in refused.detail
