# SPDX-License-Identifier: Apache-2.0

"""Suggestions for misspelt options and choices in usage errors.

argparse of Python 3.11 has none.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NoReturn

from os_acc import exception

_CHOICE = re.compile(r"argument (?P<names>\S+): invalid choice: '(?P<word>[^']*)'")


def add_suggestions(
    parser: argparse.ArgumentParser,
    application: argparse.ArgumentParser,
    words: Callable[[], Sequence[str]],
) -> None:
    """Let the errors of a parser suggest what was probably meant.

    :param application: parser of the options that every command has.
    :param words: returns the arguments of the command.
    """
    fail = parser.error

    def error(message: str) -> NoReturn:
        found = _misspelt_choice(message, parser)
        # An option that is misspelt is often missed as well, and reported as missing.
        known = {*_options(parser), *_options(application)}
        found = found or next(_misspelt_options(words(), known), "")
        fail(f"{message}; {found}" if found else message)

    parser.error = error  # type: ignore[method-assign]


def _misspelt_options(words: Sequence[str], known: Collection[str]) -> Iterator[str]:
    for word in words:
        name = word.partition("=")[0]
        # argparse accepts abbreviations.
        if name[:2] != "--" or any(each.startswith(name) for each in known):
            continue
        near = exception.nearest(name, known)
        if near:
            yield f"did you mean {near} instead of {name}?"


def _misspelt_choice(message: str, parser: argparse.ArgumentParser) -> str:
    match = _CHOICE.match(message)
    if match is None:
        return ""
    names = set(match["names"].split("/"))
    for action in parser._actions:
        if action.choices and names & {*action.option_strings, action.dest}:
            near = exception.nearest(match["word"], map(str, action.choices))
            return f"did you mean {near}?" if near else ""
    return ""


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
