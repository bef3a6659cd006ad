# SPDX-License-Identifier: Apache-2.0

"""The tests that the manual names exist in this repository."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests import manual_messages

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted((CHECKOUT / "doc" / "source").rglob("*.rst"))
DOCUMENTS = [*PAGES, *sorted(CHECKOUT.glob("*.rst"))]
_RULE = re.compile(r" *=+(?: +=+)+ *")
_TEST = re.compile(r"``(tests/[^`:\s]*?)(?:::(\w+))?``")


def named(page: Path) -> list[tuple[str, str]]:
    """Return the test files that a page names, each with the test's name, if any."""
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


# -- commands and their output ---------------------------------------------------

_CONSOLE = re.compile(
    r"^(?P<indent> *)\.\. code-block:: console\n(?P<body>(?:(?P=indent) +.*\n|\n)+)"
    r"(?P<next>.*)",
    re.MULTILINE,
)
_GOLDEN = re.compile(r"literalinclude:: (\S*tests/unit/cmd/golden/\S+)")
_OURS = re.compile(r"(?:^|[|;&(] ?)os-acc ")


def written_outputs(text: str) -> Iterator[str]:
    """Yield the output of os-acc that a page has in its own text."""
    for block in _CONSOLE.finditer(text):
        lines = [line.strip() for line in block["body"].splitlines()]
        lines = [line for line in lines if line and not line.startswith(":")]
        is_command = is_ours = False
        for before, line in pairwise(["", *lines]):
            is_command = line[:2] in ("$ ", "# ") or before.endswith("\\")
            if line[:2] in ("$ ", "# "):
                is_ours = bool(_OURS.search(line[2:]))
            if is_ours and not is_command:
                yield line
        if is_ours and re.search(r"code-block:: text|^[^.]*::$", block["next"]):
            yield block["next"]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_each_output_of_the_command_in_the_manual_is_generated(page):
    found = list(written_outputs(page.read_text(encoding="utf-8")))
    assert not found, f"{page.name}: include a file of tests/unit/cmd/golden: {found}"


def test_each_file_of_output_has_the_test_that_writes_it():
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in (CHECKOUT / "tests/unit/cmd").glob("test_*.py")
    )
    shown = {
        Path(path).stem
        for page in PAGES
        for path in _GOLDEN.findall(page.read_text(encoding="utf-8"))
    }
    assert len(shown) > 20
    # tests/functional/manual/test_quickstart.py follows the page to these.
    by_page = {each for each in shown if each.startswith("quickstart-")}
    unwritten = {each for each in shown - by_page if f'"{each}' not in tests}
    assert not unwritten


@pytest.mark.parametrize(
    "text",
    [
        ".. code-block:: console\n\n   $ os-acc a\n   | table |\n",
        ".. code-block:: console\n\n   # os-acc a \\\n       --b\n   ok\n",
        ".. code-block:: console\n\n   $ cat a | os-acc b -\n   ok\n",
        ".. code-block:: console\n\n   $ os-acc a\n\n.. code-block:: text\n\n   b\n",
        ".. code-block:: console\n\n   $ os-acc a\n\nIt prints::\n\n   b\n",
    ],
)
def test_output_that_is_written_by_hand_is_found(text):
    assert list(written_outputs(text))


@pytest.mark.parametrize(
    "text",
    [
        ".. code-block:: console\n\n   $ os-acc a \\\n       --b\n   $ os-acc c\n",
        ".. code-block:: console\n   :name: x\n\n   $ ls\n   a\n\nThen::\n\n   b\n",
        ".. code-block:: console\n\n   $ os-acc a\n\n.. literalinclude:: a\n",
    ],
)
def test_output_of_a_file_or_of_others_is_none(text):
    assert not list(written_outputs(text))


# -- messages --------------------------------------------------------------------


def test_each_message_of_os_acc_in_the_manual_is_in_its_source():
    texts = manual_messages.in_source((CHECKOUT / "os_acc").rglob("*.py"))
    messages = manual_messages.quoted("Messages of os_acc")
    assert len(messages) > 10
    assert manual_messages.missing(messages, texts) == []


def test_a_message_that_is_not_in_the_source_is_found(tmp_path):
    source = tmp_path / "module.py"
    source.write_text('f"no {device} in " "host %s: %(reason)s"\n')
    texts = manual_messages.in_source([source])
    messages = ["no <device> in host <name>: <reason>", "no <device> in the host"]
    assert manual_messages.missing(messages, texts) == messages[1:]


# -- statements of the specifications ----------------------------------------------

STATEMENTS = CHECKOUT / "doc/source/reference/statements.rst"
_STATEMENT = re.compile(
    r"^   \* - (?P<id>\d{3}\.\d+)\n     - (?P<quote>.+(?:\n       .+)*)\n"
    r"     - (?P<shown>.+(?:\n       .+)*)",
    re.MULTILINE,
)
_REASON = re.compile(r"\*(?:Otherwise|Not supported)\*: \S+(?: \S+){3,}")


def statements() -> list[re.Match[str]]:
    return list(_STATEMENT.finditer(STATEMENTS.read_text(encoding="utf-8")))


def test_each_statement_of_a_specification_occurs_once():
    """They are numbered from 1, so none is left out."""
    numbers: dict[str, list[int]] = {}
    for row in statements():
        specification, _, number = row["id"].partition(".")
        numbers.setdefault(specification, []).append(int(number))
    assert list(numbers) == ["000", "001", "002", "003", "004"]
    for specification, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), specification


def test_each_row_of_the_statements_is_read():
    text = STATEMENTS.read_text(encoding="utf-8")
    heads = text.count(".. list-table::")
    assert (
        len(statements()) == len(re.findall(r"^   \* - ", text, re.MULTILINE)) - heads
    )


def test_each_statement_has_a_test_or_a_reason():
    for row in statements():
        if not _REASON.match(row["shown"]):
            found = [pair for pair in _TEST.findall(row["shown"]) if all(pair)]
            rest = _TEST.sub("", row["shown"])
            assert found, row["id"]
            assert not rest.strip(", \n"), f"{row['id']}: {rest}"


def test_the_page_counts_its_statements():
    text = STATEMENTS.read_text(encoding="utf-8")
    (total, shown, otherwise) = map(
        int, re.findall(r"\b\d+\b", text.split("\n\n")[1])[:3]
    )
    reasons = sum(bool(_REASON.match(row["shown"])) for row in statements())
    assert (total, shown, otherwise) == (
        len(statements()),
        len(statements()) - reasons,
        reasons,
    )


# -- simple tables ---------------------------------------------------------------
#
# docutils begins a row of a simple table at each line with text in the first column
# (https://docutils.sourceforge.io/docs/ref/rst/restructuredtext.html#simple-tables),
# so a first cell cannot continue on the next line: its second line becomes a row of
# its own, without a warning. The source has to show that no row is such a line:
#
# * a head is one line;
# * if a row has a second line, or an empty cell, a blank line separates all rows;
# * so does it where a row could be the rest of the row above: where in each column
#   the first word of the lower line did not fit behind the cell of the upper line.
#
# A row with a longer first cell needs a wider column or a list-table.


@dataclass(frozen=True)
class SimpleTable:
    """Lines of a page, and the columns that the rules of the table mark."""

    number: int
    columns: tuple[slice, ...]
    head: list[str]
    body: list[str]

    @property
    def is_separated(self) -> bool:
        return any(not line[self.columns[0]].strip() for line in self.body)

    def cells(self, line: str) -> list[str]:
        """Return the text in each column; a line may exceed the last column."""
        starts = [column.start for column in self.columns]
        ends = [*starts[1:], None]
        return [
            line[start:end].strip() for start, end in zip(starts, ends, strict=True)
        ]

    def may_continue(self, upper: str, lower: str) -> bool:
        """Whether each cell of ``upper`` may have been broken before ``lower``."""
        return all(
            len(f"{above} {below.split()[0]}") > column.stop - column.start
            for above, below, column in zip(
                self.cells(upper), self.cells(lower), self.columns, strict=True
            )
        )

    def unclear_rows(self) -> Iterator[str]:
        """Yield the lines that break the rule above."""
        yield from self.head[1:]
        if self.is_separated:
            for upper, lower in pairwise(self.body):
                if upper.strip() and self.cells(lower)[0]:
                    yield lower
            return
        incomplete = [line for line in self.body if not all(self.cells(line))]
        yield from incomplete
        if not incomplete:
            for upper, lower in pairwise(self.body):
                if self.may_continue(upper, lower):
                    yield lower


def simple_tables(text: str) -> list[SimpleTable]:
    lines = [*text.splitlines(), ""]
    rules = [number for number, line in enumerate(lines) if _RULE.fullmatch(line)]
    tables = []
    while rules:
        top, middle, *rest = rules
        has_head = bool(lines[middle + 1].strip())
        bottom = rest[0] if has_head else middle
        assert not lines[bottom + 1].strip(), f"line {bottom + 1} ends no table"
        columns = tuple(slice(*match.span()) for match in re.finditer("=+", lines[top]))
        head = lines[top + 1 : middle] if has_head else []
        body = lines[(middle if has_head else top) + 1 : bottom]
        tables.append(SimpleTable(top + 1, columns, head, body))
        rules = rest[1:] if has_head else rest
    return tables


def table_of(*lines: str) -> str:
    rule = " ".join(("=" * 22, "=" * 20))
    return "\n".join([rule, "Reason                 Remedy", rule, *lines, rule])


def unclear(text: str) -> list[str]:
    return [line for table in simple_tables(text) for line in table.unclear_rows()]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_each_row_of_a_simple_table_is_a_whole_one(page):
    found = [
        f"{page.name}, table at line {table.number}: {line}"
        for table in simple_tables(page.read_text(encoding="utf-8"))
        for line in table.unclear_rows()
    ]
    remedy = "No row may look like the rest of another: blank lines, or a list-table:"
    assert not found, "\n".join([remedy, *found])


def test_most_tables_of_the_manual_are_read():
    tables = [
        table for page in DOCUMENTS for table in simple_tables(page.read_text("utf-8"))
    ]
    assert len(tables) > 40
    assert any(table.is_separated for table in tables)
    assert not all(table.is_separated for table in tables)


@pytest.mark.parametrize(
    "lines",
    [
        ["a function that stays  leave it out", "with the host"],
        [
            "a function that stays  leave it out; see",
            "with the host          amd-xilinx",
        ],
        [
            "in use                 end the process that",
            "                       holds it",
            "a function that stays  leave it out",
            "with the host          of it",
        ],
        [
            "in use                 end the process",
            "",
            "a function that stays  leave it out",
            "with the host          of it",
        ],
    ],
    ids=["empty cell", "all cells continue", "between long rows", "below a blank line"],
)
def test_a_first_cell_on_two_lines_is_found(lines):
    found = unclear(table_of(*lines))
    assert any(line.startswith("with the host") for line in found)


def test_a_head_of_two_lines_is_found():
    text = table_of("in use                 wait").replace(
        "Remedy", "Remedy\nor not  it"
    )
    assert unclear(text) == ["or not  it"]


@pytest.mark.parametrize(
    "lines",
    [
        ["in use                 wait", "with the host          leave it out"],
        [
            "in use                 end the process that",
            "                       holds it",
            "",
            "with the host          leave it out",
        ],
    ],
    ids=["one line each", "separated"],
)
def test_whole_rows_are_clear(lines):
    assert unclear(table_of(*lines)) == []
