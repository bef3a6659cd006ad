# SPDX-License-Identifier: Apache-2.0

"""A fake host and its helper, with the measured delays of the real kernel."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from benchmarks import delays, documentation, rows, slow_helper
from benchmarks.plan import Plan, scratch
from os_acc import privsep
from os_acc.testing import HostSpec, TestHost
from os_acc.testing.helper import privileged_by
from tests.stress.simulated_host import simulated_host

_SECONDS = "seconds.json"
_CONTEXTS = (privsep.base, privsep.inspect)


@contextlib.contextmanager
def made(
    plan: Plan, host: HostSpec, device_spec: str, *, on_disk: bool
) -> Iterator[TestHost]:
    """Yield a host with a privileged helper of its own for each context.

    :param on_disk: each commit waits for a disk, as on a host; False: the store
    is in memory.
    """
    with scratch() as directory:
        place = os.path.join(directory, "bench")
        bench = simulated_host(place, host, device_spec=[device_spec])
        seconds = os.path.join(directory, _SECONDS)
        delays.save(seconds, measured(plan))
        os.makedirs(plan.output, exist_ok=True)
        place = os.path.abspath(plan.output if on_disk else directory)
        with tempfile.TemporaryDirectory(dir=place) as state:
            os.symlink(state, os.path.join(bench.directory, "state"))
            with privileged_by(slow_helper.command(bench.root, seconds), _CONTEXTS):
                yield bench


def kernel_results(plan: Plan) -> str:
    """Return the path of the file with the real kernel's results of a run."""
    return os.path.join(plan.output, "kernel.json")


def measured(plan: Plan) -> dict[str, float]:
    """Return the seconds of each write: those of this run, else the documented ones."""
    path = kernel_results(plan) if plan.kernel else documentation.RESULTS
    if seconds := delays.measured(rows.load(path)):
        return seconds
    raise delays.Unknown(f"{path} does not say how long the kernel takes for a write")
