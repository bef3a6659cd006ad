# SPDX-License-Identifier: Apache-2.0

"""Instances and their uuids."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.exception import InvalidInput
from os_acc.objects.instance import InstanceInfo, canonical_uuid, consumer_uuid

ONE = "0a0b0c0d-1111-4111-8111-111111111111"


@given(st.uuids())
def test_each_usual_form_of_a_uuid_has_one_canonical_form(value):
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


IMAGE = "5F7DDB2C-2BBE-4E2E-9D0F-3A5E3E0F5A11"


@pytest.mark.parametrize("key", ["image_id", "image_ref", "image_uuid"])
def test_an_image_is_known_by_each_of_its_names(key):
    info = InstanceInfo.from_api({"uuid": ONE, key: IMAGE})
    assert info == InstanceInfo(ONE, image_id=IMAGE)


@pytest.mark.parametrize("key", ["project_id", "tenant_id"])
def test_a_project_is_known_by_each_of_its_names(key):
    assert InstanceInfo.from_api({"uuid": ONE, key: "p"}).project_id == "p"


@pytest.mark.parametrize("other", [IMAGE, IMAGE.lower(), "", None])
def test_two_names_may_have_one_value(other):
    info = {"uuid": ONE, "image_id": other, "image_ref": IMAGE, "image_uuid": other}
    found = InstanceInfo.from_api(info).image_id
    assert canonical_uuid(found) == canonical_uuid(IMAGE)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("image_id", "image_ref"),
        ("image_ref", "image_uuid"),
        ("project_id", "tenant_id"),
    ],
)
def test_two_names_with_two_values_are_refused(first, second):
    with pytest.raises(InvalidInput) as caught:
        InstanceInfo.from_api({"uuid": ONE, first: IMAGE, second: ONE})
    for part in (first, second, IMAGE, ONE):
        assert part in str(caught.value)


def test_the_title_of_an_instance_has_its_name_and_its_uuid():
    assert InstanceInfo(ONE).title == ONE
    assert InstanceInfo(ONE, name="web 1").title == f"{ONE} ('web 1')"
    assert "\n" not in InstanceInfo(ONE, name="a\nb").title
