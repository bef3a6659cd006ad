# SPDX-License-Identifier: Apache-2.0

"""A service as an interpreter of its own, to test the end of an interpreter.

``HOW CONFIG ROOT CARD...``: it plugs the cards in a thread, and leaves its main
thread as HOW says while the first write is under way. The result of the plug is
the last line of its output.

========== ===============================================================
HOW
========== ===============================================================
daemon     a daemon thread plugs; the main thread comes to its end
thread     an ordinary thread plugs; the main thread comes to its end
executor   a thread of an executor plugs, as in nova-compute; SystemExit
sigterm    the same; the handler of SIGTERM raises SystemExit, as that of
           oslo.service does
========== ===============================================================
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent import futures

from tests.stress.process_host import ProcessHost, attempt, plug


def main(how: str, config: str, root: str, *cards: str) -> None:
    """See the top of this module."""
    host = ProcessHost(os.path.dirname(root), build=False)
    manager = host.serve(config)

    def work() -> None:
        tried = attempt(lambda: plug(manager, 1, *cards))
        print(json.dumps([tried.value, tried.error, tried.seconds]), flush=True)

    if how in ("daemon", "thread"):
        threading.Thread(target=work, daemon=how == "daemon").start()
    else:
        pool = futures.ThreadPoolExecutor(1)
        pool.submit(work)
    host.kernel.wait_until_blocked()
    if how == "sigterm":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready", flush=True)
        signal.pause()
    if how == "executor":
        raise SystemExit(7)


if __name__ == "__main__":
    main(*sys.argv[1:])
