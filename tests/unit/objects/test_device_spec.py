# SPDX-License-Identifier: Apache-2.0

"""``device_spec`` matches devices as Nova's option does, and none by mistake."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.device_spec import (
    DeviceTags,
    nova_claims,
    nova_numa_policies,
    parse,
)
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity
from tests.unit import pci_addresses

PF = PciAddress.parse("0000:3b:00.0")
VF = PciAddress.parse("0000:3b:02.1")
CARD = PciAddress.parse("0000:af:00.0")
VMD = PciAddress.parse("10000:01:00.0")


def function(
    address: PciAddress,
    product: int = 0x1572,
    total_vfs: int = 0,
    physfn: PciAddress | None = None,
) -> PciFunction:
    identity = PciIdentity(0x8086, product, 0, 0, 0)
    return pci_addresses.function(
        address, identity=identity, total_vfs=total_vfs, physfn=physfn
    )


HOST = {
    PF: function(PF, total_vfs=8),
    VF: function(VF, product=0x154C, physfn=PF),
    CARD: function(CARD),
    VMD: function(VMD),
}
NETDEVS = {"ens1f0": PF, "ens1f0v1": VF}


def named_by(*specs: object) -> set[PciAddress]:
    spec = parse([json.dumps(value) for value in specs])
    return {at for at, found in HOST.items() if spec.match(found, NETDEVS, HOST)}


def claimed_by(*specs: object) -> set[PciAddress]:
    spec = nova_claims([json.dumps(value) for value in specs])
    return {at for at, found in HOST.items() if spec.match(found, NETDEVS, HOST)}


def tags_of(spec: dict[str, object], at: PciAddress = CARD) -> DeviceTags | None:
    device_spec = parse([json.dumps({"address": "*"} | spec)])
    return device_spec.match(HOST[at], NETDEVS, HOST)


# -- matched devices ---------------------------------------------------------


def test_nothing_is_claimed_by_default():
    assert parse([]).match(HOST[CARD], NETDEVS, HOST) is None


SYNTAX = [
    ({"vendor_id": "8086"}, {PF, VF, CARD, VMD}),
    ({"vendor_id": " 0x8086 ", "product_id": "154C"}, {VF}),
    ({"vendor_id": "*", "product_id": "1572"}, {PF, CARD, VMD}),
    ({"vendor_id": "10de"}, set()),
    ({"address": "0000:af:00.0"}, {CARD}),
    ({"address": "0:AF:0.0"}, {CARD}),
    ({"address": "*:3b:*.*"}, {PF, VF}),
    ({"address": "3b:"}, {PF, VF}),
    ({"address": "3b:02"}, {VF}),
    ({"address": "02"}, {VF}),
    ({"address": " :3b: .1"}, {VF}),
    ({"address": ":00."}, {PF, CARD, VMD}),
    ({"address": ".1"}, {VF}),
    ({"address": "*"}, {PF, VF, CARD, VMD}),
    ({"address": {"bus": "3b|af", "function": "0"}}, {PF, CARD}),
    ({"devname": "ens1f0v1"}, {VF}),
    ({"devname": "no-such-interface"}, set()),
    ([], set()),
    ([{"address": "af:00.0"}, {"address": "3b:02.1"}], {CARD, VF}),
]


@pytest.mark.parametrize(("spec", "names"), SYNTAX)
def test_nova_s_syntax_names_what_it_names_in_nova(spec, names):
    assert named_by(spec) == names
    assert claimed_by(spec) == names - {VMD}


def test_a_regex_is_anchored_at_the_start_only():
    assert named_by({"address": {"bus": "3"}}) == {PF, VF}
    assert named_by({"address": {"bus": "b"}}) == set()


def test_domains_of_more_than_four_digits_can_be_named():
    assert named_by({"address": "10000:01:00.0"}) == {VMD}
    assert named_by({"address": {"domain": "1"}}) == {VMD}


@pytest.mark.parametrize(
    "spec",
    [
        {"address": "0000:3b:00.0"},
        {"address": {"domain": "0000", "bus": "3b", "slot": "00", "function": "0"}},
        {"devname": "ens1f0"},
    ],
)
def test_a_single_pf_stands_for_its_vfs_as_well(spec):
    assert named_by(spec) == {PF, VF}
    assert claimed_by(spec) == {PF, VF}


@pytest.mark.parametrize(
    "spec", [{"address": "0000:3b:00.*"}, {"address": {"bus": "3b", "slot": "00"}}]
)
def test_a_pattern_that_only_happens_to_name_one_pf_does_not(spec):
    assert named_by(spec) == {PF}


def test_a_regex_in_upper_case_never_matches_a_field():
    fields = {"domain": "0000", "bus": "3B", "slot": "00", "function": "0"}
    assert named_by({"address": fields}) == set()


def test_vendor_and_product_are_those_of_the_vf_not_of_its_pf():
    assert named_by({"address": "0000:3b:00.0", "product_id": "154c"}) == {VF}


def test_what_is_no_pf_does_not_stand_for_vfs():
    plain = HOST | {PF: function(PF)}
    spec = parse(['{"address": "0000:3b:00.0"}'])
    assert spec.match(HOST[VF], NETDEVS, plain) is None
    assert spec.match(HOST[VF], NETDEVS, {}) is None


def test_the_first_spec_that_names_a_device_wins():
    spec = parse(
        [
            '{"address": "af:00.0", "resource_class": "FIRST"}',
            '[{"vendor_id": "8086", "resource_class": "SECOND"}]',
        ]
    )
    classes = {
        at: tags.resource_class
        for at, found in HOST.items()
        if (tags := spec.match(found, NETDEVS, HOST))
    }
    assert classes == dict.fromkeys(HOST, "CUSTOM_SECOND") | {CARD: "CUSTOM_FIRST"}


@given(st.builds(PciAddress, *map(st.integers, [0] * 4, [2**32 - 1, 255, 31, 7])))
def test_every_address_names_itself_and_no_other(address):
    spec = parse([json.dumps({"address": str(address)})])
    assert spec.match(function(address), {}, {}) == DeviceTags()
    if address != CARD:
        assert spec.match(function(CARD), {}, {}) is None


# -- tags --------------------------------------------------------------------


def test_a_spec_without_tags_leaves_everything_to_the_plugin():
    assert tags_of({}) == DeviceTags(None, frozenset(), None, False, False)


@pytest.mark.parametrize(
    ("given_", "name"),
    [
        ("vgpu", "VGPU"),
        ("PGPU", "PGPU"),
        ("gpu", "CUSTOM_GPU"),
        ("my gpu-7", "CUSTOM_MY_GPU_7"),
        ("custom_gpu", "CUSTOM_GPU"),
    ],
)
def test_resource_classes_are_normalised_as_in_nova(given_, name):
    assert tags_of({"resource_class": given_}) == DeviceTags(resource_class=name)


def test_traits_are_normalised_as_in_nova():
    traits = tags_of({"traits": "HW_GPU_API_VULKAN, red-one,CUSTOM_B,hw_nope"})
    assert traits == DeviceTags(
        traits=frozenset(
            {"HW_GPU_API_VULKAN", "CUSTOM_RED_ONE", "CUSTOM_B", "CUSTOM_HW_NOPE"}
        )
    )


@pytest.mark.parametrize("policy", list(NUMAPolicy))
def test_a_device_has_a_numa_policy(policy):
    assert tags_of({"numa_policy": policy.value}) == DeviceTags(numa_policy=policy)


@pytest.mark.parametrize("yes", [True, "true", "Yes", "1"])
@pytest.mark.parametrize(
    "tag", ["prebound", "allow_no_reset", "allow_no_erase", "trust_guest_contents"]
)
def test_booleans_may_be_text(tag, yes):
    assert tags_of({tag: yes}) == DeviceTags(**{tag: True})
    assert tags_of({tag: "false"}) == DeviceTags()


@pytest.mark.parametrize("number", [4, "4"])
def test_num_vfs_is_for_the_pf_and_not_for_its_vfs(number):
    spec = {"address": "0000:3b:00.0", "num_vfs": number, "traits": "x"}
    traits = frozenset({"CUSTOM_X"})
    assert tags_of(spec, PF) == DeviceTags(traits=traits, num_vfs=4)
    assert tags_of(spec, VF) == DeviceTags(traits=traits)


# -- invalid specs -----------------------------------------------------------

QAT = '{"address": "*", "num_vfs": 16, "qat_services": "%s"}'


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        pytest.param("[" * 100_000, "JSON", id="deeply nested"),
        pytest.param("1" * 5000, "JSON", id="a huge number"),
        ('"3b:02.1"', "3b:02.1"),
        ("[[]]", "object"),
        ('{"address": "*", "address": "af:"}', "twice"),
        ("{}", "does not identify a device"),
        ('{"resource_class": "x"}', "does not identify a device"),
        ('{"VENDOR_ID": "8086"}', "did you mean 'vendor_id'"),
        ('{"adress": "*"}', "did you mean 'address'"),
        ('{"address": "*", "colour": "red"}', "colour"),
        ('{"address": "*", "trusted": "true"}', "Nova's"),
        ('{"address": {"func": "0"}}', "did you mean 'function'"),
        ('{"address": ""}', "address"),
        ('{"address": {}}', "address"),
        ('{"address": null}', "None"),
        ('{"address": 3}', "3"),
        ('{"address": "0:0:0:0.0"}', "0:0:0:0.0"),
        ('{"address": "100000000:00:00.0"}', "domain"),
        ('{"address": "100:00.0"}', "bus"),
        ('{"address": "20.0"}', "slot"),
        ('{"address": ".8"}', "function"),
        ('{"address": "3*:00.0"}', "bus"),
        ('{"address": "-1:00.0"}', "bus"),
        ('{"address": {"bus": "("}}', "bus"),
        ('{"address": {"bus": "a{99999999999}"}}', "bus"),
        ('{"address": {"bus": 3}}', "bus"),
        ('{"devname": ""}', "devname"),
        ('{"devname": 1}', "1"),
        ('{"devname": "ens1", "address": "*"}', "ens1"),
        ('{"vendor_id": 32902}', "32902"),
        ('{"vendor_id": "10000"}', "10000"),
        ('{"vendor_id": ""}', "vendor_id"),
        ('{"product_id": "intel"}', "intel"),
        ('{"address": "*", "resource_class": ""}', "resource_class"),
        ('{"address": "*", "resource_class": "custom_a-b"}', "custom_a-b"),
        ('{"address": "*", "resource_class": 1}', "1"),
        ('{"address": "*", "traits": ["A"]}', "traits"),
        ('{"address": "*", "traits": "a,,b"}', "traits"),
        ('{"address": "*", "traits": "%s"}' % ("a" * 255), "255"),
        ('{"address": "*", "num_vfs": 0}', "0"),
        ('{"address": "*", "num_vfs": true}', "True"),
        ('{"address": "*", "num_vfs": 65536}', "65536"),
        ('{"address": "*", "num_vfs": "four"}', "four"),
        (QAT % "sym;dcc", "no device combines"),
        (QAT % "sym;asym;dc;decomp", "no device combines"),
        (QAT % "crypto", "qat_services is 'crypto'"),
        (QAT % "", "qat_services is ''"),
        ('{"address": "*", "qat_services": "dc"}', "without num_vfs"),
        ('{"address": "*", "prebound": 1}', "prebound"),
        ('{"address": "*", "prebound": "maybe"}', "maybe"),
        ('{"address": "*", "allow_no_reset": null}', "allow_no_reset"),
        ('{"address": "*", "allow_no_erase": 1}', "allow_no_erase"),
        ('{"address": "*", "numa_policy": "near"}', "numa_policy"),
        ('{"address": "*", "numa_policy": null}', "numa_policy"),
        ('{"address": "*", "trust_guest_contents": 1}', "trust_guest_contents"),
        ('{"address": "*", "trust_guest_content": true}', "trust_guest_content"),
        ('{"address": "*", "numa_policy": ["legacy"]}', "numa_policy"),
        (None, "None"),
        ({"address": "*"}, "address"),
    ],
)
def test_what_cannot_be_understood_is_named(value, named):
    with pytest.raises(exception.InvalidConfiguration) as caught:
        parse(["[]", value])
    assert named in str(caught.value)


@pytest.mark.parametrize("values", [None, '{"address": "*"}', 1, {"address": "*"}])
def test_the_option_is_a_list(values):
    with pytest.raises(exception.InvalidConfiguration, match="list"):
        parse(values)


# -- Nova's own options ------------------------------------------------------


def test_unknown_keys_are_tags_to_nova():
    assert claimed_by({"VENDOR_ID": "10de"}) == {PF, VF, CARD}
    assert claimed_by({"address": "af:", "physical_network": "net1"}) == {CARD}
    assert claimed_by({"address": {"func": "1", "bus": "af"}}) == {CARD}
    assert claimed_by({"address": ""}) == {PF, VF, CARD}


@pytest.mark.parametrize(
    "bad", ["{", "3", '{"vendor_id": 1}', '{"address": "10000:01:00.0.0"}', None]
)
def test_what_nova_would_refuse_claims_nothing_and_is_warned_of_once(bad, caplog):
    with caplog.at_level(logging.WARNING):
        claims = nova_claims([bad, '{"address": "af:00.0"}'])
    assert len(caplog.messages) == 1
    assert claims.match(HOST[CARD], NETDEVS, HOST) is not None
    assert claims.match(HOST[PF], NETDEVS, HOST) is None


# -- any input ---------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_like = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
addresses = st.text("0af3:.*[", max_size=12) | st.dictionaries(
    st.sampled_from(("domain", "bus", "slot", "function")),
    st.text("0a[(*+?.", max_size=5),
)
nearly_specs = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": st.text("0x8*f ", max_size=6) | scalars,
        "address": addresses | scalars,
        "devname": st.text() | scalars,
        "resource_class": st.text() | scalars,
        "traits": st.text() | scalars,
        "num_vfs": scalars,
        "prebound": scalars,
    },
)


@given(st.lists(st.text() | (nearly_specs | json_like).map(json.dumps)) | json_like)
def test_any_value_is_a_device_spec_or_an_invalid_device_spec(values):
    try:
        spec = parse(values)
    except exception.InvalidConfiguration:
        return
    for found in HOST.values():
        tags = spec.match(found, NETDEVS, HOST)
        claim = nova_claims(values).match(found, NETDEVS, HOST)
        if found.address != VMD:
            assert (tags is None) == (claim is None)


@given(st.lists(json_like | nearly_specs.map(json.dumps)))
def test_nova_s_values_never_raise(values):
    nova_claims(values)


# -- Nova's aliases ----------------------------------------------------------


def alias_policy(*aliases: object) -> NUMAPolicy | None:
    """Return the NUMA policy that Nova's aliases set for the PF."""
    spec = nova_numa_policies([json.dumps(each) for each in aliases])
    tags = spec.match(HOST[PF], NETDEVS, HOST)
    return tags and tags.numa_policy


def alias(policy: object, product: str = "1572") -> dict[str, object]:
    return {
        "name": "nic",
        "vendor_id": "8086",
        "product_id": product,
        "device_type": "type-PF",
        "numa_policy": policy,
    }


def test_the_first_alias_of_a_device_is_heard():
    assert alias_policy() is None
    assert alias_policy(alias("required"), alias("socket")) is NUMAPolicy.REQUIRED
    other = alias("required", product="154c")
    assert alias_policy(other, alias("socket")) is NUMAPolicy.SOCKET


@pytest.mark.parametrize(
    "silent",
    [
        {"name": "any", "resource_class": "CUSTOM_GPU", "numa_policy": "required"},
        {key: value for key, value in alias("x").items() if key != "numa_policy"},
    ],
)
def test_an_alias_that_names_no_device_or_no_policy_says_nothing(silent):
    assert alias_policy(silent) is None
    assert alias_policy(silent, alias("socket")) is NUMAPolicy.SOCKET


@pytest.mark.parametrize("bad", [7, alias("near"), alias("socket") | {"vendor_id": 7}])
def test_an_alias_that_nova_would_refuse_is_ignored(bad, caplog):
    assert alias_policy(bad, alias("socket")) is NUMAPolicy.SOCKET
    assert "[pci] alias" in caplog.text
