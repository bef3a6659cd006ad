# SPDX-License-Identifier: Apache-2.0

"""Plugins whose health step has one bug each, for the first of their cards."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, Final

from os_acc import privsep
from tests.unit import acme

HERE: Final = "tests.functional.host.plugins.planted_health"
context = privsep.Context(f"{HERE}.context", "planted_bugs", [])


def health_of(reads: Callable[[privsep.StepTarget], Any]) -> type[acme.Acme]:
    """Return a plugin whose health step reads this of its first card."""

    @context.health_step
    @functools.wraps(reads)
    def step(target: privsep.StepTarget) -> privsep.HealthReading:
        is_first = str(target.address) == "0000:5e:00.0"
        found: privsep.HealthReading = reads(target) if is_first else ("", ())
        return found

    class Reading(acme.Acme):
        contract_version = (1, 0)
        contexts = (context,)
        health_step = step

    return Reading


@health_of
def HealthRaises(target: privsep.StepTarget) -> Any:
    raise RuntimeError("no firmware")


@health_of
def HealthExits(target: privsep.StepTarget) -> Any:
    raise SystemExit(1)


@health_of
def HealthLeaves(target: privsep.StepTarget) -> Any:
    os._exit(3)


@health_of
def HealthIsText(target: privsep.StepTarget) -> Any:
    return "is too hot"


@health_of
def HealthHasFloat(target: privsep.StepTarget) -> Any:
    return "", (("temperature", 54.5),)


@health_of
def HealthHasBool(target: privsep.StepTarget) -> Any:
    return "", (("is_hot", True),)


@health_of
def HealthHasTitle(target: privsep.StepTarget) -> Any:
    return "", (("Fan 1", 900),)


@health_of
def HealthHasReport(target: privsep.StepTarget) -> Any:
    return "is broken:\n" + "fan 1 stands\n" * 30, ()


@health_of
def HealthHangs(target: privsep.StepTarget) -> Any:
    # It ends with the test.
    while os.path.exists(os.path.join(target.root, "sys/hangs")):
        time.sleep(0.01)
    return "", ()


class HealthIsFunction(acme.OfThisContract):
    """Names a function that no context has made a step."""

    health_step = len  # type: ignore[assignment]
