# SPDX-License-Identifier: Apache-2.0

"""A read that hangs delays no other work, under eventlet as with threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

from os_acc import deadlines, native_threads
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE, Cloud

cloud, nodes = clouds.cloud, compute_nodes.nodes

#: Seconds after which a process that waits for the read may go on, and the test fails.
LONG = 300.0


@contextlib.contextmanager
def silent(path: Path) -> Iterator[None]:
    """Let a read of a file hang in a block; check that one hangs until its end.

    Opening a FIFO for reading waits for a writer.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    threads = native_threads.before_eventlet("threading") or threading
    rescue = threads.Timer(LONG, lambda: os.close(os.open(path, os.O_WRONLY)))
    rescue.start()
    try:
        yield
        # Fails if no process reads: fifo(7).
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    finally:
        rescue.cancel()


def test_a_server_is_created_and_heartbeats_go_on(cloud: Cloud) -> None:
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
