# SPDX-License-Identifier: Apache-2.0

"""Tables fit the terminal, and never break an address, a UUID or a name."""

import argparse
import io
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Sequence
from typing import Any

import pytest

from os_acc.cmd.tables import FoldedTable

ADDRESS, UUID = "0000:17:00.0", "7e6f2a52-4d0c-4cda-a1a3-000000000001"
REASON = "used by the host: block device nvme0n1p1 is mounted at / and at /srv"
NAMES = ("Address", "NUMA Node", "Consumer", "Reason")
ROWS = [(ADDRESS, 1, UUID, REASON), ("0000:17:00.1", 0, "-", "-")]


def shown(rows: Sequence[Sequence[Any]] = ROWS, width: int = 0) -> list[str]:
    out = io.StringIO()
    options = argparse.Namespace(max_width=width, fit_width=True, print_empty=False)
    FoldedTable().emit_list(NAMES, rows, out, options)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [0, 100, 95])
def test_texts_are_folded_until_the_table_fits(width):
    lines = shown(width=width)
    assert 0 <= (width or 100) - len(lines[0]) < len("block")
    cells = [cell.strip() for line in lines for cell in line.split("|")]
    assert {ADDRESS, UUID} <= set(cells)
    assert REASON in " ".join(
        line.split("|")[-2].strip() for line in lines if "|" in line
    )


def test_a_table_that_cannot_fit_breaks_no_word():
    text = "\n".join(shown(width=20))
    for word in (ADDRESS, UUID, *REASON.split(), *NAMES):
        assert f" {word} " in text


def test_a_wide_terminal_folds_no_value():
    assert f"| {REASON} |" in shown(width=200)[3]


def test_a_number_stands_at_the_right():
    assert any("|         1 |" in line for line in shown())


def test_one_object_is_folded_as_well():
    out = io.StringIO()
    options = argparse.Namespace(max_width=60, fit_width=False, print_empty=False)
    FoldedTable().emit_one(NAMES, ROWS[0], out, options)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert any(f"| {UUID} " in line for line in lines)


_SHOWN = f"""
import sys
from argparse import Namespace
from os_acc.cmd.tables import FoldedTable
options = Namespace(max_width=0, fit_width=False, print_empty=False)
FoldedTable().emit_list({NAMES!r}, {ROWS!r}, sys.stdout, options)
"""


@pytest.mark.parametrize("columns", [60, 120])
def test_without_a_limit_the_terminal_counts(columns):
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    named = {each: value for each, value in os.environ.items() if each != "COLUMNS"}
    subprocess.run([sys.executable, "-c", _SHOWN], stdout=slave, env=named, check=True)
    os.close(slave)
    lines = os.read(master, 1 << 16).decode().splitlines()
    os.close(master)
    text = "".join(lines)
    assert all(f" {each} " in text for each in (ADDRESS, UUID, *NAMES))
    # The least width of this table exceeds 60 columns.
    assert (len(lines[0]) <= columns) is (columns == 120)
    assert len(lines[0]) > 60
