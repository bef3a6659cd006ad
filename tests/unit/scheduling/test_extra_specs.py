# SPDX-License-Identifier: Apache-2.0

"""A flavor's extra specs become request groups, or are refused by name."""

import logging

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.bitstream import BitstreamRequest
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request_group import (
    AttachTarget,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
)
from os_acc.scheduling import extra_specs

GPU = "CUSTOM_ACCELERATOR_GPU"
FPGA = "CUSTOM_ACCELERATOR_FPGA"

names = st.text("ABCXYZ019_", min_size=1, max_size=12).map("CUSTOM_{}".format)
suffixes = st.text("abzAZ019_-", max_size=64)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
keys = st.builds(
    "{}{}:{}".format,
    st.sampled_from(("resources", "trait", "accel", "os_acc", "bitstream", "hw")),
    st.text("19a_.", max_size=2),
    names | st.text(max_size=8) | st.sampled_from(("VCPU", "bitstream_id")),
)


@st.composite
def groups(draw: st.DrawFn, suffix: str) -> RequestGroup:
    resources = draw(st.dictionaries(names, st.integers(1, 9), min_size=1))
    required = draw(st.frozensets(names))
    return RequestGroup(
        suffix=suffix,
        resources=tuple(sorted(resources.items())),
        required=required,
        forbidden=draw(st.frozensets(names)) - required,
    )


@st.composite
def flavor_requests(draw: st.DrawFn) -> FlavorRequest:
    chosen = sorted(draw(st.sets(suffixes, max_size=4)))
    return FlavorRequest(
        groups=tuple(draw(groups(suffix)) for suffix in chosen),
        policy=draw(st.sampled_from(GroupPolicy)),
    )


def as_extra_specs(request: FlavorRequest) -> dict[str, str]:
    specs = {}
    if request.policy is not None:
        specs["group_policy"] = request.policy.value
    for group in request.groups:
        for name, amount in group.resources:
            specs[f"resources{group.suffix}:{name}"] = str(amount)
        for name in group.required:
            specs[f"trait{group.suffix}:{name}"] = "required"
        for name in group.forbidden:
            specs[f"trait{group.suffix}:{name}"] = "forbidden"
    return specs


@pytest.mark.parametrize("nothing", [None, {}, {"hw:cpu_policy": "dedicated"}])
def test_a_flavor_without_granular_keys_has_no_groups(nothing):
    assert extra_specs.parse(nothing) == FlavorRequest()


def test_the_specification_s_example_gives_its_groups():
    request = extra_specs.parse(
        {
            "resources:VCPU": "2",
            "trait:HW_CPU_X86_AVX": "required",
            "resources1:SRIOV_NET_VF": "1",
            "resources1:CUSTOM_BANDWIDTH": "10000",
            "trait1:CUSTOM_PHYSNET_NET1": "required",
            "resources2:SRIOV_NET_VF": "1",
            "trait2:CUSTOM_PHYSNET_NET2": "required",
            "trait2:HW_NIC_ACCEL_SSL": "forbidden",
            "group_policy": "isolate",
        }
    )
    assert request == FlavorRequest(
        groups=(
            RequestGroup("", (("VCPU", 2),), frozenset({"HW_CPU_X86_AVX"})),
            RequestGroup(
                "1",
                (("CUSTOM_BANDWIDTH", 10000), ("SRIOV_NET_VF", 1)),
                frozenset({"CUSTOM_PHYSNET_NET1"}),
            ),
            RequestGroup(
                "2",
                (("SRIOV_NET_VF", 1),),
                frozenset({"CUSTOM_PHYSNET_NET2"}),
                frozenset({"HW_NIC_ACCEL_SSL"}),
            ),
        ),
        policy=GroupPolicy.ISOLATE,
    )


@given(flavor_requests())
def test_every_request_survives_the_way_through_a_flavor(request_):
    assert extra_specs.parse(as_extra_specs(request_)) == request_


@given(flavor_requests(), st.randoms())
def test_the_order_of_the_keys_does_not_matter(request_, random):
    items = list(as_extra_specs(request_).items())
    random.shuffle(items)
    assert extra_specs.parse(dict(items)) == request_


@pytest.mark.parametrize("amount", ["2", 2, " 2 ", "+2"])
def test_amounts_are_read_as_nova_reads_them(amount):
    (group,) = extra_specs.parse({f"resources1:{GPU}": amount}).groups
    assert group.amount(GPU) == 2
    assert group.amount(FPGA) == 0


@pytest.mark.parametrize("key", [f"resources{'a' * 65}:{GPU}", f"resources.1:{GPU}"])
def test_a_suffix_that_placement_cannot_have_makes_a_foreign_key(key):
    assert extra_specs.parse({key: "1"}) == FlavorRequest()


@pytest.mark.parametrize(
    ("dropped", "warning"),
    [
        (
            {"resources1:NO_SUCH_CLASS": "1"},
            "Received an invalid ResourceClass 'NO_SUCH_CLASS' in extra_specs.",
        ),
        (
            {f"resources1:{FPGA}": "-1"},
            "Resource amounts must be nonnegative integers. Received '-1' for key "
            "resources1.",
        ),
        (
            {f"resources:{FPGA}": "one"},
            "Resource amounts must be nonnegative integers. Received 'one' for key "
            "resources.",
        ),
        (
            {"trait1:CUSTOM_X": "preferred"},
            "Only (required, forbidden) traits are supported. Received 'preferred' "
            "for key trait1.",
        ),
        (
            {"group_policy": "Isolate"},
            "Invalid group_policy 'Isolate'. Valid values are 'none' and 'isolate'.",
        ),
    ],
)
def test_what_nova_drops_with_a_warning_is_dropped_with_it(dropped, warning, caplog):
    kept = {f"resources1:{GPU}": "1"}
    with caplog.at_level(logging.WARNING):
        assert extra_specs.parse(kept | dropped) == extra_specs.parse(kept)
    assert warning in caplog.messages


@pytest.mark.parametrize(
    "dropped",
    [
        {"resources:\ud800": "1"},
        {f"resources:{FPGA}": "\ud800"},
        {"trait:CUSTOM_X": "\ud800"},
        {"group_policy": "\ud800"},
    ],
)
def test_a_warning_can_be_written_whatever_it_is_about(dropped, caplog):
    assert extra_specs.parse(dropped) == FlavorRequest()
    (warning,) = caplog.messages
    assert r"\ud800" in warning
    assert warning.encode().decode() == warning


def test_an_amount_of_zero_is_stripped_without_a_warning(caplog):
    request = extra_specs.parse({"resources:VCPU": "0", "resources1:DISK_GB": "0"})
    assert request == FlavorRequest(zeroed=frozenset({"VCPU", "DISK_GB"}))
    assert caplog.messages == []


def test_traits_of_the_unnumbered_group_need_no_resources():
    (group,) = extra_specs.parse({"trait:HW_CPU_X86_AVX": "required"}).groups
    assert group == RequestGroup("", (), frozenset({"HW_CPU_X86_AVX"}))


def refusal(specs: object) -> str:
    """Return the message with which extra specs are refused."""
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        extra_specs.parse(specs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ({"trait1:CUSTOM_X": "required"}, "CUSTOM_X"),
        ({"trait1:CUSTOM_X": "required", f"resources1:{GPU}": "0"}, "CUSTOM_X"),
        ({"trait1:CUSTOM_X": "forbidden", f"resources2:{GPU}": "1"}, "'1'"),
        ({f"resources1:{GPU}": "1", f"resources2:{GPU}": "1"}, "1, 2"),
        (
            {f"resources1:{GPU}": "1", "resources2:VCPU": "1", "group_policy": "x"},
            "group_policy",
        ),
        ({"resources:CUSTOM_gpu": "1"}, "CUSTOM_gpu"),
        ({"trait:": "required"}, "trait:"),
        ({f"resources:{GPU}": str(2**31)}, str(2**31)),
        ({f"resources1:{GPU}": "1", f"resources1:{GPU}\n": "2"}, GPU),
        ({f"resources:{GPU}": "1", f"resources:{GPU}\n": "2"}, "unnumbered group"),
        # Two keys with the same trait name.
        (
            {
                "resources1:VCPU": "1",
                "trait1:CUSTOM_X": "required",
                "trait1:CUSTOM_X\n": "forbidden",
            },
            "both requires and forbids CUSTOM_X",
        ),
        # Wrong types.
        ("resources:VCPU=1", "str"),
        ([("resources:VCPU", "1")], "list"),
        ({1: "x"}, "1"),
        ({None: "x"}, "None"),
        ({f"resources:{GPU}": None}, "None"),
        ({f"resources:{GPU}": True}, "True"),
        ({f"resources:{GPU}": 1.0}, "1.0"),
        ({"trait:CUSTOM_X": 1}, "trait:CUSTOM_X"),
        ({"group_policy": None}, "group_policy"),
    ],
)
def test_what_placement_refuses_is_an_error(specs, named):
    assert named in refusal(specs)


@pytest.mark.parametrize("value", ["required", "prefered", 7])
def test_novas_policy_for_the_whole_guest_is_not_judged_here(value):
    specs = {extra_specs.PCI_NUMA_POLICY: value}
    assert extra_specs.parse(specs).pci_numa_policy == value


@pytest.mark.parametrize("namespace", ["accel", "os_acc"])
@pytest.mark.parametrize("value", [*NUMAPolicy, *AttachTarget])
def test_a_group_has_the_policy_and_the_target_of_its_keys(namespace, value):
    field = "numa_policy" if isinstance(value, NUMAPolicy) else "attach_target"
    specs = {
        f"resources1:{FPGA}": "1",
        f"resources2:{FPGA}": "1",
        f"{namespace}1:{field}": value.value,
        "accel3:attach_target": "VM",
        "group_policy": "none",
    }
    first, second = extra_specs.parse(specs).groups
    assert getattr(first, field) is value
    assert second == RequestGroup("2", ((FPGA, 1),))


IMAGE = "d5ca2f11-3108-4426-a11c-a959987565df"


@pytest.mark.parametrize("namespace", ["accel", "os_acc"])
@pytest.mark.parametrize("suffix", ["", "1", "_fast"])
@pytest.mark.parametrize(
    ("name", "value", "requested"),
    [
        ("bitstream_id", IMAGE.upper(), BitstreamRequest(bitstream_id=IMAGE)),
        ("bitstream_id", IMAGE.replace("-", ""), BitstreamRequest(bitstream_id=IMAGE)),
        ("bitstream_name", "gzip v2", BitstreamRequest(bitstream_name="gzip v2")),
        ("function_id", IMAGE.upper(), BitstreamRequest(function_id=IMAGE)),
        ("function_id", "gzip", BitstreamRequest(function_id="gzip")),
        ("function_name", "gzip", BitstreamRequest(function_name="gzip")),
    ],
)
def test_a_group_says_what_its_region_is_to_hold(
    namespace, suffix, name, value, requested
):
    specs = {f"resources{suffix}:{FPGA}": "1", f"{namespace}{suffix}:{name}": value}
    (group,) = extra_specs.parse(specs).groups
    assert group.bitstream_request == requested


@pytest.mark.parametrize(
    ("key", "requested"),
    [
        (f"bitstream:{IMAGE}", BitstreamRequest(bitstream_id=IMAGE)),
        ("function:gzip", BitstreamRequest(function_id="gzip")),
        (
            "function:CUSTOM_FPGA_INTEL_FUNCTION_D5CA2F1131084426A11CA959987565DF",
            BitstreamRequest(function_id=IMAGE),
        ),
        (
            "function:CUSTOM_FPGA_INTEL_FUNCTION_D5CA2F11_3108_4426_A11C_A959987565DF",
            BitstreamRequest(function_id=IMAGE),
        ),
        (
            "function:CUSTOM_FPGA_FUNCTION_ID_INTEL_D5CA2F1131084426A11CA959987565DF",
            BitstreamRequest(function_id=IMAGE),
        ),
        ("function_name:gzip", BitstreamRequest(function_name="gzip")),
    ],
)
def test_the_specification_s_own_keys_are_of_the_unnumbered_group(key, requested):
    (group,) = extra_specs.parse({f"resources:{FPGA}": "1", key: "required"}).groups
    assert group.bitstream_request == requested


@pytest.mark.parametrize(
    ("specs", "named"),
    [
        ({"accel:bitstream_id": "gzip"}, "'gzip'"),
        ({"accel:bitstream_name": ""}, "''"),
        ({"accel:function_name": "a\nb"}, "a"),
        ({"accel:function_id": "x" * 256}, "xx"),
        ({"accel:function_id": f"{IMAGE},gzip"}, "but several"),
        ({"accel:function_name": "gzip,crypto"}, "but several"),
        ({"accel:bitstream_id": None}, "NoneType"),
        ({f"bitstream:{IMAGE}": "forbidden"}, "'forbidden'"),
        ({"bitstream:": "required"}, "''"),
        ({"accel:function_id": "a", "accel:function_name": "b"}, "another"),
        ({"accel:function_id": "a", "os_acc:function_id": "b"}, "another"),
        ({"accel:numa_policy": "required", "os_acc:numa_policy": "legacy"}, "another"),
        ({"accel:attach_target": "VM", "os_acc:attach_target": "none"}, "another"),
        ({"accel2:function_id": "a"}, "'2'"),
        ({"accel2:numa_policy": "required"}, "'2'"),
        ({"accel2:attach_target": "host"}, "'2'"),
    ],
)
def test_keys_that_nobody_can_mean_are_refused(specs, named):
    assert named in refusal({f"resources:{FPGA}": "1", **specs})


def test_the_same_said_twice_is_said_once():
    specs = {"accel:function_id": IMAGE, "os_acc:function_id": IMAGE.upper()}
    (group,) = extra_specs.parse({f"resources:{FPGA}": "1", **specs}).groups
    assert group.bitstream_request == BitstreamRequest(function_id=IMAGE)


def test_keys_that_nova_passes_over_are_pointed_out():
    specs = {
        "resource1:VCPU": "1",
        f"resources{'a' * 65}:VCPU": "1",
        "resources.1:VCPU": "1",
        "trait.1:CUSTOM_X": "required",
        "required1": "CUSTOM_X",
        "group-policy": "none",
        "grouppolicy": "none",
        "same_subtree": "1,2",
        "in_tree1": IMAGE,
        "Resources:VCPU": "1",
    }
    read = {
        "resources1:VCPU": "1",
        "trait1:CUSTOM_X": "required",
        "group_policy": "none",
        "hw:cpu_policy": "dedicated",
        "accel:device_profile": "x",
        "os_acc1:function_name": "x",
    }
    assert extra_specs.overlooked(specs | read) == tuple(sorted(specs))


@given(json_like | st.dictionaries(keys | st.integers(), st.text() | json_like))
def test_any_input_gives_groups_or_an_invalid_extra_spec(specs):
    try:
        request = extra_specs.parse(specs)
    except exception.InvalidExtraSpec:
        return
    assert list(request.groups) == sorted(request.groups, key=lambda g: g.suffix)


@given(flavor_requests(), st.frozensets(names))
def test_accelerators_are_requested_if_any_group_asks_for_an_offered_class(
    request_, others
):
    asked = {name for group in request_.groups for name, _amount in group.resources}
    assume(asked)
    assert extra_specs.requests_accelerators(request_, others | {min(asked)})
    assert not extra_specs.requests_accelerators(request_, others - asked)
