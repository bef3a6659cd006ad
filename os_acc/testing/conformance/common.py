# SPDX-License-Identifier: Apache-2.0

"""The parts that checks share: a host's units, its contents, and broken rules."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.device import AttachHandle, Provider
from os_acc.objects.lease import Lease, LeaseState
from os_acc.plugins import base
from os_acc.testing.nova import instance, request
from os_acc.testing.test_host import TestHost

#: Takes a host on which the service has not started, and the name of a plugin.
Check: TypeAlias = Callable[[TestHost, str], None]
#: ``prepare`` or ``release`` of a plugin.
Step: TypeAlias = Callable[[AttachHandle, base.PrivilegedSteps], None]
#: Replaces a step: gets the plugin's own and its arguments.
Around: TypeAlias = Callable[[Step, AttachHandle, base.PrivilegedSteps], None]
#: Directories of the simulated kernel and of os_acc's locks and records.
_OWN: Final = frozenset({"./.kernel", "run/os_acc"})
_LONGEST: Final = 3
#: Seconds in which an erasure on a simulated host ends.
_ERASURE_SECONDS: Final = 60.0


class RuleBroken(AssertionError):
    """The plugin breaks a rule of the contract; correct the plugin."""


def require(holds: bool, rule: str) -> None:
    """Check that a rule holds.

    :raises RuleBroken: it does not.
    """
    if not holds:
        raise RuleBroken(rule)


def offered(host: TestHost, plugin: str) -> list[Provider]:
    """Return the providers of a plugin's devices.

    :raises RuleBroken: there is none.
    """
    found = [each for each in host.manager.providers() if each.device.plugin == plugin]
    require(bool(found), f"plugin {plugin} offers a device of the host")
    return found


def free_units(provider: Provider) -> int:
    """Return the number of units that a guest can have now."""
    return sum(not each.fault for each in provider.device.handles)


def plug(host: TestHost, provider: Provider, number: int = 1, amount: int = 1) -> None:
    """Plug units of a provider for the instance with this number."""
    selected, specs = request(provider, amount=amount)
    host.manager.plug(instance(number), selected, specs)


def lacks_capacity(error: BaseException) -> bool:
    """Return whether a plug failed since its unit was more than there is capacity for.

    A plugin whose hardware does not report the number of its units offers too many.
    """
    return (
        isinstance(error, exception.HostStepFailed)
        and error.reason is exception.StepReason.NO_CAPACITY
    )


def contents(host: TestHost, *, times: bool = False) -> dict[str, str]:
    """Return all files of the host: text or target of a link by path.

    Without the locks and records of os_acc, which only it reads.

    :param times: with the directories, and with the time of the last change, for writes
        of the same text and files that are removed again.
    """
    found: dict[str, str] = {}
    for directory, names, files in os.walk(host.root):
        inside = os.path.relpath(directory, host.root)
        names[:] = [each for each in names if os.path.join(inside, each) not in _OWN]
        for name in (*files, *names):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if times or not stat.S_ISDIR(status.st_mode):
                changed = f"{status.st_ctime_ns} " * times
                text = changed + _text(path, status.st_mode)
                found[os.path.join(inside, name)] = text
    return found


def _text(path: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"-> {os.readlink(path)}"
    if not stat.S_ISREG(mode) or not mode & stat.S_IRUSR:
        return stat.filemode(mode)
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def require_equal(
    before: Mapping[str, str], host: TestHost, rule: str, *, times: bool = False
) -> None:
    """Check that the host is as it was.

    :param before: its :func:`contents` then, with or without ``times``.
    :raises RuleBroken: with the files that differ.
    """
    after = contents(host, times=times)
    paths = sorted(
        path
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    )
    shown = ", ".join(paths[:_LONGEST]) + (", ..." if len(paths) > _LONGEST else "")
    require(not paths, f"{rule}; not as before: {shown}")


def require_returned(
    before: Mapping[str, str], host: TestHost, rule: str, *, plugin: str = ""
) -> None:
    """Check that no lease is left and that the host is as it was.

    :raises RuleBroken: with the leases or the files.
    """
    left = ", ".join(
        f"{each.address} is {each.state.value}"
        + (f": {each.reason}" * bool(each.reason))
        for each in host.manager.store.leases()
    )
    require(not left, f"{rule}; still leased: {left}")
    require_equal(before, host, rule)
    if plugin:
        offered(host, plugin)


def unplug_all(host: TestHost) -> None:
    """Unplug all instances; release quarantined devices as an operator does.

    Devices that their plugin erases are erased when it returns.

    :raises OsAccError: a device cannot be given back.
    :raises RuleBroken: an erasure does not end.
    """
    manager = host.manager
    for lease in manager.store.leases():
        if lease.state is LeaseState.QUARANTINED:
            operator_actions.release_device(manager, lease.address, None)
    for consumer in sorted({each.consumer for each in manager.store.leases()}):
        manager.unplug({"uuid": consumer})
    erase_all(host)


def erase_all(host: TestHost) -> None:
    """Continue the erasures of all devices of a simulated host until they have ended.

    :raises OsAccError: one has failed.
    :raises RuleBroken: one does not end.
    """
    finish_erasures(host.manager, lambda _lease: True, _ERASURE_SECONDS)


def finish_erasures(
    manager: Manager,
    selects: Callable[[Lease], bool],
    seconds: float,
    pause: float = 0.0,
) -> None:
    """Continue the erasures of released devices until they have ended.

    :param selects: returns whether a lease is one of those to continue.
    :param pause: seconds between two calls of the plugin.
    :raises RuleBroken: one does not end in this time.
    :raises OsAccError: one has failed, and a further call does not help.
    """
    until = time.monotonic() + seconds
    while due := [
        lease
        for lease in manager.store.leases()
        if lease.state is LeaseState.ERASING and selects(lease)
    ]:
        late = time.monotonic() > until
        require(not late, f"an erasure of {due[0].address} ends in {seconds:.0f} s")
        for lease in due:
            try:
                manager.life.eraser.advance(lease.uuid, until)
            except exception.OsAccError as error:
                if not error.retryable:
                    raise
        time.sleep(pause)
    manager.catalog.recount(until)


@contextlib.contextmanager
def typed(rule: str) -> Iterator[list[exception.OsAccError]]:
    """Collect an error of os_acc in a block; any other one breaks the rule.

    :raises RuleBroken: the block raised an error of another type.
    """
    errors: list[exception.OsAccError] = []
    try:
        yield errors
    except exception.OsAccError as error:
        errors.append(error)
    except RuleBroken:
        raise
    except Exception as error:
        raise RuleBroken(f"{rule}, not {error!r}") from error


@contextlib.contextmanager
def interposed(
    manager: Manager, plugin: str, method: str, around: Around
) -> Iterator[None]:
    """Replace ``prepare`` or ``release`` of the plugin in a block.

    :param around: gets the plugin's own method and its arguments.
    """
    target = manager.plugins.get(plugin)
    require(target is not None, f"plugin {plugin} is loaded")
    real = getattr(target, method)
    attributes: dict[str, Any] = vars(target)

    def call(handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        around(real, handle, steps)

    attributes[method] = call
    try:
        yield
    finally:
        del attributes[method]
