# SPDX-License-Identifier: Apache-2.0

"""``os-acc device migration`` asks VFIO again each time, and loses no answer."""

from pathlib import Path

import pytest

from os_acc.testing import HostSpec
from os_acc.testing.kernel import FakeKernel
from os_acc.testing.mdevs import mtty
from tests.unit.cmd.console import Console

SLOT = "mtty/mtty-1/0"
UNITS = 24


@pytest.fixture
def console(make_bench, tmp_path: Path) -> Console:
    """Return a shell on a host with mediated devices that can be migrated."""
    spec = HostSpec((), mdev_parents=(mtty(migration=(7, 60)),))
    device_spec = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'
    console = Console(make_bench(spec, device_spec=[device_spec]), tmp_path)
    console.configure(device_spec)
    return console


def answer(console: Console) -> str:
    return str(console.json("device", "migration", SLOT)["Live Migration"])


def test_it_asks_again_each_time(console, monkeypatch):
    assert answer(console).startswith("STOP_COPY, P2P, PRE_COPY; 60 bytes")
    monkeypatch.setattr(FakeKernel, "migration", lambda *_: (0, 0))
    assert answer(console) == "no"


def test_the_answer_stays_if_no_device_is_free(console):
    before = answer(console)
    for number in range(UNITS):
        console.bench.plug(number, SLOT)
    assert console.run("device", "migration", SLOT).status == 1
    assert console.json("device", "show", SLOT)["Live Migration"] == before
