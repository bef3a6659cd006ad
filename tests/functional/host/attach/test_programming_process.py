# SPDX-License-Identifier: Apache-2.0

"""A helper in a process of its own programs regions, as in a service."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception, privsep
from os_acc.helper.client import Helper
from tests.unit.fpga_host import CARD, SECOND, WANTED, FpgaHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FpgaHost]:
    with FpgaHost(tmp_path, separate_helper=True) as host:
        yield host


def program(
    host: FpgaHost, address: str = CARD, epoch: int = 1, write_timeout: float = 60
) -> str:
    hands = Helper(write_timeout)
    deadline = time.monotonic() + 120
    return hands.program(host.region(address), host.bitstream(), epoch, deadline)


def _wait_for_its_end() -> None:
    deadline = time.monotonic() + 60
    channel = privsep.image.channel
    while channel.running:
        assert time.monotonic() < deadline, "nobody has seen the helper's end"
        time.sleep(0.01)


def test_a_helper_that_is_killed_leaves_the_write_to_its_worker(host):
    host.kernel.hang(CARD, "program")
    with pytest.raises(exception.DeviceStuck):
        program(host, write_timeout=2)
    host.kernel.wait_until_blocked()
    (worker,) = {write.pid for write in host.kernel.writes()}
    stat = Path(f"/proc/{worker}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    _wait_for_its_end()
    # Another helper finds this card locked, and the other cards free.
    with pytest.raises(exception.DeviceStuck):
        program(host, epoch=2, write_timeout=5)
    assert program(host, SECOND, epoch=2) == WANTED
    host.kernel.lift()
    assert program(host, epoch=3) == WANTED
