# SPDX-License-Identifier: Apache-2.0

"""The blocks of a page that its reader follows: commands, and files to write."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(
    r"^\.\. code-block:: (?P<language>\w+)\n(?:   :caption: (?P<caption>\S+)\n)?\n"
    r"(?P<body>(?:(?:   .*)?\n)+)"
    r"(?:\.\. literalinclude:: (?P<output>\S+)\n)?",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class PageCommand:
    """A command for a shell, and the output that the page shows; '': none."""

    text: str
    output: str


@dataclasses.dataclass(frozen=True, slots=True)
class PageFile:
    """A file that the reader writes, by its path in the current directory."""

    path: str
    text: str


def blocks(page: Path) -> Iterator[list[PageCommand] | PageFile]:
    """Yield the blocks of a page in order.

    :raises ValueError: a block is neither commands nor a file with a caption.
    """
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        body = textwrap.dedent(match["body"]).strip("\n") + "\n"
        if match["language"] == "console":
            shown = match["output"]
            output = (page.parent / shown).read_text(encoding="utf-8") if shown else ""
            yield _commands(body, output)
        elif match["caption"]:
            yield PageFile(match["caption"], body)
        else:
            raise ValueError(f"a block without a caption: {body}")


def _commands(body: str, output: str) -> list[PageCommand]:
    """Return the commands of a block.

    :param output: that of the last command, which the page includes from a file.
    """
    found: list[PageCommand] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(PageCommand(line.removeprefix("$ "), ""))
        else:
            found[-1] = dataclasses.replace(
                found[-1], output=f"{found[-1].output}{line}\n"
            )
    if output:
        found[-1] = dataclasses.replace(found[-1], output=output)
    return found
