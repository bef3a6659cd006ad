# SPDX-License-Identifier: Apache-2.0

"""Instances and their uuids."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.exception import InvalidInput
from os_acc.objects.instance import InstanceInfo, canonical_uuid, consumer_uuid

ONE = "0a0b0c0d-1111-4111-8111-111111111111"


@given(st.uuids())
def test_each_usual_form_of_a_uuid_has_one_canonical_form(value: uuid.UUID):
    for form in (str(value), str(value).upper(), value.hex, value.hex.upper()):
        assert canonical_uuid(form) == consumer_uuid(form) == str(value)


@given(st.text() | st.integers() | st.none() | st.binary())
def test_what_is_no_uuid_is_none(value):
    found = canonical_uuid(value)
    assert found is None or uuid.UUID(found).hex == value.replace("-", "").lower()


@pytest.mark.parametrize(
    "value",
    [f"{{{ONE[1:-1]}}}", f"urn:uuid:{ONE}", f"{ONE} ", ONE[:-1]],
)
def test_other_forms_are_not_guessed_at(value):
    with pytest.raises(InvalidInput) as caught:
        consumer_uuid(value)
    assert value in str(caught.value)


def test_an_instance_needs_only_a_uuid():
    assert InstanceInfo.from_api({"uuid": ONE.upper()}) == InstanceInfo(ONE)


def test_what_is_not_ours_is_ignored():
    info = InstanceInfo.from_api({"uuid": ONE, "name": None, "host": object()})
    assert info == InstanceInfo(ONE, name="")
