# SPDX-License-Identifier: Apache-2.0

"""The release notes are headed by releases."""

from __future__ import annotations

import pickle
import re
from importlib import metadata
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from tests.functional.manual.extensions import extension


@pytest.mark.parametrize(
    ("title", "version", "named"),
    [
        ("0.0.0", "1.0.0.dev1644", "1.0.0 (in development)"),
        ("1.0.0-12", "1.1.0.dev12", "1.1.0 (in development)"),
        ("1.0.0", "1.1.0.dev12", "1.0.0"),
    ],
)
def test_notes_without_a_release_have_the_next_one(
    title: str, version: str, named: str
) -> None:
    doctree = publish_doctree(
        f"Notes\n=====\n\n{title}\n--------\n\nText.\n\nEnd\n---\n"
    )
    extension("unreleased").name_release(doctree, version)
    titles = [each.astext() for each in doctree.findall(nodes.title)]
    assert titles == ["Notes", named, "End"]


def test_each_note_of_the_manual_is_of_a_release(built: Path) -> None:
    page = built / "doctrees/reference/release-notes.doctree"
    doctree = pickle.loads(page.read_bytes())
    releases = [
        each.next_node(nodes.title).astext()
        for each in doctree.findall(nodes.section)
        if each.parent.parent is doctree
    ]
    next_one = metadata.version("os-acc").partition(".dev")[0]
    assert releases
    for each in releases:
        assert re.fullmatch(rf"\d+\.\d+\.\d+|{next_one} \(in development\)", each)
    assert "0.0.0" not in releases
