# SPDX-License-Identifier: Apache-2.0

"""A privileged helper on a fake kernel that dies at one point of a call, once.

=============== ==========================================================
point
=============== ==========================================================
before the fork the devices' locks are taken
child running   the child is at work, or has ended
after the child the child has ended, the locks are still held
before answer   the locks are let go, nothing is answered
=============== ==========================================================

It dies once: the helper that removes the flag dies, the next one serves.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from os_acc.privsep import worker
from os_acc.testing import helper

POINTS = ("before the fork", "child running", "after the child", "before answer")


def main(argv: list[str]) -> None:
    """Run a helper; its arguments follow ``--dies-at POINT --flag FILE``."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--dies-at", choices=POINTS, required=True)
    parser.add_argument("--flag", required=True)
    own, others = parser.parse_known_args(argv)
    _set_trap(own.dies_at, own.flag)
    helper.main(others)


def _set_trap(point: str, flag: str) -> None:
    def die(*_args: object) -> None:
        try:
            os.unlink(flag)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    if point == "before answer":
        run = worker.run

        def run_and_die(*args: Any, **more: Any) -> Any:
            answers = run(*args, **more)
            die()
            return answers

        worker.run = run_and_die
    elif point == "before the fork":
        worker._begin = _after(die, worker._begin)
    elif point == "child running":
        worker._answers = _after(die, worker._answers)
    else:
        worker._complete = _after(die, worker._complete)


def _after(first: Callable[..., None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        first()
        return then(*args)

    return both


if __name__ == "__main__":
    main(sys.argv[1:])
