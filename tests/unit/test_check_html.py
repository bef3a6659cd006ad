# SPDX-License-Identifier: Apache-2.0

"""The tool that checks the built manual finds the rows that are cut in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_html

WHOLE = "<tr><td>in use</td><td><p>end the process\nthat holds it</p></td></tr>"
# docutils renders a first cell on two lines so.
REST = "<tr><td>with the host</td><td></td></tr>"


def page(*rows: str) -> str:
    head = "<thead><tr><th>Reason</th><th>Remedy</th></tr></thead>"
    return f"<p>text</p><table>{head}<tbody>{''.join(rows)}</tbody></table><p>end</p>"


@pytest.mark.parametrize("row", [REST, "<tr><td></td><td>holds it</td></tr>"])
def test_the_rest_of_a_row_is_found(row: str) -> None:
    (found,) = check_html.cut_rows(page(WHOLE, row, WHOLE))
    assert found in ("with the host | ", " | holds it")


def test_whole_rows_are_no_fault() -> None:
    spanning = "<tr><td colspan=2>all of them</td></tr>"
    partly = "<tr><td>a</td><td></td><td>c</td></tr>"
    assert list(check_html.cut_rows(page(WHOLE, spanning, partly))) == []


def test_pages_without_any_table_are_not_the_manual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.html").write_text("<p>nothing</p>")
    assert check_html.main(str(tmp_path)) == 1
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin/operations.html").write_text(page(WHOLE))
    assert check_html.main(str(tmp_path)) == 0
    (tmp_path / "admin/placement.html").write_text(page(WHOLE, REST))
    assert check_html.main(str(tmp_path)) == 1
    errors = capsys.readouterr().err
    assert "admin/placement.html: a cut row: with the host | " in errors
