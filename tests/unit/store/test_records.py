# SPDX-License-Identifier: Apache-2.0

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc.objects.bitstream import BitstreamRequest
from os_acc.objects.device import AttachHandle
from os_acc.objects.lease import (
    Action,
    ErasureRecord,
    Guest,
    Lease,
    LeaseState,
    Owner,
    PriorBinding,
)
from os_acc.objects.numa import Affinity, NUMAPolicy, PolicySources
from os_acc.objects.pci import PciIdentity
from os_acc.objects.region import Programming, Region
from os_acc.objects.request_group import AttachTarget, GroupAllocation
from os_acc.store import codec, records
from os_acc.store.schema import Damaged
from tests.unit.pci_addresses import ADDRESSES

_16_BITS = st.integers(0, 0xFFFF)
IDENTITIES = st.builds(
    PciIdentity,
    _16_BITS,
    _16_BITS,
    _16_BITS,
    _16_BITS,
    st.integers(0, 0xFF),
    st.text(max_size=64),
)
PRIORS = st.builds(
    PriorBinding,
    address=ADDRESSES,
    identity=IDENTITIES,
    driver=st.none() | st.text(),
    driver_override=st.none() | st.text(),
)
UUIDS = st.uuids().map(str)


@st.composite
def regions(draw):
    """Draw a region whose functions are at its PCI functions."""
    places = draw(st.lists(ADDRESSES, max_size=2, unique=True))
    return Region(
        card=draw(ADDRESSES),
        identity=draw(IDENTITIES),
        number=draw(st.integers(0, 7)),
        interface_id=draw(st.none() | UUIDS),
        function_id=draw(st.none() | UUIDS),
        pci_functions=tuple(places),
        functions=tuple((each, draw(UUIDS)) for each in places),
        is_authenticated=draw(st.booleans()),
    )


PROGRAMMINGS = st.builds(
    Programming,
    region=regions(),
    function_id=st.none() | st.text(),
    image_id=st.text(),
    hash_algo=st.text(),
    hash_value=st.text(),
    is_exact=st.booleans(),
    boot_id=st.text(),
)
LEASES = st.builds(
    Lease,
    uuid=st.uuids().map(str),
    consumer=st.uuids().map(str),
    owner=st.sampled_from(Owner),
    state=st.sampled_from(LeaseState),
    wanted=st.builds(
        GroupAllocation,
        *[st.text(), st.uuids().map(str), st.text(), st.integers(1, 9)],
        bitstream_request=st.none() | st.builds(BitstreamRequest, *[st.text()] * 4),
        attach_target=st.sampled_from(AttachTarget),
        required=st.lists(st.text(), max_size=2).map(tuple),
        numa_policy=st.none() | st.sampled_from(NUMAPolicy),
    ),
    handle=st.builds(
        AttachHandle,
        *[ADDRESSES, st.lists(ADDRESSES, max_size=2).map(tuple)],
        *[st.integers(0, 2**31), st.none() | st.integers(0, 1023)],
        driver=st.sampled_from(["vfio-pci", "mlx5_vfio_pci", "nvidia"]),
        physical_network=st.none() | st.text(),
        vgpu_type=st.integers(0, 2**31),
    ),
    prior=st.lists(PRIORS, max_size=3).map(tuple),
    request=st.text(),
    request_size=st.integers(0, 64),
    boot_id=st.uuids().map(str),
    plugin=st.text(),
    guest=st.builds(
        Guest, st.text(), st.text(), st.text(), st.lists(st.integers(0, 9)).map(tuple)
    ),
    epoch=st.integers(0, 2**62),
    reason=st.text(st.characters()),
    programming=st.none() | PROGRAMMINGS,
    affinity=st.none() | st.sampled_from(Affinity),
    policies=st.builds(PolicySources, *[st.none() | st.sampled_from(NUMAPolicy)] * 4),
    physfns=st.lists(ADDRESSES, max_size=2).map(tuple),
    profile=st.text(),
    arq=st.text(),
    is_spare=st.booleans(),
    created_at=st.integers(0, 2**62),
    outstanding=st.lists(st.sampled_from(Action), unique=True).map(tuple),
    erasure=st.none() | st.builds(ErasureRecord, st.text(), st.text(), st.floats(0, 1)),
    never_held=st.booleans(),
)


# Generating the input exceeds the limit of the health check on a busy machine.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(LEASES)
def test_every_field_comes_back_as_it_was(lease):
    assert records.decode(codec.encode(lease)) == lease


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(LEASES, LEASES)
def test_equal_payloads_are_equal_leases(one, other):
    assert (codec.encode(one) == codec.encode(other)) == (one == other)


def test_no_field_is_left_out(make_lease):
    payload = json.loads(codec.encode(make_lease(1)))
    assert payload.keys() >= {field.name for field in dataclasses.fields(Lease)}
    (prior,) = payload["prior"]
    assert prior.keys() == {field.name for field in dataclasses.fields(PriorBinding)}
    assert len(prior["identity"]) == len(dataclasses.fields(PciIdentity))


@pytest.mark.parametrize(
    "change",
    [
        {"state": "lost"},
        {"owner": None},
        {"handle": {"address": "nowhere"}},
        {"handle": 3},
        {"prior": 7},
        {"prior": [{"address": "0000:3b:00.0"}]},
    ],
)
def test_what_is_no_lease_is_unreadable(make_lease, change):
    payload = json.dumps(json.loads(codec.encode(make_lease(1))) | change)
    with pytest.raises(Damaged):
        records.decode(payload)


@given(st.text())
def test_text_that_is_no_record_is_unreadable(text):
    with pytest.raises(Damaged):
        records.decode(text)
