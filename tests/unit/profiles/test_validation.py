# SPDX-License-Identifier: Apache-2.0

"""Valid device profiles become requests, and invalid profiles are refused."""

import pytest

from os_acc import exception
from os_acc.profiles import validation
from tests.unit.profiles.profile_examples import BITSTREAM, FPGA, GPU, of_group, profile

# The profile in Cyborg's documentation, "User Requests".
DOCUMENTED = {
    "name": "fpga-dp1",
    "uuid": "5518a925-1c2c-49a2-a8bf-0927d9456f3e",
    "description": "",
    "groups": [
        {
            "trait:CUSTOM_FPGA_TRAITS": "required",
            "resources:FPGA": "1",
            "accel:bitstream_id": BITSTREAM,
        }
    ],
    "created_at": "2020-03-10 03:52:15+00:00",
    "updated_at": None,
    "links": [{"href": "http://192.0.2.7/accelerator/v2", "rel": "self"}],
}


def test_the_profile_of_the_documentation_is_read():
    read = validation.read(DOCUMENTED)
    assert (read.name, read.uuid) == ("fpga-dp1", DOCUMENTED["uuid"])
    (group,) = read.groups
    assert group.request.resources == (("FPGA", 1),)
    assert group.request.required == {"CUSTOM_FPGA_TRAITS"}
    assert str(group.request.bitstream_request) == f"bitstream_id {BITSTREAM}"


def test_groups_keep_their_order_and_are_called_as_nova_calls_them():
    read = validation.read(profile())
    assert [group.index for group in read.groups] == [0, 1]
    assert [group.request.suffix for group in read.groups] == [
        "device_profile_0",
        "device_profile_1",
    ]
    assert [dict(group.request.resources) for group in read.groups] == [
        {FPGA: 1},
        {GPU: 2},
    ]


def test_one_without_a_uuid_has_the_same_one_every_time():
    first, again = validation.read(profile()), validation.read(profile())
    assert first.uuid == again.uuid
    assert first.uuid != validation.read(profile("another")).uuid


@pytest.mark.parametrize(
    ("wrong", "excerpt"),
    [
        (None, "None is not a device profile"),
        ([], "is not a device profile"),
        ({"groups": []}, "None is not a valid name"),
        (profile("a b"), "'a b' is not a valid name"),
        (profile(""), "'' is not a valid name"),
        (profile(7), "7 is not a valid name"),
        (profile(uuid="x"), "'x' is not a UUID"),
        (profile(description=["x"]), "not text"),
        (profile(gruops=[]), "did you mean 'groups'?"),
        (profile(groups=None), "its groups are None"),
        (profile(groups=[]), "at least one group"),
        (profile(groups={"resources:FPGA": "1"}), "its groups are"),
        (profile(groups=["resources:FPGA"]), "group 0 is 'resources:FPGA'"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(wrong, excerpt):
    with pytest.raises(exception.InvalidProfile) as caught:
        validation.read(wrong)
    assert excerpt in str(caught.value)


@pytest.mark.parametrize(
    ("group", "excerpt"),
    [
        ({}, "requests no valid accelerator"),
        ({"trait:CUSTOM_A": "required"}, "no resources"),
        ({"resources:FPGA": "0"}, "resources:FPGA"),
        ({"resources:FPGA": "-1"}, "resources:FPGA"),
        ({"resources:FPGA": "one"}, "resources:FPGA"),
        ({"resources:FPGA": True}, "True, not text"),
        ({"resources:FPGA": 1.0}, "1.0, not text"),
        ({"resources:fpga": "1"}, "resources:fpga"),
        ({"resources:FPGA": "1", "resources:WIDGET": "1"}, "resources:WIDGET"),
        ({"resources:VCPU": "2"}, "resources:VCPU is not a resource class"),
        ({"resources:FPGA": "1", "resources:MEMORY_MB": "0"}, "resources:MEMORY_MB"),
        ({"resources:FPGA": "1", "trait:CUSTOM_A": "Required"}, "'Required'"),
        ({"resources:FPGA": "1", "trait:custom": "required"}, "custom"),
        ({"resources1:FPGA": "1"}, "'resources1:FPGA' is not a key"),
        ({"resources": "1"}, "'resources' is not a key"),
        ({"resources:": "1"}, "'resources:' is not a key"),
        ({7: "1"}, "7 is not a key"),
        ({"resources:\ud800": "1"}, r"'resources:\ud800' is not a key"),
        ({"accel:\x1b[31m": "1"}, r"'accel:\x1b[31m' is not a key"),
        ({"os_acc:bitstream_id": BITSTREAM}, "not a key of a group"),
        ({"resources:FPGA": "1", "accel:bitstream": BITSTREAM}, "did you mean"),
        ({"resources:FPGA": "1", "accel:device_profile": "x"}, "not a key of a device"),
        ({"resources:FPGA": "1", "accel:bitstream_id": "x"}, "'x'"),
        (
            {
                "resources:FPGA": "1",
                "accel:bitstream_id": BITSTREAM,
                "accel:function_id": BITSTREAM,
            },
            "contradicts another key",
        ),
    ],
)
def test_what_no_group_can_ask_for_is_refused_by_name(group, excerpt):
    with pytest.raises(exception.InvalidProfile) as caught:
        validation.read({"name": "one", "groups": [group]})
    assert excerpt in str(caught.value)
    assert "device profile one, group 0" in str(caught.value)


@pytest.mark.parametrize("amount", ["0", "1"])
def test_a_group_asks_for_one_class_as_one_provider_serves_it(amount):
    group = {f"resources:{GPU}": "1", f"resources:{FPGA}": amount}
    with pytest.raises(exception.InvalidProfile) as caught:
        validation.read({"name": "one", "groups": [group]})
    both = f"resources:{FPGA} and resources:{GPU}"
    assert f"device profile one, group 0 requests {both}" in str(caught.value)
    assert caught.value.hint == "split it into 2 groups"


@pytest.mark.parametrize("name", ["FPGA", "PGPU", "VGPU", "CUSTOM_NIC"])
def test_a_profile_asks_for_what_cyborg_has_too(name):
    read = validation.read(of_group(**{f"resources__{name}": 1}))
    assert read.groups[0].request.resources == ((name, 1),)


@pytest.mark.parametrize("amounts", [[2147483647], [200, 57], [1] * 257])
def test_a_profile_of_more_requests_than_anybody_serves_is_refused(amounts):
    groups = [{"resources:FPGA": amount} for amount in amounts]
    with pytest.raises(exception.InvalidProfile) as caught:
        validation.read({"name": "one", "groups": groups})
    assert f"one requests {sum(amounts)} accelerators" in str(caught.value)
    assert "at most 256" in caught.value.hint


def test_a_profile_of_256_accelerators_is_read():
    groups = [{"resources:FPGA": 128}, {"resources:FPGA": 128}]
    assert validation.read({"name": "one", "groups": groups}).accelerators == 256
