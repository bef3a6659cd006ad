# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Two ways to tell Placement in one process: what one strikes out, both forget."""

from __future__ import annotations

from os_acc.objects.told import NOTHING, Kind, Name, Told
from os_acc.placement.capacity import Capacity, Units
from os_acc.placement.memory import Memory
from os_acc.placement.publisher import Publisher
from os_acc.placement.tree import TreeWriter
from tests.unit.placement import made
from tests.unit.placement.made import CLASS, Ledger
from tests.unit.placement.nova import Nova

FAST = "CUSTOM_FAST"


def test_a_trait_that_was_struck_out_is_somebody_elses_when_it_is_back():
    nova, ledger, memory = Nova(), Ledger(), Memory(NOTHING)
    writer = TreeWriter(nova.name, memory)
    before = made.provider(1, made.handle(1))
    after = made.provider(1, made.handle(1), traits=())

    def cycle(provider):
        memory.tell([provider], ledger)
        wanted = [Capacity(provider.uuid, provider, {CLASS: Units(1, 0)})]
        nova.cycle(lambda tree, name: writer.write(tree, name, wanted, {}))

    cycle(before)
    gone = Told({before.uuid: frozenset({Name(Kind.TRAIT, FAST)})})
    memory.above(ledger).change_told(NOTHING, gone)
    # An operator's, who has put it there again.
    nova.known.add_traits(before.uuid, FAST)
    cycle(after)
    assert FAST in nova.known.data(before.uuid).traits


def test_what_is_published_is_known_to_whoever_writes_into_novas_tree(bench, double):
    manager = bench.manager
    manager.publisher = Publisher(double.config(), "node1")
    assert manager.publish().done
    assert manager.offering.memory.told == manager.store.told()
    assert manager.store.told().made
