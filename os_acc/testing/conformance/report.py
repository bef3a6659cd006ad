# SPDX-License-Identifier: Apache-2.0

"""The report of a run on one device, which a vendor can publish.

``doc/source/contributor/conformance.rst`` has its format.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, Final

from os_acc import exception
from os_acc.plugins import base, loader
from os_acc.testing.conformance.common import RuleBroken
from os_acc.testing.conformance.hardware import Bench, Check, Skipped

#: The version of the format.
FORMAT: Final = 1


class Result(enum.Enum):
    """The result of a check, or of an entire run."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    :ivar detail: the rule that is broken, or the reason for a skip; else empty.
    """

    name: str
    rule: str
    result: Result
    seconds: float
    detail: str = ""


def run(bench: Bench, checks: Sequence[Check]) -> Iterator[CheckResult]:
    """Run checks in order; after each one give the device back.

    :raises OsAccError: the device cannot be given back.
    """
    for check in checks:
        began = time.monotonic()
        result, detail = Result.PASSED, ""
        try:
            check(bench)
        except Skipped as error:
            result, detail = Result.SKIPPED, str(error)
        except (RuleBroken, exception.OsAccError) as error:
            result, detail = Result.FAILED, str(error)
        finally:
            bench.close()
        name = getattr(check, "__name__", repr(check))
        rule = (check.__doc__ or "").partition("\n")[0]
        yield CheckResult(name, rule, result, time.monotonic() - began, detail)


def as_json(
    bench: Bench,
    results: Sequence[CheckResult],
    *,
    simulated: bool,
    with_serial: bool = False,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> dict[str, Any]:
    """Return the report of a run, for JSON.

    :param with_serial: whether it has the serial number of the device.
    """
    failed = any(each.result is Result.FAILED for each in results)
    return {
        "format": FORMAT,
        "time": now().isoformat(timespec="seconds"),
        "os_acc": metadata.version("os-acc"),
        "contract": list(base.CONTRACT_VERSION),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "simulated": simulated,
        "kills": "{}/{}".format(*bench.kills),
        "plugin": _plugin(bench),
        "device": _device(bench, with_serial=with_serial),
        "result": (Result.FAILED if failed else Result.PASSED).value,
        "seconds": _rounded(sum(each.seconds for each in results)),
        "checks": [
            {
                "name": each.name,
                "rule": each.rule,
                "result": each.result.value,
                "detail": each.detail,
                "seconds": _rounded(each.seconds),
            }
            for each in results
        ],
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _plugin(bench: Bench) -> dict[str, Any]:
    name = bench.plugin
    (point,) = bench.manager.plugins.enabled[name].points
    package, version = loader.distribution_of(point)
    loaded = bench.manager.plugins.get(name)
    return {
        "name": name,
        "contract": list(loaded.contract_version) if loaded else [],
        "package": package,
        "version": version,
    }


def _device(bench: Bench, *, with_serial: bool) -> dict[str, Any]:
    offered, function = bench.provider.device, bench.function
    found: dict[str, Any] = {
        "address": str(bench.address),
        "resource_class": offered.resource_class,
        "traits": sorted(offered.traits),
    }
    if function is None:
        return found
    own = function.identity
    found |= {
        "vendor": f"{own.vendor:04x}",
        "device": f"{own.product:04x}",
        "subsystem_vendor": f"{own.subsystem_vendor:04x}",
        "subsystem_device": f"{own.subsystem_product:04x}",
        "revision": f"{own.revision:02x}",
        "class": f"{function.class_code:06x}",
        "driver": function.driver or "",
    }
    return found | ({"serial": own.serial} if with_serial else {})
