# SPDX-License-Identifier: Apache-2.0

"""The role ``:figure:`lane/name```: what the last run of a lane has counted."""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx.application import Sphinx

FIGURES = Path(__file__).resolve().parents[1] / "source" / "reference" / "figures.json"


def figure(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Inliner,
    options: object = None,
    content: object = None,
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """The number, with commas; a commit as it is."""
    lane, _, what = text.partition("/")
    known = json.loads(FIGURES.read_text())
    try:
        number = known[lane][what]
    except KeyError:
        error = inliner.reporter.error(f"no figure {text!r}", line=lineno)
        return [inliner.problematic(rawtext, rawtext, error)], [error]
    return [nodes.Text(number if isinstance(number, str) else f"{number:,}")], []


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("figure", figure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
