# SPDX-License-Identifier: Apache-2.0

"""Answer with Nova's own function: a line in, a line out.

It runs in a process of its own that can be killed: Nova's function may try
more permutations than can be waited for.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time

from nova import objects
from nova.virt import hardware

from benchmarks.numa_cases import CASES
from tests.functional.nova import numa_objects


def answered(case: str, cells: int) -> tuple[float, list[int] | None]:
    """Return the seconds of Nova's function, and its answer."""
    question = CASES[case][1](cells)
    arguments = (
        numa_objects.host(question.host),
        numa_objects.guest(question.guest),
        None,
        numa_objects.limits(question),
        numa_objects.device_requests(question.requests),
        numa_objects.device_stats(question.host, question.pools),
    )
    gc.collect()
    start = time.perf_counter()
    found = hardware.numa_fit_instance_to_host(*arguments)
    seconds = time.perf_counter() - start
    return seconds, found and [cell.id for cell in found.cells]


def main() -> None:
    """Answer until the end of the input."""
    objects.register_all()
    logging.getLogger("nova").setLevel(logging.WARNING)
    hardware.CONF([], default_config_files=[], default_config_dirs=[])
    for line in sys.stdin:
        print(json.dumps(answered(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
