# SPDX-License-Identifier: Apache-2.0

"""os_acc and Nova make the same query from a flavor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib import parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.accelerator import cyborg
from nova.scheduler import utils
from nova.scheduler.client import report

from os_acc import exception
from os_acc.objects.request_group import DeviceProfile
from os_acc.profiles import expansion, validation
from os_acc.scheduling import allocation_candidates, extra_specs

VCPUS, RAM, ROOT, EPHEMERAL, SWAP = 2, 512, 10, 3, 1025
DISK = ROOT + EPHEMERAL + 2

CLASSES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "FPGA", "CUSTOM_A", "NO_SUCH")
TRAITS = ("HW_CPU_X86_AVX", "CUSTOM_A", "CUSTOM_B")

suffixes = st.sampled_from(("", "1", "2", "_fast-A", "a" * 64, "a" * 65, ".1"))
resources = st.dictionaries(
    st.builds("resources{}:{}".format, suffixes, st.sampled_from(CLASSES)),
    st.sampled_from(("0", "1", " 7 ", "+2", "1_0", "-1", "many", "1.5")),
    max_size=6,
)
traits = st.dictionaries(
    st.builds("trait{}:{}".format, suffixes, st.sampled_from(TRAITS)),
    st.sampled_from(("required", "forbidden", "preferred", "")),
    max_size=5,
)
#: A flavor that names a device profile, with few other keys.
named = st.fixed_dictionaries(
    {expansion.KEY: st.just("one")},
    optional={
        "resources:VCPU": st.just("2"),
        "resources1:FPGA": st.just("1"),
        "trait1:CUSTOM_B": st.sampled_from(("required", "preferred")),
        "resources_2:NO_SUCH": st.just("1"),
        "group_policy": st.sampled_from(("none", "isolate", "None", "")),
    },
)
#: The groups of the profile. For a single group os_acc may send a policy and Nova
#: none, if Nova drops a whole group of the flavor. Placement's answer is the same.
profiles = st.lists(
    st.sampled_from(
        (
            {"resources:FPGA": "1", "trait:CUSTOM_A": "required"},
            {"resources:CUSTOM_A": "2", "trait:CUSTOM_B": "forbidden"},
        )
    ),
    min_size=2,
    max_size=3,
)
others = st.dictionaries(
    st.sampled_from(("group_policy", "in_tree", "same_subtree", "hw:foo", "os:bar")),
    st.sampled_from(("none", "isolate", "None", "")),
    max_size=3,
)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Register Nova's objects, which represent a request for a server."""
    objects.register_all()


def nova_s(flavor: Mapping[str, str], profile: Sequence[Mapping[str, str]] = ()) -> str:
    """Return the query of Nova's scheduler for a flavor with these extra specs.

    :param profile: the groups of the device profile that it names.
    """
    spec = objects.RequestSpec(
        flavor=objects.Flavor(
            vcpus=VCPUS,
            memory_mb=RAM,
            root_gb=ROOT,
            ephemeral_gb=EPHEMERAL,
            swap=SWAP,
            extra_specs=dict(flavor),
        ),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        is_bfv=False,
        requested_resources=cyborg.get_client(None).get_device_request_groups(
            profile, owner=None
        ),
        request_level_params=objects.RequestLevelParams(),
        scheduler_hints={},
    )
    query: str = utils.resources_from_request_spec(None, spec, None).to_querystring()
    return query


def os_acc_s(flavor: Mapping[str, str]) -> str:
    """Return os_acc's query for it."""
    request = extra_specs.parse(flavor)
    return allocation_candidates.query(
        allocation_candidates.filled(request, vcpus=VCPUS, memory_mb=RAM, disk_gb=DISK)
    )


@settings(deadline=None)
@given(resources, traits, others)
def test_whatever_can_be_asked_for_is_asked_for_as_nova_does(resources, traits, others):
    flavor = resources | traits | others
    try:
        query = os_acc_s(flavor)
    except exception.InvalidExtraSpec:
        assert refused_by_placement(nova_s(flavor))
    else:
        assert query == nova_s(flavor)


class Cyborg:
    """A Cyborg with the profile that a flavor names."""

    def __init__(self, groups: Sequence[Mapping[str, str]]) -> None:
        self._found = validation.read({"name": "one", "groups": groups})

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        return self._found


@settings(deadline=None)
@given(named, profiles)
def test_what_a_device_profile_adds_is_asked_for_as_nova_does(flavor, profile):
    try:
        whole: Any = expansion.expanded(flavor, Cyborg(profile), math.inf).specs
        query = os_acc_s(whole)
    except exception.InvalidExtraSpec:
        assert refused_by_placement(nova_s(flavor, profile))
    else:
        assert query == nova_s(flavor, profile)


def refused_by_placement(query: str) -> bool:
    """Return whether Placement 16 answers 400, according to its own rules."""
    asked = dict(parse.parse_qsl(query, keep_blank_values=True))
    suffixes = {name.removeprefix("resources") for name in asked if "resources" in name}
    return (
        not asked.keys() - {"limit", "group_policy"}
        or any(not asked[f"resources{suffix}"] for suffix in suffixes)
        or (len(suffixes - {""}) > 1 and "group_policy" not in asked)
    )


def test_both_ask_with_the_same_microversion():
    assert allocation_candidates.MICROVERSION == report.SAME_SUBTREE_VERSION


def test_nova_s_default_limit_is_ours():
    limit = utils.CONF.scheduler.max_placement_results
    assert limit == allocation_candidates.LIMIT
