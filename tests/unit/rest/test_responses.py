# SPDX-License-Identifier: Apache-2.0

"""Values of a wrong type in responses of services are reported."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.rest import responses
from os_acc.rest.responses import JsonValue, ResponseMalformed
from tests.expected_errors import raises
from tests.service_doubles import CALLS, IMAGE, Answer, Cloud, right
from tests.unit.placement.placement_double import NODE
from tests.unit.placement.publishing import ONE, TWO

READERS: tuple[Callable[[JsonValue], object], ...] = (
    *(
        JsonValue.text,
        JsonValue.uuid,
        JsonValue.integer,
        JsonValue.boolean,
        JsonValue.number,
    ),
    *(lambda value: dict(value.items()), list, lambda value: value["x"].text()),
    lambda value: value.optional(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    made.reset()
    with made.reached():
        yield made


def answered(cloud: Cloud, path: str, body: Any) -> None:
    """Set the response of the cloud to requests for paths with this end."""

    def change(number: int, asked: str, status: int, is_right: Any) -> Answer:
        found = body if asked.partition("?")[0].endswith(path) else is_right
        return right(number, asked, status, found)

    cloud.change = change


@given(JSON)
def test_a_value_is_read_as_its_type_or_malformed(found):
    for read in READERS:
        wording = "some.path"
        try:
            read(JsonValue(found, "some.path"))
        except ResponseMalformed as error:
            wording = str(error)
        assert "some.path" in wording
        assert len(wording) < 1_000


@pytest.mark.parametrize(
    ("read", "found", "wording"),
    [
        (JsonValue.integer, "abc", "'a.b' is 'abc', not an integer"),
        (JsonValue.integer, True, "'a.b' is True, not an integer"),
        (JsonValue.integer, 1.0, "'a.b' is 1.0, not an integer"),
        (JsonValue.integer, -1, "'a.b' is -1, not an integer from 0"),
        (JsonValue.integer, 2**63, "not an integer from 0 to 2**63 - 1"),
        (JsonValue.integer, 10**5000, "an integer of 16610 bits, not an integer"),
        (JsonValue.number, float("nan"), "'a.b' is nan, not a finite number"),
        (JsonValue.number, float("inf"), "'a.b' is inf, not a finite number"),
        (JsonValue.number, 10**400, "not a finite number"),
        (JsonValue.number, False, "'a.b' is False, not a finite number"),
        (JsonValue.text, None, "'a.b' is None, not a text"),
        (JsonValue.text, "\ud800", r"'a.b' is '\ud800', not a text"),
        (JsonValue.uuid, "../../traits", "'a.b' is '../../traits', not a UUID"),
        (JsonValue.boolean, 1, "'a.b' is 1, not a boolean"),
        (list, {}, "'a.b' is {}, not a list"),
        (lambda value: list(value.items()), [], "'a.b' is [], not an object"),
        (lambda value: list(value.items()), {"\ud800": 1}, r"has a field '\ud800'"),
        (lambda value: value["c"], {}, "'a.b' has no field 'c'"),
        (lambda value: value["c"].text(), {"c": 1}, "'a.b.c' is 1, not a text"),
        (lambda value: next(iter(value)).text(), [1], "'a.b[0]' is 1, not a text"),
    ],
    # By default, pytest formats integers of any size.
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_another_type_is_told_with_its_path(read, found, wording):
    with pytest.raises(ResponseMalformed) as caught:
        read(JsonValue(found, "a.b"))
    assert wording in str(caught.value)


def test_a_path_is_as_short_as_a_message_needs_it():
    value = JsonValue({"x" * 10**6: {"y" * 10**6: 1}})
    (((_, outer),)) = value.items()
    (((_, inner),)) = outer.items()
    with pytest.raises(ResponseMalformed) as caught:
        inner.text()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("body", "wording"),
    [
        ({"error": {"message": "one\n two"}}, "one two (HTTP 409)"),
        ({"errors": [{"detail": "one"}, {"detail": "two"}]}, "one (HTTP 409)"),
        ({"message": "one<br /><br />\n two", "code": 9}, "one two (HTTP 409)"),
        ({"errors": []}, "HTTP 409"),
        ({"errors": [["detail"]]}, "HTTP 409"),
        ({"error": {"message": ["x"]}}, "HTTP 409"),
        ([1], "HTTP 409"),
        ("text", "HTTP 409"),
    ],
)
def test_a_refusal_says_what_the_service_says(body, wording):
    answer = requests.Response()
    answer.status_code, answer.raw = 409, io.BytesIO(json.dumps(body).encode())
    answer.encoding = "utf-8"
    assert responses.refusal(answer) == wording


# -- malformed responses of services ----------------------------------------------


def provider(**fields: object) -> dict[str, object]:
    usual = {"uuid": NODE, "name": "node1", "generation": 1}
    return {**usual, "parent_provider_uuid": None, **fields}


RECORD = {"total": 4, "reserved": 0}


@pytest.mark.parametrize(
    ("call", "path", "body", "wording"),
    [
        (
            *("tree", "/resource_providers"),
            {"resource_providers": [provider(uuid="../x")]},
            "'../x', not a UUID",
        ),
        (
            *("tree", "/resource_providers"),
            {"resource_providers": [provider(parent_provider_uuid=NODE)]},
            f"'resource_providers' has a cycle: provider {NODE} is below itself",
        ),
        (
            *("tree", "/resource_providers"),
            {
                "resource_providers": [
                    provider(uuid=ONE.uuid, parent_provider_uuid=TWO.uuid),
                    provider(uuid=TWO.uuid, parent_provider_uuid=ONE.uuid),
                ]
            },
            "below itself",
        ),
        (
            *("inventories", "/inventories"),
            {
                "resource_provider_generation": 1,
                "inventories": {"CUSTOM_X": {**RECORD, "total": "abc"}},
            },
            "'inventories.CUSTOM_X.total' is 'abc', not an integer",
        ),
        (
            *("inventories", "/inventories"),
            {
                "resource_provider_generation": 1,
                "inventories": {"A": {**RECORD, "allocation_ratio": float("nan")}},
            },
            "'inventories.A.allocation_ratio' is nan",
        ),
        (
            *("traits", "/traits"),
            {"resource_provider_generation": 1, "traits": ["\ud800"]},
            "'traits[0]'",
        ),
        ("allocated", "/allocations", {"allocations": []}, "not an object"),
        ("aggregates", "/aggregates", {"aggregates": [[]]}, "'aggregates[0]' is []"),
        (
            *("version", "/placement/", {"versions": [{"max_version": "1.x"}]}),
            "'versions[0].max_version' is '1.x', not a microversion",
        ),
        (
            *("version", "/placement/"),
            {"versions": [{"max_version": "1." + "9" * 5000}]},
            "not a microversion",
        ),
        ("image", f"/{IMAGE}", [], "the answer is [], not an object"),
        ("images", "/images", {"images": [{"id": "x"}]}, "'images[0].id' is 'x'"),
        ("profiles", "/device_profiles", {"device_profiles": 7}, "is 7, not a list"),
        ("flavor", "/flavors", {"flavors": [{"id": 7}]}, "'flavors[0].id' is 7"),
        (
            *("flavor", "/os-extra_specs", {"extra_specs": {"a": 1}}),
            "'extra_specs.a' is 1, not a text",
        ),
        ("profiles", "/auth/tokens", {"token": []}, "not from Cyborg"),
    ],
)
def test_a_malformed_answer_is_told(cloud, call, path, body, wording):
    answered(cloud, path, body)
    with pytest.raises(exception.InvalidConfiguration) as caught:
        CALLS[call](cloud)
    assert wording in caught.value.message


def test_a_number_of_thousands_of_digits_is_a_value_of_another_type():
    digits = b"1" * 5000
    answer = requests.Response()
    body = b'{"a": [7, %s, -%s], "b": %s}' % (digits, digits, 900 * b"1")
    answer.raw = io.BytesIO(body)
    value = responses.document(answer)
    first, *rest = value["a"]
    assert first.integer() == 7
    for each, signs in zip(rest, (0, 1), strict=True):
        for read in (JsonValue.integer, JsonValue.number, JsonValue.text):
            with pytest.raises(ResponseMalformed) as caught:
                read(each)
            number = f"<a number of {5000 + signs} characters>"
            assert f"{each.path!r} is {number}, not" in str(caught.value)
    with pytest.raises(ResponseMalformed, match="'b' is an integer of 2987 bits, not"):
        value["b"].integer()


def test_another_image_than_was_asked_for_is_refused(cloud):
    answered(cloud, f"/{IMAGE}", {"id": NODE})
    with pytest.raises(exception.InvalidConfiguration, match="of another image"):
        CALLS["image"](cloud)


def test_pages_that_repeat_have_an_end(cloud):
    """Two flavors alternate at the end of a page."""

    def change(number: int, path: str, status: int, body: Any) -> Answer:
        if "/flavors?" in path:
            body = {"flavors": [{"id": str(number % 2), "name": "x"}]}
        return right(number, path, status, body)

    cloud.change = change
    with raises(exception.ObjectKind.FLAVOR):
        CALLS["flavor"](cloud)


def test_one_profile_that_is_none_hides_no_other(cloud):
    listed = [7, None, [], {"name": []}, {"name": "a", "groups": {}}]
    good = {"name": "other", "groups": [{"resources:FPGA": "1"}]}
    answered(cloud, "/device_profiles", {"device_profiles": [*listed, good]})
    assert CALLS["profile"](cloud).name == "other"
    kinds = [type(each).__name__ for _where, each in CALLS["profiles"](cloud)]
    assert kinds == ["InvalidProfile"] * 5 + ["DeviceProfile"]


@pytest.mark.parametrize(
    "wrong",
    [
        '{"name": %s}',
        '{"name": "a", "groups": [{"resources:FPGA": %s}]}',
        '{"name": "a", "groups": [{"resources:FPGA": "1"}], "description": %s}',
        "%s",
    ],
)
@pytest.mark.parametrize("number", [5000 * "1", "1e999"])
def test_one_number_that_cannot_be_used_hides_no_other(cloud, wrong, number):
    good = '{"name": "other", "groups": [{"resources:FPGA": "1"}]}'
    body = f'{{"device_profiles": [{wrong % number}, {good}]}}'.encode()

    def change(asked: int, path: str, status: int, is_right: Any) -> Answer:
        status, data, headers = right(asked, path, status, is_right)
        return status, body if "/device_profiles" in path else data, headers

    cloud.change = change
    assert CALLS["profile"](cloud).name == "other"
    kinds = [type(each).__name__ for _where, each in CALLS["profiles"](cloud)]
    assert kinds == ["InvalidProfile", "DeviceProfile"]
