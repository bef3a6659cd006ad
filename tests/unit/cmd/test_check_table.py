# SPDX-License-Identifier: Apache-2.0

"""The table of ``os-acc check`` fits a terminal."""

from __future__ import annotations

import os

from tests.unit.cmd.console import Console

GPU = "0000:17:00.0"


def test_it_fits_100_columns(console: Console) -> None:
    console.configure(more=f'[pci]\ndevice_spec = {{"address": "{GPU}"}}')
    head, _columns, rule, *lines = console.run("check").out.splitlines()
    texts = [line.split("|")[3].strip() for line in lines if line.startswith("|")]
    assert head == rule
    assert len(head) == 100
    assert all(len(text) <= 66 for text in texts)
    assert any(text.startswith("hint: give each device to one") for text in texts)


def test_a_long_path_is_broken_at_its_directories(console: Console) -> None:
    names = ["long-name-of-a-directory"] * 5
    path = os.path.join(console.bench.state_path, *names)
    os.makedirs(path)
    console.configure(
        more=f"[os_acc_bitstreams]\nsource = directory\ndirectory = {path}x"
    )
    lines = console.run("check").out.splitlines()
    assert {len(line) for line in lines} == {100}
    texts = [line.split("|")[3].strip() for line in lines if line.startswith("|")]
    assert f"{names[0]}/{names[0]}/" in texts
    # The other formats have it whole, to be copied.
    assert f"{path}x" in console.run("check", "-f", "json").out


def test_columns_of_the_table_can_be_chosen(console: Console) -> None:
    ran = console.run("check", "-c", "Check", "-c", "Hint")
    head = ran.out.splitlines()[1]
    assert [each.strip() for each in head.split("|")[1:-1]] == ["Check", "Hint"]
