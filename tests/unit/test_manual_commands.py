# SPDX-License-Identifier: Apache-2.0

"""Each command, option and check that the manual names exists."""

import argparse
import functools
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.cmd import check
from os_acc.cmd.main import OsAcc

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = CHECKOUT / "doc/source/user/command.rst"
DOCUMENTS = [*sorted(CHECKOUT.glob("doc/source/**/*.rst")), *CHECKOUT.glob("*.rst")]
NAMES = {name for name, _ in (*check._BEFORE, *check._CHECKS)}
_LITERAL = re.compile(r"``(?:[$#] )?(os-acc\s[^`]+)``")
_PROMPT = re.compile(r"^ *[$#] (.*\bos-acc .*)$", re.MULTILINE)
#: The end of a command in a line of a shell, and words of a synopsis.
_END = re.compile(r"[|;>]|&&| -$")
_SYNOPSIS = re.compile(r"[\[\]]|\.\.\.")


def commands(text: str) -> Iterator[str]:
    """Yield each line of the command that a page names or shows."""
    yield from (" ".join(each.split()) for each in _LITERAL.findall(text))
    for line in _PROMPT.findall(text.replace("\\\n", " ")):
        for part in _END.split(line):
            if found := re.search(r"(?:^|[ (]|/bin/)(os-acc .*)", part):
                yield found[1]


@functools.cache
def app() -> OsAcc:
    return OsAcc(stdout=io.StringIO(), stderr=io.StringIO())


@functools.cache
def parser_of(name: str) -> argparse.ArgumentParser:
    factory, _, _ = app().command_manager.find_command(name.split())
    return factory(app(), None).get_parser(f"os-acc {name}")


def fault(line: str) -> str:
    """Return what does not exist in a line of the command; '' for no fault."""
    words = shlex.split(_SYNOPSIS.sub("", line), comments=True)[1:]
    options, names = app().parser._option_string_actions, app().command_manager.commands
    while words and words[0].startswith("-"):
        option = options.get(words[0].partition("=")[0])
        if option is None:
            return words[0]
        takes = option.nargs != 0 and "=" not in words[0]
        words = words[2 if takes else 1 :]
    name = next(
        (each for each in names if each.split() == words[: each.count(" ") + 1]), ""
    )
    if not name:
        # A noun alone, such as device, stands for its commands.
        return "" if any(each.split()[:1] == words for each in names) else line
    known = options | parser_of(name)._option_string_actions
    rest = [each.partition("=")[0] for each in words[len(name.split()) :]]
    return " ".join(each for each in rest if each[:1] == "-" and each not in known)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_each_command_of_a_page_exists_with_its_options(page):
    found = {line: fault(line) for line in commands(page.read_text(encoding="utf-8"))}
    assert not {line: each for line, each in found.items() if each}


@pytest.mark.parametrize(
    "line",
    [
        "os-acc devices list",
        "os-acc device remove 0000:17:00.0",
        "os-acc --configuration x device list",
        "os-acc device list --status free",
        "os-acc conformance --device ADDRESS [--plugins NAME]",
    ],
)
def test_a_command_that_does_not_exist_is_found(line):
    text = f"Then\n\n   $ {line} | less\n\nand ``{line}``.\n"
    (first, second) = commands(text)
    assert fault(first)
    assert fault(second)


def sections() -> Iterator[tuple[str, str]]:
    """Yield the commands with a section of their own, and its text."""
    parts = re.split(r"^(.+)\n=+\n", COMMAND.read_text(), flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def test_each_command_has_a_section():
    titles = tuple(f"{title} " for title, _ in sections())
    names = app().command_manager.commands
    without = {name for name in names if not f"{name} ".startswith(titles)}
    assert without == {"complete", "demo", "help"}


def test_each_command_has_the_options_of_its_section():
    names = app().command_manager.commands
    described = 0
    for title, text in sections():
        own = [name for name in names if f"{name} ".startswith(f"{title} ")]
        for option in re.findall(r"^``(--[a-z-]+)", text, re.MULTILINE):
            described += 1
            assert any(
                option in parser_of(name)._option_string_actions for name in own
            ), f"{title} {option}"
    assert described > 20


def test_the_table_has_the_rows_of_the_check():
    text = dict(sections())["check"]
    assert set(re.findall(r"^``([^`]+)`` +\S", text, re.MULTILINE)) == NAMES


_NAMED = re.compile(
    r"``os-acc check``[^.;()`]*[:(] ?((?:``[^`]+``(?:, | and )?)+)(?! \w)"
)
_TABLE = re.compile(
    r"^(?:Error +Check|Check +Possible.*)\n=[ =]+\n((?:.*\n)*?)=[ =]+$", re.MULTILINE
)


def test_each_check_that_a_sentence_names_exists():
    texts = (" ".join(page.read_text("utf-8").split()) for page in DOCUMENTS)
    found = [
        each
        for text in texts
        for names in _NAMED.findall(text)
        for each in re.findall(r"``([^`]+)``", names)
    ]
    assert len(found) > 5
    assert set(found) <= NAMES


def test_each_check_that_a_table_names_exists():
    text = (CHECKOUT / "doc/source/admin/operations.rst").read_text(encoding="utf-8")
    images, errors = _TABLE.findall(text)
    checks = re.sub(r"^\S+ +", "", errors, flags=re.MULTILINE)
    found = {*re.findall(r"``([^`]+)``", checks)}
    found |= {*re.findall(r"^``([^`]+)``", images, re.MULTILINE)}
    assert len(found) > 10
    assert found <= NAMES
