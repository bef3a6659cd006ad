# SPDX-License-Identifier: Apache-2.0

"""Values as error messages show them."""

import pytest

from os_acc import exception


def nested(levels, width, inner):
    for _ in range(levels):
        inner = [inner] * width
    return inner


@pytest.mark.parametrize(
    "value",
    [
        nested(6, 6, "x" * 80),
        nested(5, 4, "x" * 400),
        nested(100_000, 1, None),
        {n: dict.fromkeys(range(4), "x" * 400) for n in range(4)},
        {"x" * 10**6: "y" * 10**6},
        [10**5000] * 7,
        10**5000,
        "x" * 10**6,
        b"x" * 10**6,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_in_a_line_whatever_it_is(value):
    assert len(exception.show(value)) <= 240


def test_a_value_that_fits_is_shown_as_it_is():
    value = {"resources:FPGA": [1, "two", None], "x": {"y": 0.5}}
    assert exception.show(value) == repr(value)


@pytest.mark.parametrize(
    "word", [10**5000, None, ["name"], "x" * 10**6, ""], ids=range(5)
)
def test_what_is_no_word_is_no_misspelling(word):
    assert exception.nearest(word, ["name", "uuid"]) is None
    assert exception.did_you_mean(word, ["uuid", "name"]).endswith("one of: name, uuid")


def test_of_many_candidates_some_are_listed():
    hint = exception.did_you_mean(None, [f"{number:04}" for number in range(10_000)])
    assert hint.endswith("0022, 0023 and 9976 more")
