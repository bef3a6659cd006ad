# SPDX-License-Identifier: Apache-2.0

"""Free devices are selected by the guest's NUMA cells and its request."""

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.numa.policies import NOTHING_SAID, GuestCells, Policies
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.numa import Affinity, NUMACell, NUMAPolicy, NUMATopology
from os_acc.objects.pci import PciAddress
from os_acc.objects.request_group import GroupAllocation
from os_acc.scheduling.device_selection import (
    ANYWHERE,
    DeviceSelector,
    Reaching,
    SelectedDevice,
)
from tests.expected_errors import raises
from tests.unit.placement import capacity_examples

#: Two sockets of two cells each.
HOST = NUMATopology(tuple(NUMACell(id=cell, socket=cell // 2) for cell in range(4)))
NODELESS = None


def card(
    *nodes: int | None, number: int = 1, policy: NUMAPolicy | None = None
) -> Provider:
    """Return a card with functions on these nodes."""
    handles = [
        capacity_examples.handle(number * 8 + place) for place in range(len(nodes))
    ]
    return capacity_examples.provider(
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
) -> GroupAllocation:
    return GroupAllocation(
        group, provider.uuid, capacity_examples.CLASS, amount, numa_policy=policy
    )


IN_CELL_0 = GuestCells(HOST, (0,))


def choose(
    wanted: Sequence[GroupAllocation],
    *providers: Provider,
    guest: GuestCells = IN_CELL_0,
    taken: Sequence[PciAddress] = (),
    policies: Policies = NOTHING_SAID,
    reaching: Reaching = MappingProxyType({}),
) -> tuple[SelectedDevice, ...]:
    selector = DeviceSelector(guest, policies, reaching)
    by_uuid = {each.uuid: each for each in providers}
    return selector.choose(wanted, by_uuid, frozenset(taken))


def refused(
    wanted: Sequence[GroupAllocation],
    *providers: Provider,
    reason: exception.NoDeviceReason = exception.NoDeviceReason.NUMA_POLICY,
    **options: Any,
) -> str:
    """Return the message of the error."""
    with raises(reason) as caught:
        choose(wanted, *providers, **options)
    return str(caught.value)


def nodes(chosen: Sequence[SelectedDevice]) -> list[int | None]:
    return [each.handle.numa_node for each in chosen]


def test_without_a_word_of_anybody_it_is_legacy():
    provider = card(2, NODELESS)
    assert nodes(choose([want(provider)], provider)) == [NODELESS]
    assert "legacy" in refused([want(provider, 2)], provider)


@pytest.mark.parametrize("amount", range(1, 5))
def test_preferred_goes_as_far_as_it_has_to(amount):
    provider = card(3, 1, NODELESS, 0)
    chosen = choose([want(provider, amount, NUMAPolicy.PREFERRED)], provider)
    nearest = [0, NODELESS, 1, 3]
    assert set(nodes(chosen)) == set(nearest[:amount])


def test_how_far_each_is_away_is_said():
    provider = card(3, 1, NODELESS, 0)
    chosen = choose([want(provider, 4, NUMAPolicy.PREFERRED)], provider)
    assert {each.handle.numa_node: each.affinity for each in chosen} == {
        0: Affinity.LOCAL,
        NODELESS: Affinity.UNKNOWN,
        1: Affinity.SAME_SOCKET,
        3: Affinity.REMOTE,
    }


def test_of_a_guest_anywhere_nothing_is_said_and_no_policy_counts():
    provider = card(3, NODELESS)
    wanted = [want(provider, 2, NUMAPolicy.REQUIRED)]
    chosen = choose(wanted, provider, guest=ANYWHERE)
    assert [each.affinity for each in chosen] == [None, None]
    assert nodes(chosen) == [3, NODELESS]
    assert DeviceSelector().guest is ANYWHERE


def test_too_few_are_too_few_whatever_the_policy():
    provider = card(0, 0)
    refused(
        [want(provider, 2)],
        provider,
        taken=provider.device.handles[0].members,
        reason=exception.NoDeviceReason.NOT_FREE,
    )


def reaching(provider: Provider, **places: Sequence[int]) -> Reaching:
    """Return the functions of a provider that may serve each group, by their places."""
    handles = provider.device.handles
    return {
        (group.removeprefix("g"), provider.uuid): frozenset(
            handles[place].address for place in found
        )
        for group, found in places.items()
    }


def addresses(provider: Provider, *places: int) -> list[PciAddress]:
    return [provider.device.handles[place].address for place in places]


@pytest.mark.parametrize("guest", [ANYWHERE, IN_CELL_0])
def test_a_group_gets_a_function_that_reaches_what_it_requests(guest):
    provider = card(0, 0, 0)
    wanted = [want(provider, group=each) for each in ("0", "1", "2")]
    places = reaching(provider, g1=[1, 2], g2=[1])
    chosen = choose(wanted, provider, guest=guest, reaching=places)
    assert [each.handle.address for each in chosen] == addresses(provider, 0, 2, 1)


@pytest.mark.parametrize("guest", [ANYWHERE, IN_CELL_0])
def test_the_error_names_the_functions_that_reach_what_is_requested(guest):
    provider = card(0, 0, 0)
    (taken,) = addresses(provider, 1)
    message = refused(
        [want(provider)],
        provider,
        guest=guest,
        taken=[taken],
        reaching=reaching(provider, g1=[1]),
        reason=exception.NoDeviceReason.NOT_FREE,
    )
    assert f"1 requested, 0 available; {taken} reach it" in message


def test_a_function_that_reaches_it_may_be_too_far_away():
    provider = card(0, 2)
    policies = Policies(guest=NUMAPolicy.REQUIRED)
    places = reaching(provider, g1=[1])
    refused([want(provider)], provider, policies=policies, reaching=places)


def test_the_first_of_those_that_are_as_near():
    provider = card(1, 0, 0, 0)
    first, second = choose([want(provider, 2)], provider)
    assert [first.handle, second.handle] == list(provider.device.handles[1:3])


def test_the_error_says_what_other_groups_have_got_of_what_would_do():
    provider = card(0, 2)
    wanted = [want(provider, 1, NUMAPolicy.REQUIRED, group) for group in "12"]
    message = refused(wanted, provider)
    assert "1 requested, 0 available (1 of 1 go to other groups)" in message


def test_the_error_of_a_card_with_many_vfs_can_be_read():
    provider = card(*[2] * 20, NODELESS)
    message = refused([want(provider, 2)], provider)
    assert "20 in cell 2 (remote): " in message
    assert "and 16 more; 1 in no known cell: " in message
    assert message.count("0000:3b:") == 5


# -- random cases ------------------------------------------------------------

policies = st.none() | st.sampled_from(NUMAPolicy)
places = st.none() | st.sampled_from(range(4))
#: With and without a cell that has no socket.
topologies = st.sampled_from((HOST, NUMATopology((*HOST.cells, NUMACell(id=4)))))


@st.composite
def cards(draw: st.DrawFn) -> tuple[Provider, ...]:
    """Draw one or two cards of a few functions."""
    return tuple(
        card(
            *draw(st.lists(places, min_size=1, max_size=4)),
            number=number,
            policy=draw(policies),
        )
        for number in range(1, draw(st.integers(2, 3)))
    )


@st.composite
def requests(draw: st.DrawFn, there: tuple[Provider, ...]) -> list[GroupAllocation]:
    """Draw one to three groups that request no more than the available devices."""
    left = {each.uuid: len(each.device.handles) for each in there}
    wanted = []
    for group in range(1, draw(st.integers(2, 4))):
        some = [each for each in there if left[each.uuid]]
        if not some:
            break
        provider = draw(st.sampled_from(some))
        amount = draw(st.integers(1, left[provider.uuid]))
        left[provider.uuid] -= amount
        wanted.append(want(provider, amount, draw(policies), str(group)))
    return wanted


#: By the specification and Nova, independent of os_acc.
def may_have(
    policy: NUMAPolicy, node: int | None, cells: tuple[int, ...], host: NUMATopology
) -> bool:
    if node in cells or policy is NUMAPolicy.PREFERRED:
        return True
    if policy is NUMAPolicy.LEGACY:
        return node is None
    sockets = {cell.id: cell.socket for cell in host.cells}
    return (
        policy is NUMAPolicy.SOCKET
        and node is not None
        and None not in sockets.values()
        and sockets[node] in {sockets[cell] for cell in cells}
    )


def can_be_served(
    wanted: list[GroupAllocation],
    there: tuple[Provider, ...],
    cells: tuple[int, ...],
    host: NUMATopology,
    guest: NUMAPolicy | None,
) -> bool:
    """Return whether any selection serves the request, by trying all."""
    units = [
        [
            handle
            for provider in there
            if provider.uuid == each.provider_uuid
            for handle in provider.device.handles
            if may_have(effective(each, handle, guest), handle.numa_node, cells, host)
        ]
        for each in wanted
        for _ in range(each.amount)
    ]
    taken: dict[PciAddress, int] = {}

    def seat(unit: int, seen: set[PciAddress]) -> bool:
        for handle in units[unit]:
            if handle.address in seen:
                continue
            seen.add(handle.address)
            if handle.address not in taken or seat(taken[handle.address], seen):
                taken[handle.address] = unit
                return True
        return False

    return all(seat(unit, set()) for unit in range(len(units)))


def effective(
    wanted: GroupAllocation, handle: AttachHandle, guest: NUMAPolicy | None
) -> NUMAPolicy:
    return wanted.numa_policy or guest or handle.numa_policy or NUMAPolicy.LEGACY


@given(
    st.data(),
    cards(),
    st.lists(st.sampled_from(range(4)), min_size=1, max_size=3, unique=True),
    topologies,
    policies,
)
def test_no_policy_is_broken_and_none_refused_that_can_be_met(
    data, there, cells, host, guest
):
    wanted = data.draw(requests(there))
    at = tuple(cells)
    possible = can_be_served(wanted, there, at, host, guest)
    try:
        chosen = choose(
            wanted, *there, guest=GuestCells(host, at), policies=Policies(guest=guest)
        )
    except exception.NoDeviceAvailable as error:
        if error.reason is not exception.NoDeviceReason.NUMA_POLICY:
            raise
        assert not possible
        return
    assert possible
    assert len({each.handle.address for each in chosen}) == sum(
        each.amount for each in wanted
    )
    for each in chosen:
        policy = effective(each.wanted, each.handle, guest)
        assert may_have(policy, each.handle.numa_node, at, host)
        assert each.handle in each.provider.device.handles
        assert each.provider.uuid == each.wanted.provider_uuid
