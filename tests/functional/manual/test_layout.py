# SPDX-License-Identifier: Apache-2.0

"""The tool that lays out the manual in a browser finds what a reader cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.functional.manual.extensions import extension
from tools import check_layout

NARROW = "<table><tr><td style='width: 60px; {style}'>{text}</td></tr></table>"
TORN = "overflow-wrap: anywhere; display: block"
#: A page, and the beginnings of its faults.
PAGES = {
    "wide.html": (
        "<div style='width: 500px'>text</div>",
        ["wide.html, 400 px: <div> ends at 508: text"],
    ),
    "clipped.html": (
        "<div style='overflow: hidden; width: 390px'>"
        "<table style='width: 1300px'><tr><td>cut</td></tr></table></div>",
        ["clipped.html, 1280 px: <table>", "clipped.html, 400 px: <table>"],
    ),
    "torn.html": (
        NARROW.format(style=TORN, text="trust_guest_contents"),
        [f"torn.html, {width} px: a broken word: trust" for width in (1280, 400)],
    ),
    "beyond.html": (
        NARROW.format(style="display: block", text="trust_guest_contents"),
        [f"beyond.html, {width} px: a word beyond" for width in (1280, 400)],
    ),
    "low.html": (
        NARROW.format(style="display: block; height: 9px", text="alpha beta gamma"),
        [
            f"low.html, {width} px: a word beyond its cell: {word}"
            for width in (1280, 400)
            for word in ("alpha", "beta", "gamma")
        ],
    ),
    "sound.html": (
        "<div style='overflow-x: auto'><pre style='width: 2000px'>scrolls</pre></div>"
        + NARROW.format(style=TORN, text="a b, trust_<wbr>and, vfio-pci")
        + "<div style='width: 90px; overflow: hidden; text-overflow: ellipsis; "
        "white-space: nowrap'>" + "an entry of the contents " * 20 + "</div>",
        [],
    ),
}


def write(directory: Path, pages: dict[str, str]) -> None:
    for name, body in pages.items():
        text = f"<!DOCTYPE html><title>{name}</title><body>{body}</body>"
        directory.joinpath(name).write_text(text)


def test_each_fault_of_the_layout_is_found(tmp_path: Path) -> None:
    write(tmp_path, {name: body for name, (body, _faults) in PAGES.items()})
    measured, found = check_layout.faults(tmp_path)
    assert measured == len(PAGES)
    for name, (_body, expected) in PAGES.items():
        ours = [each for each in found if each.startswith(name)]
        assert len(ours) == len(expected), ours
        for text, beginning in zip(ours, expected, strict=True):
            assert text.startswith(beginning)


def test_the_status_tells_a_manual_with_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_layout.main(str(tmp_path)) == 1
    write(tmp_path, {"sound.html": PAGES["sound.html"][0]})
    assert check_layout.main(str(tmp_path)) == 0
    write(tmp_path, {"a wide&.html": PAGES["wide.html"][0]})
    assert check_layout.main(str(tmp_path)) == 1
    assert "a wide&.html, 400 px: <div> ends at 508" in capsys.readouterr().err


def test_without_a_browser_the_check_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_layout.faults(tmp_path, browser=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="has measured nothing"):
        check_layout.faults(tmp_path, browser="true")


@pytest.mark.parametrize(
    ("word", "divided"),
    [
        ("trust_guest_contents", "trust_guest_contents"),
        (
            "tests/unit/test_manual.py::test_of_a_name",
            "tests/<wbr>unit/<wbr>test_<wbr>manual.<wbr>py::<wbr>test_<wbr>of_<wbr>a_"
            "<wbr>name",
        ),
        ("&lt;&lt;&lt;&lt;&lt;&lt;&lt;a_b", "&lt;&lt;&lt;&lt;&lt;&lt;&lt;a_b"),
    ],
)
def test_long_names_alone_are_divided(word: str, divided: str) -> None:
    built = extension("long_names").divided(
        f'<code><span class="pre">{word}</span></code>'
    )
    kind = "pre" if word == divided else "pre long"
    assert built == f'<code><span class="{kind}">{divided}</span></code>'
