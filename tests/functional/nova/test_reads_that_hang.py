# SPDX-License-Identifier: Apache-2.0

"""A read that hangs delays no other work, under eventlet as with threads."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import deadlines
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE
from tests.silent_files import impatient as impatient
from tests.silent_files import silent

cloud, nodes = clouds.cloud, compute_nodes.nodes


@pytest.mark.usefixtures("impatient")
def test_a_server_is_created_and_heartbeats_go_on(cloud):
    first = cloud.nova.create(ONE, host=FIRST)
    (address,) = cloud.nova.hostdevs(FIRST, first)
    node = cloud.nodes[FIRST]
    (function,) = Path(node.bench.root).glob(f"sys/devices/**/{address}")
    beats: list[float] = []
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            beats.append(time.monotonic())

    with silent(function / "config"):
        beating = deadlines.begin(beat)
        reading = deadlines.begin(node.manager.catalog.read_health)
        second = cloud.nova.create(ONE, host=FIRST)
        cloud.check_attached(second, 1)
        assert beats
        ended.set()
    futures.wait([beating, reading])
