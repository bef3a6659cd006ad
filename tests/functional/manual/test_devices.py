# SPDX-License-Identifier: Apache-2.0

"""The pages of the devices, followed on simulated hosts from entry to flavor."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from os_acc.testing import TestHost, uuid_of
from tests.device_pages import HOSTS, PAGES, blocks, commands, flavor
from tests.unit.cmd.console import Console

_CONFIGURATION = "os-acc --config-file /etc/nova/nova.conf "


def test_each_page_is_followed_and_found_in_the_table() -> None:
    assert {each.stem for each in PAGES.glob("*.rst")} - {"index"} == HOSTS.keys()
    table = (PAGES / "index.rst").read_text()
    assert re.findall(r":doc:`/devices/(\w+)`", table) == list(HOSTS)
    # The front page includes the table between two marks.
    marks = re.findall(r"(?m)^\.\. The .*", table)
    assert len(marks) == 2
    assert all(each in (PAGES.parent / "index.rst").read_text() for each in marks)
    assert all(len(blocks(each, "ini")) == 1 for each in HOSTS)


@pytest.mark.parametrize("page", HOSTS)
def test_a_page_leads_to_a_guest_with_the_device(tmp_path: Path, page: str) -> None:
    with TestHost(tmp_path / "bench", HOSTS[page]) as host:
        follow(Console(host, tmp_path), page, tmp_path)


def follow(console: Console, page: str, place: Path) -> None:
    """Do what a page says, and plug what its flavor requests.

    :param place: for a file.
    """
    (configuration,) = blocks(page, "ini")
    written = console.config_file.read_text().replace("[os_acc]", configuration)
    named = [each for each in written.splitlines() if '"*:*:*.*"' not in each]
    console.config_file.write_text("\n".join(named) + "\n")

    for words in commands(page):
        if words[0] == "os-acc":
            assert shlex.join(words).startswith(_CONFIGURATION)
            ran = console.run(*words[3:])
            assert ran.status == 0, ran.out
            assert "| failed" not in ran.out
            assert "device list" not in shlex.join(words) or "free" in ran.out

    specs = flavor(page)
    classes = [key.partition(":")[2] for key in specs if key.startswith("resources")]
    offered = console.json("provider", "list")
    allocated = {}
    for wanted in classes:
        found = next(each for each in offered if each["Resource Class"] == wanted)
        offered.remove(found)
        allocated[found["UUID"]] = {"resources": {wanted: 1}}
    request = place / "allocations.json"
    request.write_text(json.dumps({"allocations": allocated}))
    properties = [f"--property={key}={value}" for key, value in specs.items()]
    chosen = ("--allocations", str(request), *properties)
    entries = console.json("plug", "--instance", uuid_of(1), *chosen)
    assert [each["State"] for each in entries] == ["leased"] * len(classes)
    assert console.run("unplug", uuid_of(1)).status == 0
