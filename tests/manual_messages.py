# SPDX-License-Identifier: Apache-2.0

"""The messages that the manual quotes, and those of a program's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PAGE: Final = (
    Path(__file__).resolve().parents[1] / "doc/source/admin/nova-operations.rst"
)
#: A part of a message that varies, in any notation.
_VARIES: Final = "\0"
_FORMAT: Final = re.compile(r"%\(\w+\)[sd]|%[sd]")
_PLACEHOLDER: Final = re.compile(r"<[^<>]+>")
_FIRST_CELL: Final = re.compile(r"^   \* - (.+(?:\n       .+)*)", re.MULTILINE)
_LITERAL: Final = re.compile(r"``(.+?)``")


def quoted(title: str) -> list[str]:
    """Return the messages in the first column of a section's table."""
    text = PAGE.read_text(encoding="utf-8")
    _, found, section = text.partition(f"\n{title}\n{'=' * len(title)}\n")
    assert found, f"{PAGE.name} has no section {title!r}"
    section = re.split(r"\n.+\n={4,}\n", section)[0]
    return [
        message
        for cell in _FIRST_CELL.findall(section)
        for message in _LITERAL.findall(" ".join(cell.split()))
    ]


def in_source(files: Iterable[Path]) -> set[str]:
    """Return the texts in the source of a program, without the parts that vary."""
    return {
        text
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for text in _texts(node)
    }


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _FORMAT.sub(_VARIES, node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            _FORMAT.sub(_VARIES, str(part.value))
            if isinstance(part, ast.Constant)
            else _VARIES
            for part in node.values
        )


def missing(messages: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Return the messages of the manual that no text of a source contains."""
    known = list(texts)
    return [
        message
        for message in messages
        if not any(_PLACEHOLDER.sub(_VARIES, message) in text for text in known)
    ]
