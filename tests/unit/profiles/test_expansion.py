# SPDX-License-Identifier: Apache-2.0

"""A profile extends the flavor that names it, or is expanded into a flavor."""

import math

import pytest

from os_acc import exception
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request_group import GroupPolicy
from os_acc.profiles import expansion, validation
from os_acc.scheduling import extra_specs
from tests.unit.profiles.profile_examples import BITSTREAM, FPGA, GPU, profile

FOREVER = math.inf
PROFILE = validation.read(profile())
SMALL = validation.read({"name": "small", "groups": [{f"resources:{GPU}": "1"}]})


class TwoProfiles:
    """A source with two profiles, of two groups and of one."""

    def profile(self, name, deadline):
        for each in (PROFILE, SMALL):
            if name == each.name:
                return each
        raise exception.NotFound(name, kind=exception.ObjectKind.PROFILE)


def fold(name=PROFILE.name, **more):
    specs = {expansion.KEY: name, **more}
    return extra_specs.parse(expansion.expanded(specs, TwoProfiles(), FOREVER).specs)


def test_a_flavor_gets_the_groups_of_its_profile():
    request = fold()
    assert request.groups == tuple(group.request for group in PROFILE.groups)
    assert [group.suffix for group in request.groups] == [
        "device_profile_0",
        "device_profile_1",
    ]
    first, second = request.groups
    assert (first.resources, str(first.bitstream_request)) == (
        ((FPGA, 1),),
        f"bitstream_id {BITSTREAM}",
    )
    assert (second.resources, second.forbidden) == (((GPU, 2),), {"CUSTOM_OLD"})


def test_the_flavors_own_groups_stay():
    request = fold(**{"resources1:VGPU": "1", "resources:VCPU": "2"})
    assert [group.suffix for group in request.groups] == [
        "",
        "1",
        "device_profile_0",
        "device_profile_1",
    ]


def test_without_a_policy_and_with_one_numbered_group_it_is_none():
    assert fold().policy is GroupPolicy.NONE
    assert fold(**{"resources1:VGPU": "1"}).policy is GroupPolicy.NONE


@pytest.mark.parametrize("policy", ["Isolate", ""])
@pytest.mark.parametrize("own", [{}, {"resources1:VGPU": "1"}])
def test_an_invalid_policy_is_none_where_nova_says_so(policy, own, caplog):
    assert fold(group_policy=policy, **own).policy is GroupPolicy.NONE
    assert len(caplog.records) == 1
    assert f"Invalid group_policy {policy!r}" in caplog.text


@pytest.mark.parametrize("policy", [{}, {"group_policy": "Isolate"}])
def test_two_numbered_groups_need_a_valid_policy(policy):
    own = {"resources1:VGPU": "1", "resources2:VGPU": "1"}
    with pytest.raises(exception.InvalidExtraSpec, match="group_policy"):
        fold(**policy, **own)


def test_one_group_alone_needs_no_policy():
    assert fold("small").policy is None
    assert fold("small", **{"resources1:VGPU": "1"}).policy is GroupPolicy.NONE


@pytest.mark.parametrize("policy", [{}, {"group_policy": "Isolate"}])
def test_a_flavor_that_has_the_groups_itself_lacks_a_policy_that_is_valid(policy):
    properties = expansion.properties(PROFILE, f"_{PROFILE.name}_")
    assert expansion.lacks_policy(properties | policy)
    assert not expansion.lacks_policy(properties | {"group_policy": "isolate"})


def test_the_policy_of_the_flavor_governs_all_groups():
    assert fold(group_policy="isolate").policy is GroupPolicy.ISOLATE


def test_a_group_that_is_called_as_one_of_the_profiles_is_refused():
    with pytest.raises(exception.InvalidExtraSpec, match="device_profile_1"):
        fold(**{"resourcesdevice_profile_1:VGPU": "1"})


@pytest.mark.parametrize("namespace", ["accel", "os_acc"])
def test_a_key_that_contradicts_the_profile_is_refused(namespace):
    key = f"{namespace}device_profile_0:bitstream_id"
    with pytest.raises(exception.InvalidExtraSpec, match="device_profile_0"):
        fold(**{key: "11111111-3108-4426-a11c-a959987565df"})


@pytest.mark.parametrize("namespace", ["accel", "os_acc"])
@pytest.mark.parametrize("value", [BITSTREAM, BITSTREAM.upper()])
def test_a_key_that_says_what_the_profile_says_changes_nothing(namespace, value):
    assert fold(**{f"{namespace}device_profile_0:bitstream_id": value}) == fold()


def test_a_key_of_which_the_profile_says_nothing_is_added():
    request = fold(**{"os_accdevice_profile_0:numa_policy": "required"})
    assert [group.numa_policy for group in request.groups] == [
        NUMAPolicy.REQUIRED,
        None,
    ]


@pytest.mark.parametrize(
    "specs", [None, 7, {}, {"a": "b"}, {expansion.KEY: 7}, {expansion.KEY: ""}]
)
def test_what_names_no_profile_is_left_as_it_is(specs):
    found = expansion.expanded(specs, TwoProfiles(), FOREVER)
    assert found.specs is specs
    assert found.profile == ""


def test_the_callers_flavor_is_not_changed():
    specs = {expansion.KEY: "fpga-dp1"}
    expansion.expanded(specs, TwoProfiles(), FOREVER)
    assert specs == {expansion.KEY: "fpga-dp1"}


def test_what_a_flavor_says_itself_can_be_had_without_its_profile():
    own = {"resources1:VGPU": "1", "hw:pci_numa_affinity_policy": "socket", 7: "x"}
    specs = {
        expansion.KEY: "fpga-dp1",
        "os_accdevice_profile_0:numa_policy": "x",
        **own,
    }
    assert expansion.without_profile(specs) == own


@pytest.mark.parametrize("specs", [None, 7, {}, {"a": "b"}, {expansion.KEY: 7}])
def test_what_names_no_profile_is_all_of_its_own(specs):
    assert expansion.without_profile(specs) is specs


def test_a_flavor_that_has_the_groups_itself_asks_for_the_same():
    properties = expansion.properties(PROFILE, f"_{PROFILE.name}_")
    assert properties["resources_fpga-dp1_0:CUSTOM_ACCELERATOR_FPGA"] == "1"
    assert properties["os_acc_fpga-dp1_0:bitstream_id"] == BITSTREAM
    request = extra_specs.parse({**properties, "group_policy": "none"})
    asked = [
        (each.resources, each.required, each.bitstream_request)
        for each in request.groups
    ]
    assert asked == [
        (g.resources, g.required, g.bitstream_request) for g in fold().groups
    ]


def test_the_suffixes_may_be_others():
    properties = expansion.properties(PROFILE, "7_")
    assert properties["trait7_0:CUSTOM_PROGRAMMABLE"] == "required"


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        *(("x" * 64, "is not a suffix"), ("a.b", "is not a suffix")),
        # resources12: may be group 2 of a profile with prefix 1, or the operator's.
        *(("1", "ends in a digit"), ("_gpu2", "ends in a digit")),
    ],
)
def test_a_prefix_of_which_no_suffix_can_be_made_is_refused(prefix, why):
    with pytest.raises(exception.InvalidInput, match=why):
        expansion.properties(PROFILE, prefix)
