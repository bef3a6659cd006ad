# SPDX-License-Identifier: Apache-2.0

"""The heading of notes that are in no release yet: the release that they are for.

reno has a number of commits there, or 0.0.0 before the first tag.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

PAGE = "reference/release-notes"
_WITHOUT_TAG = re.compile(r"0\.0\.0|.+-\d+")


def name_release(doctree: nodes.document, version: str) -> None:
    """Replace the titles of sections without a release.

    :param version: that of the build: ``1.0.0.dev12`` precedes the release 1.0.0.
    """
    release = version.partition(".dev")[0]
    for title in doctree.findall(nodes.title):
        if _WITHOUT_TAG.fullmatch(title.astext()):
            title[:] = [nodes.Text(f"{release} (in development)")]


def _on_page(app: Sphinx, doctree: nodes.document) -> None:
    if app.env.docname == PAGE:
        name_release(doctree, app.config.release)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _on_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
