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


"""A profile as a part of a flavor, and a flavor in the place of a profile."""

from __future__ import annotations

import math

import pytest

from os_acc import exception, extra_specs
from os_acc.objects.request import GroupPolicy
from os_acc.profiles import folding, reading
from tests.unit.profiles.made import BITSTREAM, FPGA, GPU, profile

FOREVER = math.inf
PROFILE = reading.read(profile())


class OneProfile:
    """A source with one profile."""

    def profile(self, name, deadline):
        if name != PROFILE.name:
            raise exception.ProfileNotFound(name)
        return PROFILE


def fold(**more):
    specs = {folding.KEY: "fpga-dp1", **more}
    return extra_specs.parse(folding.folded(specs, OneProfile(), FOREVER).specs)


def test_a_flavor_gets_the_groups_of_its_profile():
    request = fold()
    assert [group.suffix for group in request.groups] == [
        "device_profile_0",
        "device_profile_1",
    ]
    first, second = request.groups
    assert (first.resources, str(first.wish)) == (
        ((FPGA, 1),),
        f"bitstream_id {BITSTREAM}",
    )
    assert (second.resources, second.forbidden) == (((GPU, 2),), {"CUSTOM_OLD"})


def test_they_are_the_profiles_own_requests():
    assert fold().groups == tuple(group.request for group in PROFILE.groups)


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


def test_the_policy_of_the_flavor_governs_all_groups():
    assert fold(group_policy="isolate").policy is GroupPolicy.ISOLATE


def test_two_numbered_groups_need_a_policy_as_without_a_profile():
    with pytest.raises(exception.InvalidExtraSpec, match="group_policy"):
        fold(**{"resources1:VGPU": "1", "resources2:VGPU": "1"})


def test_a_group_that_is_called_as_one_of_the_profiles_is_refused():
    with pytest.raises(exception.InvalidExtraSpec, match="device_profile_1"):
        fold(**{"resourcesdevice_profile_1:VGPU": "1"})


def test_a_profile_that_nobody_has_is_an_error():
    with pytest.raises(exception.ProfileNotFound):
        folding.folded({folding.KEY: "other"}, OneProfile(), FOREVER)


@pytest.mark.parametrize("specs", [None, 7, {}, {"a": "b"}, {folding.KEY: 7}])
def test_what_names_no_profile_is_left_as_it_is(specs):
    found = folding.folded(specs, OneProfile(), FOREVER)
    assert found.specs is specs
    assert found.profile == ""


def test_the_callers_flavor_is_not_changed():
    specs = {folding.KEY: "fpga-dp1"}
    folding.folded(specs, OneProfile(), FOREVER)
    assert specs == {folding.KEY: "fpga-dp1"}


def test_a_flavor_that_has_the_groups_itself_asks_for_the_same():
    properties = folding.properties(PROFILE)
    assert properties["resources_fpga-dp1_0:CUSTOM_ACCELERATOR_FPGA"] == "1"
    assert properties["os_acc_fpga-dp1_0:bitstream_id"] == BITSTREAM
    request = extra_specs.parse({**properties, "group_policy": "none"})
    asked = [(each.resources, each.required, each.wish) for each in request.groups]
    assert asked == [(g.resources, g.required, g.wish) for g in fold().groups]


def test_the_suffixes_may_be_others():
    properties = folding.properties(PROFILE, "7_")
    assert properties["trait7_0:CUSTOM_PROGRAMMABLE"] == "required"


@pytest.mark.parametrize("prefix", ["x" * 64, "a.b"])
def test_a_prefix_of_which_no_suffix_can_be_made_is_refused(prefix):
    with pytest.raises(exception.InvalidInput, match="no suffix"):
        folding.properties(PROFILE, prefix)


@pytest.mark.parametrize("prefix", ["1", "_gpu2", "7_0"])
def test_a_prefix_that_runs_into_the_numbers_of_groups_is_refused(prefix):
    # resources12: may be group 2 of a profile with prefix 1, or an operator's own.
    with pytest.raises(exception.InvalidInput, match="ends in a digit"):
        folding.properties(PROFILE, prefix)
