# SPDX-License-Identifier: Apache-2.0

"""A privileged helper on a fake kernel with delays.

It differs from :mod:`os_acc.testing.helper` in one point: a file has the seconds for
each attribute. Its ``helper_command``::

    python -m benchmarks.slow_helper --seconds <file> --fake-root <tree>
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys

from benchmarks import delays
from os_acc.testing import helper


def command(root: str, seconds: str) -> str:
    """Return the value of a context's option ``helper_command``."""
    words = [sys.executable, "-m", __name__, "--seconds", seconds]
    return shlex.join([*words, "--fake-root", root])


def main() -> None:
    """Run the helper with a slow kernel."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--seconds", required=True)
    own, others = parser.parse_known_args()
    slow = functools.partial(delays.SlowKernel, seconds=delays.load(own.seconds))
    helper.FakeKernel = slow  # type: ignore[assignment, attr-defined]
    helper.main(others)


if __name__ == "__main__":
    main()
