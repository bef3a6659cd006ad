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

"""Which free devices a guest gets, by where it is and what it asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from os_acc import exception
from os_acc.choice import ANYWHERE, Chooser, Chosen
from os_acc.numa.affinity import Guest
from os_acc.numa.policies import Policies
from os_acc.objects.device import Provider
from os_acc.objects.numa import Affinity, NUMACell, NUMAPolicy, NUMATopology
from os_acc.objects.pci import PciAddress
from os_acc.objects.selection import Wanted
from tests.unit.placement import made

#: Two sockets of two cells each.
HOST = NUMATopology(tuple(NUMACell(id=cell, socket=cell // 2) for cell in range(4)))
NODELESS = None
#: What nova.pci.stats answers for a guest in these cells that wants so many
#: devices where there are some of these nodes: required, legacy, preferred,
#: socket (Nova 34, run).
NOVAS_ANSWERS = (
    ((0,), (0,), 1, "yes yes yes yes"),
    ((0,), (1,), 1, "no no yes yes"),
    ((0,), (2,), 1, "no no yes no"),
    ((0,), (NODELESS,), 1, "no yes yes no"),
    ((0,), (NODELESS, 2, 2), 2, "no no yes no"),
    ((0,), (0, NODELESS), 2, "no yes yes no"),
    ((0, 2), (2,), 1, "yes yes yes yes"),
)
IN_ORDER = (
    NUMAPolicy.REQUIRED,
    NUMAPolicy.LEGACY,
    NUMAPolicy.PREFERRED,
    NUMAPolicy.SOCKET,
)


def card(
    *nodes: int | None, number: int = 1, policy: NUMAPolicy | None = None
) -> Provider:
    """A card whose functions have these nodes."""
    handles = [made.handle(number * 8 + place) for place in range(len(nodes))]
    return made.provider(
        number,
        *(
            dataclasses.replace(handle, numa_node=node, numa_policy=policy)
            for handle, node in zip(handles, nodes, strict=True)
        ),
    )


def want(
    provider: Provider,
    amount: int = 1,
    policy: NUMAPolicy | None = None,
    group: str = "1",
) -> Wanted:
    return Wanted(group, provider.uuid, made.CLASS, amount, numa_policy=policy)


def choose(
    wanted: Sequence[Wanted],
    *providers: Provider,
    cells: tuple[int, ...] = (0,),
    topology: NUMATopology = HOST,
    taken: frozenset[PciAddress] = frozenset(),
    policies: Policies | None = None,
) -> tuple[Chosen, ...]:
    chooser = Chooser(Guest(topology, cells), policies or Policies())
    return chooser.choose(wanted, {each.uuid: each for each in providers}, taken)


def nodes(chosen: Sequence[Chosen]) -> list[int | None]:
    return [each.handle.numa_node for each in chosen]


@pytest.mark.parametrize(
    ("cells", "there", "amount", "policy", "answer"),
    [
        (cells, there, amount, policy, answer)
        for cells, there, amount, answers in NOVAS_ANSWERS
        for policy, answer in zip(IN_ORDER, answers.split(), strict=True)
    ],
)
def test_a_policy_chooses_and_refuses_as_novas(
    cells: tuple[int, ...],
    there: tuple[int | None, ...],
    amount: int,
    policy: NUMAPolicy,
    answer: str,
) -> None:
    provider = card(*there)
    wanted = [want(provider, amount, policy)]
    if answer == "yes":
        assert len(choose(wanted, provider, cells=cells)) == amount
        return
    with pytest.raises(exception.NUMAPolicyUnmet) as caught:
        choose(wanted, provider, cells=cells)
    assert policy.value in str(caught.value)
    for handle in provider.device.handles:
        assert str(handle.address) in str(caught.value)


def test_without_a_word_of_anybody_it_is_legacy() -> None:
    provider = card(2, NODELESS)
    assert nodes(choose([want(provider)], provider)) == [NODELESS]
    with pytest.raises(exception.NUMAPolicyUnmet, match="legacy"):
        choose([want(provider, 2)], provider)


@pytest.mark.parametrize("amount", range(1, 5))
def test_preferred_goes_as_far_as_it_has_to(amount: int) -> None:
    provider = card(3, 1, NODELESS, 0)
    chosen = choose([want(provider, amount, NUMAPolicy.PREFERRED)], provider)
    nearest = [0, NODELESS, 1, 3]
    assert set(nodes(chosen)) == set(nearest[:amount])


def test_how_far_each_is_away_is_said() -> None:
    provider = card(3, 1, NODELESS, 0)
    chosen = choose([want(provider, 4, NUMAPolicy.PREFERRED)], provider)
    assert {each.handle.numa_node: each.affinity for each in chosen} == {
        0: Affinity.LOCAL,
        NODELESS: Affinity.UNKNOWN,
        1: Affinity.SAME_SOCKET,
        3: Affinity.REMOTE,
    }


def test_of_a_guest_anywhere_nothing_is_said_and_no_policy_counts() -> None:
    provider = card(3, NODELESS)
    wanted = [want(provider, 2, NUMAPolicy.REQUIRED)]
    chosen = choose(wanted, provider, cells=())
    assert [each.affinity for each in chosen] == [None, None]
    assert nodes(chosen) == [3, NODELESS]
    assert Chooser().guest is ANYWHERE


def test_a_greedy_group_leaves_another_what_only_it_can_have() -> None:
    provider = card(0, 3)
    anything = want(provider, 1, NUMAPolicy.PREFERRED, "1")
    only_local = want(provider, 1, NUMAPolicy.REQUIRED, "2")
    assert nodes(choose([anything, only_local], provider)) == [3, 0]


def test_several_are_spread_over_the_guests_cells() -> None:
    one, other = card(0, 0, 1, number=1), card(0, 0, number=2)
    wanted = [want(one, 1, group="1"), want(other, 1, group="2")]
    assert nodes(choose(wanted, one, other, cells=(0, 1))) == [1, 0]


def test_where_one_cell_has_no_socket_no_socket_is_shared() -> None:
    odd = NUMATopology((*HOST.cells, NUMACell(id=4)))
    provider = card(1)
    with pytest.raises(exception.NUMAPolicyUnmet, match="socket"):
        choose([want(provider, 1, NUMAPolicy.SOCKET)], provider, topology=odd)


def test_a_device_has_a_policy_where_the_request_has_none() -> None:
    strict = card(2, policy=NUMAPolicy.REQUIRED)
    with pytest.raises(exception.NUMAPolicyUnmet, match="required"):
        choose([want(strict)], strict)
    lenient = card(2, policy=NUMAPolicy.PREFERRED)
    assert nodes(choose([want(lenient)], lenient)) == [2]
    with pytest.raises(exception.NUMAPolicyUnmet, match="required"):
        choose([want(lenient)], lenient, policies=Policies(guest=NUMAPolicy.REQUIRED))


def test_too_few_are_too_few_whatever_the_policy() -> None:
    provider = card(0, 0)
    taken = frozenset(provider.device.handles[0].members)
    with pytest.raises(exception.NoDeviceAvailable) as caught:
        choose([want(provider, 2)], provider, taken=taken)
    assert not isinstance(caught.value, exception.NUMAPolicyUnmet)


def test_what_two_providers_have_in_one_iommu_group_is_given_once() -> None:
    shared = made.handle(1)
    one = made.provider(1, shared, made.handle(2))
    other = made.provider(2, shared, made.handle(3))
    chosen = choose(
        [want(one, group="1"), want(other, group="2")], one, other, cells=()
    )
    assert len({each.handle.address for each in chosen}) == 2


def test_the_first_of_those_that_are_as_near() -> None:
    provider = card(1, 0, 0, 0)
    first, second = choose([want(provider, 2)], provider)
    assert [first.handle, second.handle] == list(provider.device.handles[1:3])
