# SPDX-License-Identifier: Apache-2.0

"""Placement answers Nova's queries for flavors with the specified candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib import parse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import (
    MAX_AMOUNT,
    FlavorRequest,
    RequestGroup,
)
from os_acc.scheduling import allocation_candidates, extra_specs
from tests.functional.openstack.network_cards import (
    BYTES,
    NET1,
    NET2,
    SSL,
    VF,
    VFS,
    Wiring,
)
from tests.functional.openstack.placement import Placement, Refused, Taken


@pytest.fixture(scope="module")
def wiring(placement: Placement) -> Iterator[Wiring]:
    """Yield the specification's wiring diagram, without allocations."""
    made = Wiring(placement)
    yield made
    made.remove()


def group(suffix: str, *traits: str, **resources: int) -> dict[str, str]:
    """Return the extra specs of one group; a trait with '!' is forbidden."""
    return {
        **{f"resources{suffix}:{name}": str(n) for name, n in resources.items()},
        **{
            f"trait{suffix}:{name.lstrip('!')}": "forbidden"
            if name.startswith("!")
            else "required"
            for name in traits
        },
    }


def taken(**amounts: Mapping[str, int]) -> Taken:
    """Return a candidate, by the specification's names of the providers."""
    return frozenset(
        (provider, name, amount)
        for provider, resources in amounts.items()
        for name, amount in resources.items()
    )


ONE = {VF: 1}
NONE, ISOLATE = {"group_policy": "none"}, {"group_policy": "isolate"}


# -- the use cases of the specification -----------------------------------------


def test_use_case_1_two_vfs_on_two_networks(wiring: Wiring) -> None:
    flavor = {**group("1", NET1, **ONE), **group("2", NET2, **ONE), **NONE}
    assert wiring.candidates(flavor) == {
        taken(RP1=ONE, RP2=ONE),
        taken(RP1=ONE, RP4=ONE),
        taken(RP3=ONE, RP2=ONE),
        taken(RP3=ONE, RP4=ONE),
    }


def test_use_case_2_a_vf_and_bandwidth_of_the_same_port(wiring: Wiring) -> None:
    both = {VF: 1, BYTES: 10_000}
    assert wiring.candidates(group("1", **both)) == {
        taken(RP1=both),
        taken(RP2=both),
        taken(RP3=both),
        taken(RP4=both),
    }


def test_use_case_3_each_vf_with_its_bandwidth_one_with_ssl(wiring: Wiring) -> None:
    first, second = {VF: 1, BYTES: 10_000}, {VF: 1, BYTES: 20_000}
    flavor = {**group("1", NET1, **first), **group("2", NET2, SSL, **second), **NONE}
    assert wiring.candidates(flavor) == {
        taken(RP1=first, RP2=second),
        taken(RP3=first, RP2=second),
    }


def test_use_case_4_two_vfs_of_one_network_on_different_ports(wiring: Wiring) -> None:
    flavor = {**group("1", NET1, **ONE), **group("2", NET1, **ONE)}
    on_different_ports = taken(RP1=ONE, RP3=ONE)
    assert wiring.candidates(flavor | ISOLATE) == {on_different_ports}
    assert wiring.candidates(flavor | NONE) == {
        on_different_ports,
        taken(RP1={VF: 2}),
        taken(RP3={VF: 2}),
    }


def test_use_case_5_as_many_vfs_as_almost_full_ports_have_together(
    wiring: Wiring,
) -> None:
    ports = [wiring.uuids[name] for name in ("RP1", "RP2", "RP3", "RP4")]
    others = wiring.placement.allocate({port: {VF: VFS - 2} for port in ports})
    flavor = dict(NONE)
    for suffix in "1234":
        flavor |= group(suffix, NET1, **ONE)
    try:
        assert wiring.candidates(group("", NET1, **{VF: 4})) == set()
        assert wiring.candidates(flavor) == {taken(RP1={VF: 2}, RP3={VF: 2})}
    finally:
        wiring.placement.free(others)


# -- other rules of groups --------------------------------------------------------


def test_groups_of_three_levels_are_answered_together(wiring: Wiring) -> None:
    flavor = {
        **group("", VCPU=2, MEMORY_MB=512),
        **group("_net-A", NET2, f"!{SSL}", **ONE),
        **group("7", NET1, f"!{SSL}", **ONE),
        **ISOLATE,
    }
    (found,) = wiring.found(extra_specs.parse(flavor))
    assert found.allocations == taken(
        CN1={"VCPU": 2, "MEMORY_MB": 512}, RP4=ONE, RP3=ONE
    )
    assert found.mappings == {
        "": frozenset({"CN1"}),
        "_net-A": frozenset({"RP4"}),
        "7": frozenset({"RP3"}),
    }


def test_isolate_is_for_numbered_groups_alone(wiring: Wiring) -> None:
    flavor = {**group("", NET1, f"!{SSL}", **ONE), **group("1", NET1, **ONE)}
    assert taken(RP3={VF: 2}) in wiring.candidates(flavor | ISOLATE)


@pytest.mark.parametrize("policy", [{}, ISOLATE, NONE])
def test_placement_counts_right_what_is_not_told_of_as_miscounted(
    wiring: Wiring, policy: dict[str, str]
) -> None:
    flavor = {**group("", NET1, f"!{SSL}", **ONE), **group("1", NET1, **ONE), **policy}
    request = extra_specs.parse(flavor)
    sums = {
        sum(amount for _rp, _name, amount in found.allocations)
        for found in wiring.found(request)
    }
    assert (sums != {2}) is bool(allocation_candidates.miscounted(request))


def test_traits_of_a_numbered_group_are_its_own(wiring: Wiring) -> None:
    flavor = {**group("1", SSL, NET1, **ONE), **group("2", **ONE), **ISOLATE}
    assert wiring.candidates(flavor) == {
        taken(RP1=ONE, RP2=ONE),
        taken(RP1=ONE, RP3=ONE),
        taken(RP1=ONE, RP4=ONE),
    }


def test_any_provider_of_the_unnumbered_group_may_have_its_traits(
    wiring: Wiring,
) -> None:
    """The specification requires them of each provider; Placement does not."""
    flavor = group("", NET1, VCPU=1, **ONE)
    assert wiring.candidates(flavor) == {
        taken(CN1={"VCPU": 1}, RP1=ONE),
        taken(CN1={"VCPU": 1}, RP3=ONE),
    }


def test_traits_of_the_unnumbered_group_count_with_the_flavor_s_own_amounts(
    wiring: Wiring,
) -> None:
    request = extra_specs.parse({"trait:HW_CPU_X86_AVX": "forbidden"})
    filled = allocation_candidates.filled(request, vcpus=2, memory_mb=512, disk_gb=0)
    (found,) = wiring.found(filled)
    assert found.allocations == taken(CN1={"VCPU": 2, "MEMORY_MB": 512})


def test_a_limit_is_kept(wiring: Wiring) -> None:
    request = extra_specs.parse(group("1", **ONE))
    queries = [allocation_candidates.query(request, limit) for limit in (3, None)]
    found = [wiring.placement.candidates(query) for query in queries]
    assert [len(one["allocation_requests"]) for one in found] == [3, 4]


# -- invalid requests -------------------------------------------------------------

AVX = "HW_CPU_X86_AVX"


def asked(flavor: Mapping[str, str], limit: int | None = None) -> str:
    """Return the query of a flavor."""
    return allocation_candidates.query(extra_specs.parse(flavor), limit)


@pytest.mark.parametrize(
    ("flavor", "raw"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"resources:VCPU": "0"}, "resources=VCPU:0", id="zero"),
        pytest.param(
            {f"trait1:{AVX}": "required"}, f"required1={AVX}", id="traits alone"
        ),
        pytest.param(
            {f"trait1:{AVX}": "forbidden", "resources2:VCPU": "1"},
            f"required1=!{AVX}&resources2=VCPU:1",
            id="traits beside another group",
        ),
        pytest.param(
            {f"trait1:{AVX}": "required", "resources1:VCPU": "0"},
            f"required1={AVX}&resources1=",
            id="traits of what is stripped",
        ),
        pytest.param(
            {f"trait:{AVX}": "required"}, f"required={AVX}", id="unnumbered traits"
        ),
        pytest.param(
            {f"trait:{AVX}": "required", "resources1:VCPU": "1"},
            f"required={AVX}&resources1=VCPU:1",
            id="unnumbered traits beside a group",
        ),
        pytest.param(
            {"resources1:VCPU": "1", "resources2:VCPU": "1"},
            "resources1=VCPU:1&resources2=VCPU:1",
            id="no policy",
        ),
        pytest.param(
            {
                "resources1:VCPU": "1",
                "resources2:VCPU": "1",
                "group_policy": "Isolate",
            },
            "resources1=VCPU:1&resources2=VCPU:1&group_policy=Isolate",
            id="no valid policy",
        ),
        pytest.param(
            {"resources:CUSTOM_gpu": "1"}, "resources=CUSTOM_gpu:1", id="class"
        ),
        pytest.param(
            {"resources:VCPU": "1", "trait:CUSTOM-X": "required"},
            "resources=VCPU:1&required=CUSTOM-X",
            id="trait",
        ),
        pytest.param(
            {"resources:VCPU": "1", "trait:": "required"},
            "resources=VCPU:1&required=",
            id="no trait",
        ),
        pytest.param(
            {"resources:VCPU": "1", f"trait:{'X' * 256}": "required"},
            f"resources=VCPU:1&required={'X' * 256}",
            id="long trait",
        ),
    ],
)
def test_what_placement_would_refuse_is_refused_before_it_is_asked(
    placement: Placement, flavor: Mapping[str, str], raw: str
) -> None:
    before = placement.service.requests()
    with pytest.raises(exception.InvalidExtraSpec):
        asked(flavor)
    assert placement.service.requests() == before
    assert placement.status(raw) == 400


def test_a_trait_that_is_required_and_forbidden_is_refused_by_both(
    placement: Placement,
) -> None:
    trait = frozenset({AVX})
    request = FlavorRequest((RequestGroup("", (("VCPU", 1),), trait, trait),))
    with pytest.raises(exception.InvalidExtraSpec):
        allocation_candidates.query(request)
    assert placement.status(f"resources=VCPU:1&required={AVX},!{AVX}") == 400


def test_a_class_that_a_group_has_twice_is_refused_though_placement_is_not_so_strict(
    wiring: Wiring,
) -> None:
    with pytest.raises(exception.InvalidExtraSpec):
        asked({f"resources1:{VF}": "1", f"resources1:{VF}\n": str(VFS + 1)})
    found = wiring.placement.candidates(f"resources1={VF}:{VFS + 1},{VF}:1")
    assert len(found["allocation_requests"]) == 4


def test_a_limit_of_nothing_is_refused_by_both(placement: Placement) -> None:
    with pytest.raises(exception.InvalidInput):
        asked({"resources:VCPU": "1"}, limit=0)
    assert placement.status("resources=VCPU:1&limit=0") == 400


@pytest.mark.parametrize("suffix", ["a" * 65, ".1", " 1"])
def test_a_suffix_that_placement_refuses_makes_a_key_that_is_pointed_out(
    placement: Placement, suffix: str
) -> None:
    flavor = {f"resources{suffix}:VCPU": "1"}
    assert extra_specs.parse(flavor) == FlavorRequest()
    assert extra_specs.overlooked(flavor) == tuple(flavor)
    assert placement.status(f"resources{parse.quote(suffix)}=VCPU:1") == 400


def test_no_provider_can_have_more_than_what_may_be_asked_for(
    placement: Placement,
) -> None:
    assert asked({"resources:VCPU": str(MAX_AMOUNT)})
    with pytest.raises(exception.InvalidExtraSpec):
        asked({"resources:VCPU": str(MAX_AMOUNT + 1)})
    rp = placement.make("much", inventories={"VCPU": MAX_AMOUNT})
    try:
        with pytest.raises(Refused):
            placement.set_inventories(rp, {"VCPU": MAX_AMOUNT + 1})
    finally:
        placement.remove(rp)


amounts = st.sampled_from(("0", "1", "3", "-1", "many"))
flavors = st.dictionaries(
    st.builds(
        "{}{}:{}".format,
        st.just("resources"),
        st.sampled_from(("", "1", "2", "_net-A", "Z" * 64)),
        st.sampled_from(("VCPU", VF, BYTES, "NO_SUCH")),
    ),
    amounts,
    max_size=6,
)
trait_keys = st.dictionaries(
    st.builds(
        "trait{}:{}".format,
        st.sampled_from(("", "1", "2", "_net-A")),
        st.sampled_from((NET1, NET2, SSL)),
    ),
    st.sampled_from(("required", "forbidden", "preferred")),
    max_size=4,
)
policies = st.sampled_from(({}, NONE, ISOLATE, {"group_policy": "soft"}))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flavors, trait_keys, policies)
def test_placement_takes_whatever_is_let_through_and_refuses_what_is_not(
    wiring: Wiring,
    resources: dict[str, str],
    asked_traits: dict[str, str],
    policy: dict[str, str],
) -> None:
    flavor = resources | asked_traits | policy
    try:
        query = asked(flavor, limit=5)
    except exception.InvalidExtraSpec:
        assert wiring.placement.status(plainly(flavor)) == 400
    else:
        assert wiring.placement.status(query) == 200


def plainly(flavor: Mapping[str, str]) -> str:
    """Return the query of a flavor without validation: Nova's keys, unchanged."""
    asked: dict[str, list[str]] = {}
    for key, value in sorted(flavor.items()):
        kind, _, name = key.partition(":")
        if kind.startswith("resources") and name != "NO_SUCH" and value.isdecimal():
            kept = [f"{name}:{value}"] if int(value) else []
            asked.setdefault(kind, []).extend(kept)
        elif kind.startswith("trait") and value in ("required", "forbidden"):
            suffix = kind.removeprefix("trait")
            asked.setdefault(f"resources{suffix}", [])
            sign = "!" if value == "forbidden" else ""
            asked.setdefault(f"required{suffix}", []).append(f"{sign}{name}")
        elif kind == "group_policy" and value in ("none", "isolate"):
            asked[kind] = [value]
    # Nova leaves out a group without resources.
    needed = {
        name: values
        for name, values in asked.items()
        if values or name.replace("resources", "required") in asked
    }
    return parse.urlencode({name: ",".join(each) for name, each in needed.items()})
