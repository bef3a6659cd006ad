# SPDX-License-Identifier: Apache-2.0

"""A vendor's privileged steps, in a context that preloads their modules."""

from __future__ import annotations

import ctypes
import os
import subprocess

from oslo_privsep import capabilities

from os_acc import privsep

_PR_GET_SECUREBITS = 27
_prctl = ctypes.CDLL(None).prctl

context = privsep.Context(
    "tests.unit.privsep.vendor.context",
    "vendor_privileged",
    [capabilities.CAP_DAC_READ_SEARCH],
    preload=["colorsys"],
)


@context.entrypoint
def environment() -> dict[str, str]:
    """Return the environment that a program started by the helper would inherit."""
    return dict(os.environ)


@context.entrypoint
def hue() -> float:
    """Import a declared module only when a call needs it."""
    import colorsys

    return colorsys.rgb_to_hsv(0, 1, 0)[0]


@context.entrypoint
def undeclared() -> bool:
    """Import a module of the standard library that no context preloads."""
    import antigravity

    return bool(antigravity)


@context.entrypoint
def securebits() -> int:
    """Return the flags of prctl(2), PR_GET_SECUREBITS."""
    return int(_prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0))


@context.entrypoint
def status_of_a_program() -> str:
    """Return proc(5), status, of a program that the helper starts."""
    done = subprocess.run(
        ["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True
    )
    return done.stdout
