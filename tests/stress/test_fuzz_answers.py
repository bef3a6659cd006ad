# SPDX-License-Identifier: Apache-2.0

"""Each answer of a service is understood, or raises a typed error.

One answer of each call, or all of them, are replaced: by any JSON, by the right one
with one change somewhere in it, or by a text that is hardly JSON.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from os_acc import exception
from tests.random_values import TEXTS
from tests.service_doubles import CALLS, Answer, Cloud, right
from tests.stress.fuzzing import told

#: The number of random answers to each call.
ANSWERS = 250

# Texts that stand for JSON that Python's own encoder does not write.
_WRITTEN = {
    "@digits": "9" * 5000,
    "@inf": "Infinity",
    "@nan": "NaN",
    "@large": "1e999",
    "@deep": "[" * 50_000 + "]" * 50_000,
    "@deeper": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "@open": "[" * 50_000,
    "@none": "",
    "@long": json.dumps("x" * 200_000),
}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(10**30), 0.5, 1e300),
    *("", [], {}, [[]], [None], {"": None}, "1.39", "abc", *_WRITTEN, *TEXTS),
)
_STATUSES = (200, 201, 204, 300, 301, 400, 401, 403, 404, 409, 410, 500, 503)


class Answers:
    """Random changes of answers, by a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._all = self._random.random() < 0.1
        self._number = self._random.randrange(5)

    def change(self, number: int, path: str, status: int, body: Any) -> Answer:
        if not self._all and number != self._number:
            return right(number, path, status, body)
        draw = self._random.random()
        if draw < 0.2:
            body = self._value(3)
        elif draw < 0.9:
            body = self._near(copy.deepcopy(body))
        if draw > 0.8:
            status = self._random.choice(_STATUSES)
        return status, written(body), self._headers()

    def _headers(self) -> dict[str, str]:
        draw = self._random.random()
        if draw > 0.1:
            return {}
        names = ("Content-Type", "Content-Length", "Location", "Retry-After")
        return {self._random.choice(names): self._random.choice(("", "x", "9" * 5000))}

    def _value(self, depth: int) -> Any:
        draw = self._random.random()
        if draw < 0.6 or not depth:
            return self._random.choice(_VALUES)
        count = self._random.randrange(4)
        values = [self._value(depth - 1) for _ in range(count)]
        if draw < 0.8:
            return values
        return {self._random.choice(TEXTS): value for value in values}

    def _near(self, body: Any) -> Any:
        places = list(_places(body))
        if not places:
            return self._value(2)
        within, key = self._random.choice(places)
        draw = self._random.random()
        if draw < 0.25:
            del within[key]
        elif draw < 0.4 and isinstance(within, dict):
            within[self._random.choice(TEXTS)] = self._value(2)
        elif draw < 0.5:
            within[key] = [within[key]]
        else:
            within[key] = self._value(2)
        return body


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a value that can have another value."""
    keys = body if isinstance(body, dict) else range(len(body))
    for key in keys if isinstance(body, dict | list) else ():
        yield body, key
        if isinstance(body[key], dict | list):
            yield from _places(body[key])


def written(body: Any) -> bytes:
    """Return the value as it is sent."""
    text = json.dumps(body)
    for name, instead in _WRITTEN.items():
        text = text.replace(json.dumps(name), instead)
    return text.encode()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    with made.reached():
        yield made


@pytest.mark.parametrize("name", CALLS)
def test_whatever_a_service_answers_is_understood_or_told(cloud, seed, fuzzed, name):
    cloud.reset()
    CALLS[name](cloud)
    for number in range(ANSWERS):
        cloud.reset()
        cloud.change = Answers(f"{seed} {name} {number}").change
        with told(seed, number, name):
            try:
                CALLS[name](cloud)
            except exception.OsAccError as error:
                text = str(error)
                text.encode()
                assert 0 < len(text) < 2_000
    fuzzed("answers of services", ANSWERS)
