# SPDX-License-Identifier: Apache-2.0

"""Checks of crashes, of refused writes, and of functions that vanish."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from os_acc import exception
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.mdev import function_of
from os_acc.plugins import base
from os_acc.testing import helper
from os_acc.testing.conformance.common import (
    Step,
    contents,
    erase_all,
    free_units,
    interposed,
    offered,
    plug,
    require,
    require_returned,
    typed,
    unplug_all,
)
from os_acc.testing.conformance.touches import Touches
from os_acc.testing.specs import FunctionSpec
from os_acc.testing.test_host import TestHost

_T = TypeVar("_T")
#: The errors of a write that the kernel refuses.
ERRORS: Final = (errno.EBUSY, errno.EIO, errno.ENODEV)
#: Makes a function vanish at a moment of its use; returns it, to plug it in again.
Moment = Callable[[TestHost, str, Provider, str], FunctionSpec]
#: Selects the trials of a check; by default all.
Select = Callable[[Sequence[_T]], Sequence[_T]]


def _all(trials: Sequence[_T]) -> Sequence[_T]:
    return trials


def crashes_lose_nothing(
    host: TestHost, plugin: str, *, select: Select[int] = _all
) -> None:
    """A kill at any step of a plug or an unplug loses no unit.

    The process and its workers are killed before each touch of host or store
    (:mod:`.touches`). Then the service starts again, and the same plug and unplug
    succeed and restore the host.

    :param select: returns the touches to try; by default all.
    :raises RuleBroken: no device is offered; a unit or a change of the host is left.
    """
    with helper.privileged_here():
        for provider in _one_of_each_kind(offered(host, plugin)):
            _crash(host, plugin, provider, select)


def _crash(
    host: TestHost, plugin: str, provider: Provider, select: Select[int]
) -> None:
    before = contents(host)

    def plug_and_unplug() -> None:
        plug(host, provider)
        unplug_all(host)

    # The first one may also make directories that stay.
    for _ in range(2):
        complete = Touches(host.manager, plugin, kernel=host.kernel)
        complete.run(plug_and_unplug)
    require_returned(before, host, f"{provider.name} is as before, once unplugged")
    for place in select(range(1, complete.count + 1)):
        trial = Touches(host.manager, plugin, place, host.kernel)
        is_killed = trial.run(plug_and_unplug)
        rule = f"a kill before {trial.last} loses nothing of {provider.name}"
        require(
            is_killed, f"each plug touches the host alike; touch {place} is missing"
        )
        host.kernel.complete()
        host.restart()
        with typed(rule) as errors:
            if not host.manager.store.leases():
                require_returned(before, host, rule)
            _repeat(host, plug_and_unplug)
        require(not errors, f"{rule}; then: {errors}")
        require_returned(before, host, rule, plugin=plugin)


def _repeat(host: TestHost, plug_and_unplug: Callable[[], None]) -> None:
    """Repeat an operation that was killed, once its device is erased."""
    try:
        plug_and_unplug()
    except exception.NoDeviceAvailable:
        # The plug has finished an unplug, after which the device has to be erased.
        if not any(each.erasure for each in host.manager.store.leases()):
            raise
        unplug_all(host)
        plug_and_unplug()


def refused_writes_lose_nothing(
    host: TestHost, plugin: str, *, select: Select[tuple[int, int]] = _all
) -> None:
    """A write that the kernel refuses loses no unit, and its error has a type.

    Each write of a plug and an unplug fails with EBUSY, EIO and ENODEV in turn. A
    failed plug leaves the host as it was, and nothing in quarantine. After a failed
    unplug, another one or an operator's release gives the device back.

    :param select: returns the trials, each a number of a write and an error number.
    :raises RuleBroken: no device is offered; a unit or a change of the host is left.
    """
    for provider in _one_of_each_kind(offered(host, plugin)):
        before, seen = contents(host), len(host.kernel.writes())
        plug(host, provider)
        in_plug = len(host.kernel.writes()) - seen
        unplug_all(host)
        count = len(host.kernel.writes()) - seen
        trials = [(place, error) for place in range(1, count + 1) for error in ERRORS]
        for place, error in select(trials):
            name = errno.errorcode[error]
            rule = (
                f"{name} at write {place} of {count} loses nothing of {provider.name}"
            )
            host.kernel.fail(error=error, nth=place)
            with typed(f"{rule}: its error is an OsAccError") as failed:
                plug(host, provider)
            if failed or place <= in_plug:
                host.kernel.lift()
            if failed:
                # The device may have left the host: it is erased.
                erase_all(host)
                require_returned(before, host, rule, plugin=plugin)
            with typed(f"{rule}: its error is an OsAccError"):
                unplug_all(host)
            host.kernel.lift()
            _finish(host, rule)
            require_returned(before, host, rule, plugin=plugin)


def vanished_functions_lose_nothing(host: TestHost, plugin: str) -> None:
    """A function that vanishes loses no unit, before a plug, in a guest, or at release.

    Once it is back, it is offered under its name, and a plug and an unplug succeed.

    :raises RuleBroken: no device is offered; or a lease or a driver is not as before.
    """
    names = [each.name for each in offered(host, plugin)]
    for provider in _one_of_each_kind(offered(host, plugin)):
        card = _card(host, provider)
        if card is None:
            # A virtual parent has no function.
            continue
        for moment, act in _MOMENTS.items():
            before = host.kernel.snapshot()
            rule = f"{provider.name} is usable again after it vanished {moment}"
            function = act(host, plugin, provider, card)
            host.kernel.hot_plug(function)
            host.restart()
            _finish(host, rule)
            require([each.name for each in offered(host, plugin)] == names, rule)
            with typed(rule) as errors:
                plug(host, provider)
                unplug_all(host)
            require(not errors, f"{rule}; then: {errors}")
            require(host.kernel.snapshot() == before, f"{rule}, with its drivers")


def _before_plug(
    host: TestHost, plugin: str, provider: Provider, card: str
) -> FunctionSpec:
    function = host.kernel.hot_unplug(card)
    with typed("a plug of a vanished function has an OsAccError") as errors:
        plug(host, provider)
    require(bool(errors), "a plug of a vanished function fails")
    left = host.manager.store.leases()
    require(not left, "a plug of a vanished function leaves no lease")
    return function


def _while_held(
    host: TestHost, plugin: str, provider: Provider, card: str
) -> FunctionSpec:
    plug(host, provider)
    function = host.kernel.hot_unplug(card)
    with typed("an unplug of a vanished function has an OsAccError"):
        unplug_all(host)
    _check_ended(host)
    return function


def _in_release(
    host: TestHost, plugin: str, provider: Provider, card: str
) -> FunctionSpec:
    pulled: list[FunctionSpec] = []

    def pull(real: Step, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        if not pulled:
            pulled.append(host.kernel.hot_unplug(card))
        real(handle, steps)

    plug(host, provider)
    with (
        typed("a release of a vanished function has an OsAccError"),
        interposed(host.manager, plugin, "release", pull),
    ):
        unplug_all(host)
    require(bool(pulled), "an unplug calls release()")
    _check_ended(host)
    return pulled[0]


def _check_ended(host: TestHost) -> None:
    # A device that has to be erased waits for its return, for no consumer.
    left = [each for each in host.manager.store.leases() if not each.erasure]
    reason = f"; {left[0].reason}" if left else ""
    require(not left, f"a release of a vanished function ends its lease{reason}")


_MOMENTS: Final[Mapping[str, Moment]] = {
    "before a plug": _before_plug,
    "in a guest": _while_held,
    "at its release": _in_release,
}


def _finish(host: TestHost, rule: str) -> None:
    """Give back all devices, as an operator does after a failure."""
    with typed(rule) as errors:
        unplug_all(host)
    require(not errors, f"{rule}; an operator cannot release it: {errors}")


def _one_of_each_kind(providers: Sequence[Provider]) -> Iterator[Provider]:
    """Yield the first provider of each resource class and kind of handle."""
    seen: set[tuple[str, bool, bool]] = set()
    for each in providers:
        device = each.device
        virtual = function_of(device.address) is None
        kind = device.resource_class, virtual, len(device.handles) > 1
        if kind not in seen and free_units(each):
            seen.add(kind)
            yield each


def _card(host: TestHost, provider: Provider) -> str | None:
    """Return the function whose removal takes a device away; None: it has none."""
    address = function_of(provider.device.handles[0].address)
    if address is None:
        return None
    path = host.kernel.path("sys/bus/pci/devices", str(address))
    pf = os.path.join(path, "physfn")
    return os.path.basename(os.path.realpath(pf if os.path.exists(pf) else path))
