# SPDX-License-Identifier: Apache-2.0

"""os_acc assigns Placement's allocations for a flavor with Placement's own mappings.

Placement runs inside this process. For trees and flavors that Hypothesis draws,
os_acc assigns every candidate without its mappings: the answer has to be one of
Placement's mappings for exactly these allocations. Allocations that are no
candidate have to be rejected. Both verdicts are also compared with all possible
assignments.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import Allocations, FlavorRequest, GroupPolicy
from os_acc.scheduling import allocation_candidates, extra_specs, matching
from os_acc.scheduling.assignment import Assignment, ProviderAllocation, assign
from os_acc.scheduling.missing_mappings import TraitView
from tests.expected_errors import has
from tests.functional.openstack.inner_placement import (
    InnerPlacement,
    Mapped,
    Node,
    new_uuid,
)
from tests.functional.openstack.placement import Taken
from tests.unit.scheduling.assignment_oracle import every_assignment

GPU, FPGA = "CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_FPGA"
CPU, MEMORY = "VCPU", "MEMORY_MB"
#: The traits that os_acc publishes, and those of operators and other services.
OF_DEVICES = ("CUSTOM_FAST", "CUSTOM_FPGA_INTEL")
OF_OTHERS = ("CUSTOM_RACK_7", "CUSTOM_WET")
TRAITS = (*OF_DEVICES, *OF_OTHERS)

#: A case is one flavor and one tree; an example is several of both.
CASES, FLAVORS, TREES = 5_000, 20, 5
#: The minimum of each kind in all cases.
LEAST = {"served": 1_000, "found": 2_000, "ambiguous": 500, "refused": 500}
#: A fixed seed: each run has the same cases.
CHOSEN = settings(
    max_examples=CASES // (FLAVORS * TREES),
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def inner() -> InnerPlacement:
    return InnerPlacement((GPU, FPGA), TRAITS)


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A compute node: its own providers, os_acc's, and other services'.

    :ivar ours: uuid to resource class.
    """

    nodes: tuple[Node, ...]
    ours: dict[str, str]

    @property
    def known(self) -> TraitView:
        return TraitView(
            own={
                node.uuid: node.traits.intersection(OF_DEVICES)
                for node in self.nodes
                if node.uuid in self.ours
            },
            published={node.uuid: node.traits for node in self.nodes},
        )


def random_tree(dice: random.Random, numbers: Iterator[int]) -> Tree:
    """Draw a node; cards and NUMA cells below it; regions below the cards."""
    root = numbered(dice, numbers)
    nodes = [Node(root, None, {CPU: 8, MEMORY: 9}, some(dice, OF_OTHERS))]
    ours: dict[str, str] = {}

    def add(parent: str, inventory: dict[str, int], traits: Sequence[str]) -> str:
        uuid = numbered(dice, numbers)
        nodes.append(Node(uuid, parent, inventory, some(dice, traits)))
        return nodes[-1].uuid

    for _ in range(dice.randint(0, 2)):
        # A NUMA cell, or another service's card, of a class that os_acc has, too.
        names = dice.sample((GPU, CPU, FPGA), dice.randint(1, 2))
        add(root, {name: dice.randint(1, 3) for name in names}, TRAITS)
    for _ in range(dice.randint(1, 3)):
        ours[add(root, {GPU: dice.randint(1, 4)}, TRAITS)] = GPU
    if dice.random() < 0.6:
        card = add(root, {}, OF_OTHERS)
        for _ in range(dice.randint(1, 2)):
            ours[add(card, {FPGA: 1}, TRAITS)] = FPGA
    return Tree(tuple(nodes), ours)


def numbered(dice: random.Random, numbers: Iterator[int]) -> str:
    """Draw a uuid that does not reveal the order of creation."""
    return new_uuid(dice.randrange(64) * 1_000 + next(numbers))


def some(dice: random.Random, names: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name in names if dice.random() < 0.5)


def random_flavor(dice: random.Random) -> FlavorRequest:
    """Draw up to four groups, at least one of them with accelerators."""
    specs = {"group_policy": dice.choice(("none", "isolate"))}
    suffixes = dice.sample(["", "1", "2", "_x", "3-B"], dice.randint(1, 4))
    for index, suffix in enumerate(suffixes):
        names = [GPU if index == 0 else dice.choice((GPU, GPU, GPU, FPGA, CPU))]
        names += dice.sample((CPU, MEMORY, FPGA), dice.choice((0,) * 8 + (1, 2)))
        if not suffix and dice.random() < 0.7:
            names.append(CPU)
        for name in names:
            specs[f"resources{suffix}:{name}"] = str(dice.choice((1, 1, 1, 1, 2)))
        for trait in dice.sample(TRAITS, dice.choice((0, 0, 0, 0, 1, 1, 2))):
            rule = dice.choice(("required", "required", "forbidden"))
            specs[f"trait{suffix}:{trait}"] = rule
    return extra_specs.parse(specs)


# -- answers of os_acc ---------------------------------------------------------------


def allocated(tree: Tree, taken: Taken) -> list[ProviderAllocation]:
    traits = {node.uuid: node.traits for node in tree.nodes}
    return [
        ProviderAllocation(at, resources, at in tree.ours, traits[at], traits[at])
        for at, resources in entries(taken)
    ]


def entries(taken: Taken) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """Return allocations in the parsed form of plug's argument."""
    return tuple(
        (uuid, tuple(sorted((name, n) for at, name, n in taken if at == uuid)))
        for uuid in sorted({provider for provider, _name, _amount in taken})
    )


def mapped(found: Assignment) -> Mapped:
    return frozenset((suffix, provider) for (suffix, _name), provider in found.items())


def attributed(tree: Tree, flavor: FlavorRequest, taken: Taken) -> Mapped:
    """Assign as a plug does, with os_acc's own providers alone."""
    wanted = matching.match_groups(
        flavor, Allocations(entries(taken)), tree.ours, tree.known
    )
    return frozenset((each.group_suffix, each.provider_uuid) for each in wanted)


def of_ours(tree: Tree, mappings: Mapped) -> Mapped:
    return frozenset(each for each in mappings if each[1] in tree.ours)


# -- answers of Placement --------------------------------------------------------------


def candidates_of(
    inner: InnerPlacement, flavor: FlavorRequest, trees: Sequence[Tree]
) -> list[dict[Taken, set[Mapped]]]:
    """Return Placement's candidates for each tree, with the requested amounts.

    Placement is known to miscount some requests under ``isolate``. For these the query
    has no policy, and the rule is applied here to Placement's mappings.
    """
    trusted = not allocation_candidates.miscounted(flavor)
    policy = flavor.policy if trusted else GroupPolicy.NONE
    place = {node.uuid: at for at, tree in enumerate(trees) for node in tree.nodes}
    found: list[dict[Taken, set[Mapped]]] = [{} for _ in trees]
    for taken, mappings in inner.candidates(flavor.groups, policy).items():
        (at,) = {place[provider] for provider, _name, _amount in taken}
        if not trusted:
            mappings = {each for each in mappings if is_isolated(each)}
        if mappings:
            found[at][taken] = mappings
    return found


def is_isolated(mappings: Mapped) -> bool:
    numbered = [provider for suffix, provider in mappings if suffix]
    return len(set(numbered)) == len(numbered)


def strangers(
    dice: random.Random,
    tree: Tree,
    flavor: FlavorRequest,
    candidates: dict[Taken, set[Mapped]],
) -> Iterator[Taken]:
    """Draw allocations that fit into the tree and are no candidate."""
    made = [anyhow(dice, tree, flavor)]
    if candidates:
        amounts = Counter(
            {
                (at, name): n
                for at, name, n in dice.choice(sorted(candidates, key=sorted))
            }
        )
        # Move a unit to another provider, or add one.
        at, name = dice.choice(sorted(amounts))
        amounts[at, name] -= dice.random() < 0.8
        amounts[dice.choice([node.uuid for node in tree.nodes]), name] += 1
        made.append(amounts)
    room = {node.uuid: node.inventory for node in tree.nodes}
    for amounts in made:
        taken = frozenset((*key, n) for key, n in amounts.items() if n)
        fits = all(n <= room[at].get(name, 0) for at, name, n in taken)
        if fits and taken not in candidates:
            yield taken


def anyhow(
    dice: random.Random, tree: Tree, flavor: FlavorRequest
) -> Counter[tuple[str, str]]:
    """Draw the requested amounts from any providers, regardless of the rules."""
    amounts = Counter[tuple[str, str]]()
    for group in flavor.groups:
        at = dice.choice(tree.nodes).uuid
        for name, amount in group.resources:
            able = [node.uuid for node in tree.nodes if name in node.inventory]
            if able and (not group.suffix or at not in able):
                at = dice.choice(able)
            amounts[at, name] += amount
    return amounts


def test_the_answer_is_one_of_placements_own(inner: InnerPlacement) -> None:
    counted = Counter[str]()

    @CHOSEN
    @given(st.randoms(use_true_random=False))
    def judged(dice: random.Random) -> None:
        numbers = itertools.count()
        trees = [random_tree(dice, numbers) for _ in range(TREES)]
        inner.plant([node for tree in trees for node in tree.nodes])
        for flavor in [random_flavor(dice) for _ in range(FLAVORS)]:
            counted.update(judge(inner, dice, trees, flavor))

    judged()
    # The cases of each kind suffice.
    assert counted["cases"] >= CASES
    for what, least in LEAST.items():
        assert counted[what] > least, counted


def judge(
    inner: InnerPlacement,
    dice: random.Random,
    trees: Sequence[Tree],
    flavor: FlavorRequest,
) -> Counter[str]:
    """Compare every candidate for a flavor with os_acc's answer."""
    counted = Counter[str]()
    of_trees = candidates_of(inner, flavor, trees)
    for tree, candidates in zip(trees, of_trees, strict=True):
        counted["cases"] += 1
        counted["served"] += bool(candidates)
        for taken, mappings in candidates.items():
            check_found(tree, flavor, taken, mappings)
            counted["found"] += 1
            counted["ambiguous"] += len(mappings) > 1
        for taken in strangers(dice, tree, flavor, candidates):
            check_refused(tree, flavor, taken)
            counted["refused"] += 1
    return counted


def check_found(
    tree: Tree, flavor: FlavorRequest, taken: Taken, mappings: set[Mapped]
) -> None:
    there = allocated(tree, taken)
    found = assign(flavor.groups, flavor.policy, there)
    assert mapped(found) in mappings, flavor
    right = every_assignment(flavor.groups, flavor.policy, there)
    assert found in right
    # Placement and the oracle agree on the rules.
    assert {mapped(each) for each in right} == mappings
    assert attributed(tree, flavor, taken) in {of_ours(tree, each) for each in mappings}


def check_refused(tree: Tree, flavor: FlavorRequest, taken: Taken) -> None:
    there = [dataclasses.replace(each, exact=True) for each in allocated(tree, taken)]
    assert not every_assignment(flavor.groups, flavor.policy, there)
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
    ):
        assign(flavor.groups, flavor.policy, there)
