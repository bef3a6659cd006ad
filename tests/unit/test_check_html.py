# SPDX-License-Identifier: Apache-2.0

"""The tool that checks the built manual finds the rows that are cut in two."""

import pytest

from tools import check_html

WHOLE = "<tr><td>in use</td><td><p>end the process\nthat holds it</p></td></tr>"
# docutils renders a first cell on two lines so.
REST = "<tr><td>with the host</td><td></td></tr>"


def page(*rows: str) -> str:
    head = "<thead><tr><th>Reason</th><th>Remedy</th></tr></thead>"
    return f"<p>text</p><table>{head}<tbody>{''.join(rows)}</tbody></table><p>end</p>"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        pytest.param(REST, "with the host | ", id="first column"),
        pytest.param(
            "<tr><td></td><td>holds it</td></tr>", " | holds it", id="last column"
        ),
        pytest.param(
            "<tr><td>stays</td><td></td><td>continued</td></tr>",
            "stays |  | continued",
            id="first and last column",
        ),
        pytest.param(
            "<tr><td>stays</td><td>x</td><td></td></tr>",
            "stays | x | ",
            id="all but the last column",
        ),
    ],
)
def test_the_rest_of_a_row_is_found(row, text):
    (found,) = check_html.cut_rows(page(WHOLE, row, WHOLE))
    assert found == text


def test_whole_rows_are_no_fault():
    spanning = "<tr><td colspan=2>all of them</td></tr>"
    assert list(check_html.cut_rows(page(WHOLE, spanning))) == []


def test_figures_may_have_no_value_in_a_column(tmp_path):
    partly = "<tr><td>a</td><td></td><td>c</td></tr>"
    for name, status in (("benchmarks.html", 0), ("architecture.html", 1)):
        path = tmp_path / name
        path.write_text(page(WHOLE, partly))
        assert check_html.main(str(tmp_path)) == status
        path.unlink()


def test_pages_without_any_table_are_not_the_manual(tmp_path, capsys):
    (tmp_path / "index.html").write_text("<p>nothing</p>")
    assert check_html.main(str(tmp_path)) == 1
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin/operations.html").write_text(page(WHOLE))
    assert check_html.main(str(tmp_path)) == 0
    (tmp_path / "admin/placement.html").write_text(page(WHOLE, REST))
    assert check_html.main(str(tmp_path)) == 1
    errors = capsys.readouterr().err
    assert "admin/placement.html: a cut row: with the host | " in errors
