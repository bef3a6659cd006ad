# SPDX-License-Identifier: Apache-2.0

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
