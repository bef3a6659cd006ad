# SPDX-License-Identifier: Apache-2.0

"""Both ways of publishing in one process share the record of published names."""

from __future__ import annotations

from os_acc.objects.published import NO_NAMES, NameKind, PlacementName, PublishedNames
from os_acc.placement.capacity import Capacity, Units
from os_acc.placement.provider_tree import TreeWriter
from os_acc.placement.published import PublishedCache
from os_acc.placement.sync import Publisher
from tests.unit.placement import capacity_examples
from tests.unit.placement.capacity_examples import CLASS, Ledger
from tests.unit.placement.nova_side import Nova

FAST = "CUSTOM_FAST"


def test_a_removed_trait_that_comes_back_is_foreign():
    nova, ledger, memory = Nova(), Ledger(), PublishedCache(NO_NAMES)
    writer = TreeWriter(nova.name, memory)
    before = capacity_examples.provider(1, capacity_examples.handle(1))
    after = capacity_examples.provider(1, capacity_examples.handle(1), traits=())

    def cycle(provider):
        memory.record([provider], ledger)
        wanted = [Capacity(provider.uuid, provider, {CLASS: Units(1, 0)})]
        nova.cycle(lambda tree, name: writer.write(tree, name, wanted))

    cycle(before)
    removed = PublishedNames(
        {before.uuid: frozenset({PlacementName(NameKind.TRAIT, FAST)})}
    )
    memory.above(ledger).change_published_names(NO_NAMES, removed)
    # The operator has added the trait again, so it is the operator's.
    nova.known.add_traits(before.uuid, FAST)
    cycle(after)
    assert FAST in nova.known.data(before.uuid).traits


def test_what_is_published_is_known_to_whoever_writes_into_novas_tree(bench, double):
    manager = bench.manager
    manager.publisher = Publisher(double.config(), "node1")
    assert manager.publish().done
    assert manager.catalog.memory.names == manager.store.published_names()
    assert manager.store.published_names().created
