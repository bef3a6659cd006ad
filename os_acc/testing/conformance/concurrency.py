# SPDX-License-Identifier: Apache-2.0

"""A check of several threads that plug and unplug at once."""

from __future__ import annotations

from concurrent import futures
from typing import Final

from os_acc import exception
from os_acc.objects.device import Provider
from os_acc.testing.conformance.common import (
    RuleBroken,
    contents,
    free_units,
    lacks_capacity,
    offered,
    plug,
    require,
    require_returned,
    unplug_all,
)
from os_acc.testing.nova import uuid_of
from os_acc.testing.test_host import TestHost

#: Units of one device for which threads compete.
_UNITS: Final = 4
_SECONDS: Final = 120.0


def concurrent_plugs_share_no_unit(host: TestHost, plugin: str) -> None:
    """Threads that plug and unplug at once get different units, and lose none.

    There is one thread more than units; it gets an error of os_acc. A device may offer
    more units than it has capacity for, if its hardware does not report that: a plug
    that finds none fails with ``StepReason.NO_CAPACITY``, and the units left are
    reserved.

    :raises RuleBroken: no device is offered; a unit is leased twice, or is lost.
    """
    for provider in offered(host, plugin):
        count = min(free_units(provider), _UNITS)
        if not count:
            continue
        before = contents(host)
        numbers = range(1, count + 2)
        with futures.ThreadPoolExecutor(len(numbers)) as threads:
            plugs = [threads.submit(plug, host, provider, each) for each in numbers]
            failed = [each.exception(_SECONDS) for each in plugs]
        served = _served(failed, free_units(provider), _unleased(host, provider))
        units = [
            unit for lease in host.manager.store.leases() for unit in lease.members
        ]
        require(len(units) == len(set(units)), "no unit is leased twice")
        _unplug(host, [each for each, ok in zip(numbers, served, strict=True) if ok])
        unplug_all(host)
        rule = f"{provider.name} is as before, once all threads have unplugged"
        require_returned(before, host, rule, plugin=plugin)


def _unleased(host: TestHost, provider: Provider) -> int:
    """Return the number of units that a further guest could have, as offered now."""
    leased = {each.address for each in host.manager.store.leases()}
    offered_now = host.manager.discover().providers.get(provider.uuid, provider)
    faults = {each.address: each.fault for each in offered_now.device.handles}
    # A unit that is offered no more is lost, and not reserved.
    return sum(
        each.address not in leased and not faults.get(each.address)
        for each in provider.device.handles
    )


def _served(
    failed: list[BaseException | None], units: int, unleased: int
) -> list[bool]:
    """Check the errors of plugs; return the plugs that got a unit.

    :param unleased: the units that are offered as free after the plugs.
    """
    for error in failed:
        if error is not None and not isinstance(error, exception.OsAccError):
            raise RuleBroken(
                f"a plug beside others has an OsAccError, not {error!r}"
            ) from error
        # A late plug may have got the unit of one that failed so.
        rule = f"plugs at once succeed, not: {error!r}"
        require(not isinstance(error, exception.PluginFailed), rule)
    served = [error is None for error in failed]
    expected = min(len(failed), units)
    if any(served) and all(map(_lacks_unit, failed)):
        # It had capacity for fewer.
        require(
            sum(served) == expected or not unleased,
            f"{expected} plugs at once succeed, or the units left are reserved",
        )
    else:
        require(sum(served) == expected, f"{expected} plugs at once succeed")
    return served


def _lacks_unit(error: BaseException | None) -> bool:
    """Return whether a plug succeeded, or found no unit or no capacity for it."""
    return (
        error is None
        or isinstance(error, exception.NoDeviceAvailable)
        or lacks_capacity(error)
    )


def _unplug(host: TestHost, numbers: list[int]) -> None:
    with futures.ThreadPoolExecutor(len(numbers)) as threads:
        ended = [
            threads.submit(host.manager.unplug, {"uuid": uuid_of(each)})
            for each in numbers
        ]
        for each in ended:
            error = each.exception(_SECONDS)
            if error is not None:
                raise RuleBroken(f"unplugs at once succeed, not: {error!r}") from error
