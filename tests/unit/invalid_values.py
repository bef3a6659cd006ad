# SPDX-License-Identifier: Apache-2.0

"""Values that every argument rejects, and their form in error messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from os_acc import exception
from tests.expected_errors import Expected, raises

HUGE = 10**5000
#: None of these is a valid mapping, uuid, name or number.
WRONG = [
    pytest.param(None, "None", id="None"),
    pytest.param(True, "True", id="bool"),
    pytest.param(7, "7", id="int"),
    pytest.param(HUGE, "bits", id="huge"),
    pytest.param(1.5, "1.5", id="float"),
    pytest.param(float("nan"), "nan", id="nan"),
    pytest.param("what", "what", id="text"),
    pytest.param("\ud800", "ud800", id="surrogate"),
    pytest.param("x" * 100_000, "xxx", id="long"),
    pytest.param(b"what", "what", id="bytes"),
    pytest.param(["what"], "what", id="list"),
    pytest.param(("what",), "what", id="tuple"),
    pytest.param({"what"}, "what", id="set"),
    pytest.param(object, "object", id="class"),
    pytest.param(type("dict", (), {})(), "dict", id="namesake"),
]
NO_MAPPING = [each for each in WRONG if each.id != "None"]


def is_told(
    call: Callable[[], object], kind: Expected, text: str
) -> exception.OsAccError:
    with raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert len(str(caught.value)) < 1000
    return caught.value
