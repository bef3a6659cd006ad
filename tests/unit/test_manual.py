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


"""What the manual says of this repository is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted((CHECKOUT / "doc" / "source").rglob("*.rst"))
_TEST = re.compile(r"``(tests/[^`:\s]*?)(?:::(\w+))?``")


def named(page: Path) -> list[tuple[str, str]]:
    """The files of tests, and the tests in them, that a page names."""
    return _TEST.findall(page.read_text(encoding="utf-8"))


def test_there_are_pages_that_name_tests():
    assert sum(bool(named(page)) for page in PAGES) > 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_test_that_the_manual_names_is_there(page):
    for place, test in named(page):
        files = [each for each in CHECKOUT.glob(place) if each.exists()]
        assert files, f"{page.name} names {place}"
        if test:
            texts = [each.read_text(encoding="utf-8") for each in files]
            pattern = re.compile(rf"^\s*(def|class) {test}\b|^{test} =", re.MULTILINE)
            assert any(map(pattern.search, texts)), f"{page.name} names {place}::{test}"
