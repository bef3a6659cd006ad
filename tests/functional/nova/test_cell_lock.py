# SPDX-License-Identifier: Apache-2.0

"""The databases of Nova's tests do not stop the tests."""

from __future__ import annotations

import threading
import time

from nova.tests.fixtures import CellDatabases


def test_a_waiting_writer_keeps_no_reader_out() -> None:
    lock = CellDatabases()._cell_lock

    def read() -> None:
        with lock.read_lock():
            pass

    def write() -> None:
        with lock.write_lock():
            pass

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    with lock.read_lock():
        writer.start()
        while not lock._pending_writers:
            time.sleep(0.01)
        reader.start()
        reader.join(timeout=30)
        assert not reader.is_alive()
    writer.join(timeout=30)
    assert not writer.is_alive()
