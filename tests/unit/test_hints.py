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


"""Values as error messages show them."""

from __future__ import annotations

import pytest

from os_acc import hints


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
    assert len(hints.shown(value)) <= 240


def test_a_value_that_fits_is_shown_as_it_is():
    value = {"resources:FPGA": [1, "two", None], "x": {"y": 0.5}}
    assert hints.shown(value) == repr(value)


@pytest.mark.parametrize(
    "word", [10**5000, None, ["name"], "x" * 10**6, ""], ids=range(5)
)
def test_what_is_no_word_is_no_misspelling(word):
    assert hints.nearest(word, ["name", "uuid"]) is None
    assert hints.did_you_mean(word, ["uuid", "name"]).endswith("one of: name, uuid")


def test_of_many_candidates_some_are_listed():
    told = hints.did_you_mean(None, [f"{number:04}" for number in range(10_000)])
    assert told.endswith("0022, 0023 and 9976 more")
