# SPDX-License-Identifier: Apache-2.0

"""A flavor's groups become the query that Nova would send."""

from __future__ import annotations

from urllib import parse

import pytest

from os_acc import exception
from os_acc.objects.request_group import FlavorRequest, GroupPolicy, RequestGroup
from os_acc.scheduling import allocation_candidates, extra_specs
from os_acc.scheduling.allocation_candidates import filled, query

FPGA = "CUSTOM_ACCELERATOR_FPGA"
ONE = {f"resources1:{FPGA}": "1"}


def asked(specs: dict[str, str], limit: int | None = None) -> dict[str, str]:
    """Return the parameters of a flavor's query."""
    return dict(parse.parse_qsl(query(extra_specs.parse(specs), limit)))


def test_the_specification_s_use_case_gives_its_query() -> None:
    specs = {
        "resources:VCPU": "2",
        "resources:MEMORY_MB": "2048",
        "trait:HW_CPU_X86_AVX": "required",
        "trait:CUSTOM_MAGIC": "required",
        "resources1:SRIOV_NET_VF": "1",
        "resources1:CUSTOM_NET_EGRESS_BYTES_SEC": "10000",
        "trait1:CUSTOM_PHYSNET_NET1": "required",
        "resources2:SRIOV_NET_VF": "1",
        "resources2:CUSTOM_NET_EGRESS_BYTES_SEC": "20000",
        "trait2:CUSTOM_PHYSNET_NET2": "required",
        "trait2:HW_NIC_ACCEL_SSL": "required",
        "group_policy": "none",
    }
    assert asked(specs) == {
        "group_policy": "none",
        "resources": "MEMORY_MB:2048,VCPU:2",
        "required": "CUSTOM_MAGIC,HW_CPU_X86_AVX",
        "resources1": "CUSTOM_NET_EGRESS_BYTES_SEC:10000,SRIOV_NET_VF:1",
        "required1": "CUSTOM_PHYSNET_NET1",
        "resources2": "CUSTOM_NET_EGRESS_BYTES_SEC:20000,SRIOV_NET_VF:1",
        "required2": "CUSTOM_PHYSNET_NET2,HW_NIC_ACCEL_SSL",
    }


def test_it_is_sorted_and_encoded_as_nova_does() -> None:
    specs = {
        **ONE,
        "trait1:CUSTOM_B": "required",
        "trait1:CUSTOM_A": "forbidden",
        "resources:VCPU": "1",
    }
    assert query(extra_specs.parse(specs)) == (
        "limit=1000&required1=CUSTOM_B%2C%21CUSTOM_A&resources=VCPU%3A1"
        f"&resources1={FPGA}%3A1"
    )


def test_a_group_without_traits_has_no_required() -> None:
    assert asked(ONE) == {"resources1": f"{FPGA}:1"}


@pytest.mark.parametrize("suffix", ["", "1", "_fast-2", "Z" * 64])
def test_every_suffix_that_placement_takes_is_passed_on(suffix: str) -> None:
    assert asked({f"resources{suffix}:VCPU": "3"}) == {f"resources{suffix}": "VCPU:3"}


@pytest.mark.parametrize(("limit", "passed"), [(None, {}), (7, {"limit": "7"})])
def test_a_limit_is_passed_where_there_is_one(
    limit: int | None, passed: dict[str, str]
) -> None:
    assert asked(ONE, limit) == {"resources1": f"{FPGA}:1", **passed}


@pytest.mark.parametrize(
    ("more", "classes"),
    [
        ({}, (FPGA,)),
        ({"group_policy": "isolate"}, (FPGA,)),
        ({"group_policy": "none"}, ()),
        ({f"resources:{FPGA}": "0"}, ()),
    ],
)
def test_what_placement_miscounts_is_known(
    more: dict[str, str], classes: tuple[str, ...]
) -> None:
    specs = {**ONE, f"resources:{FPGA}": "1", "resources:VCPU": "1", **more}
    request = extra_specs.parse(specs)
    assert allocation_candidates.miscounted(request) == classes


def test_several_numbered_groups_are_counted_right() -> None:
    specs = {**ONE, f"resources2:{FPGA}": "1", "group_policy": "isolate"}
    assert allocation_candidates.miscounted(extra_specs.parse(specs)) == ()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_placement_refuses_is_refused(limit: int) -> None:
    with pytest.raises(exception.InvalidInput, match=str(limit)):
        asked(ONE, limit)


def test_nothing_asked_for_is_no_query() -> None:
    with pytest.raises(exception.InvalidExtraSpec, match="requests no resources"):
        asked({"hw:cpu_policy": "dedicated", "resources1:VCPU": "0"})


def test_traits_alone_are_asked_for_with_the_flavor_s_own_amounts() -> None:
    request = extra_specs.parse({"trait:CUSTOM_X": "forbidden"})
    with pytest.raises(exception.InvalidExtraSpec, match="CUSTOM_X") as caught:
        query(request)
    assert "VCPU, MEMORY_MB and DISK_GB" in caught.value.hint
    whole = filled(request, vcpus=2, memory_mb=512, disk_gb=0)
    assert query(whole, None) == (
        "required=%21CUSTOM_X&resources=MEMORY_MB%3A512%2CVCPU%3A2"
    )


@pytest.mark.parametrize(
    ("specs", "unnumbered"),
    [
        ({}, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:VCPU": "4"}, {"VCPU": 4, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:PCPU": "4"}, {"PCPU": 4, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:DISK_GB": "0"}, {"VCPU": 2, "MEMORY_MB": 512}),
        ({"resources1:MEMORY_MB": "9"}, {"VCPU": 2, "DISK_GB": 20}),
        (
            {
                "resources:VCPU": "0",
                "resources:MEMORY_MB": "0",
                "resources9:DISK_GB": "0",
                **ONE,
            },
            {},
        ),
    ],
)
def test_the_flavor_s_own_amounts_give_way_to_its_extra_specs(
    specs: dict[str, str], unnumbered: dict[str, int]
) -> None:
    before = extra_specs.parse(specs)
    after = filled(before, vcpus=2, memory_mb=512, disk_gb=20)
    by_suffix = {group.suffix: group for group in after.groups}
    numbered = tuple(group for group in before.groups if group.suffix)
    assert dict(by_suffix.get("", RequestGroup("")).resources) == unnumbered
    assert tuple(group for group in after.groups if group.suffix) == numbered
    assert list(by_suffix) == sorted(by_suffix)


@pytest.mark.parametrize("amount", [-1, 2**31])
def test_an_amount_that_placement_cannot_count_is_refused(amount: int) -> None:
    with pytest.raises(exception.InvalidExtraSpec, match=str(amount)):
        filled(FlavorRequest(), vcpus=1, memory_mb=amount, disk_gb=1)


@pytest.mark.parametrize(
    ("groups", "policy", "named"),
    [
        ((RequestGroup("1"), RequestGroup("1")), GroupPolicy.NONE, "suffix '1'"),
        ((RequestGroup("1"), RequestGroup("2")), None, "1, 2"),
        ((RequestGroup("1", (), frozenset({"X"})),), None, "X"),
        (
            (RequestGroup("", (("VCPU", 1),), frozenset("XY"), frozenset("YZ")),),
            None,
            "forbids Y",
        ),
    ],
)
def test_groups_that_come_from_elsewhere_are_judged_as_well(
    groups: tuple[RequestGroup, ...], policy: GroupPolicy | None, named: str
) -> None:
    with pytest.raises(exception.InvalidExtraSpec, match=named):
        query(FlavorRequest(groups, policy))
