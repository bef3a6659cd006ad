# SPDX-License-Identifier: Apache-2.0

"""Long names in literals may continue on the next line, between two of their parts.

Sphinx keeps each word of a literal on one line: a longer one than a telephone has room
for would widen the page.
"""

from __future__ import annotations

import html
import re

from sphinx.application import Sphinx

#: Characters of a literal that fit on a line of 400 pixels.
LONGEST = 30
_WORD = re.compile(r'<span class="pre">([^<]+)</span>')
# Not within an entity, such as &amp;.
_PARTS = re.compile(r"([/_:=,.?]+)(?=[^/_:=,.?])")


def divided(body: str) -> str:
    """Return the HTML of a page with a <wbr> between the parts of long names."""

    def marked(word: re.Match[str]) -> str:
        if len(html.unescape(word[1])) <= LONGEST:
            return word[0]
        parts = _PARTS.sub(r"\1<wbr>", word[1])
        return f'<span class="pre long">{parts}</span>'

    return _WORD.sub(marked, body)


def _on_page(
    app: Sphinx, page: str, template: str, context: dict[str, str], tree: object
) -> None:
    if "body" in context:
        context["body"] = divided(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _on_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
