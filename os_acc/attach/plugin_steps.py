# SPDX-License-Identifier: Apache-2.0

"""Calls of a plugin in a plug or unplug, and the steps that the plugin may use."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, TypeVarTuple

from oslo_log import log

from os_acc import deadlines, exception, native_threads
from os_acc.attach import Services, device_state, verification
from os_acc.helper.client import Helper
from os_acc.helper.errors import DeviceClaimed, EpochRefused
from os_acc.objects.bitstream import Bitstream
from os_acc.objects.lease import Action, Lease, LeaseView
from os_acc.objects.region import Region
from os_acc.objects.typed import expect, plain_text
from os_acc.plugins import base
from os_acc.plugins.loader import Plugins
from os_acc.privsep import Step
from os_acc.privsep.step import StepPurpose
from os_acc.store import state_files

LOG = log.getLogger(__name__)

#: The attributes that classes of errors add to those of their base.
_OF_ERRORS: Final = (
    (exception.HostError, ("address", "errno")),
    (exception.DeviceInUse, ("holders",)),
    (exception.ProgrammingFailed, ("errors",)),
    (exception.ServiceError, ("service",)),
    (exception.NotFound, ("kind",)),
)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: Errors that state, if a plugin raises them, that it has written nothing.
_DECLARED_UNTOUCHED: Final = (
    exception.BitstreamError,
    exception.DeviceInUse,
    exception.DeviceGone,
    exception.DeviceChanged,
)
#: Errors of the library's own steps after which the hardware is untouched.
#: DeviceStuck depends on its address: see :func:`_has_not_begun`.
_UNTOUCHED: Final = (
    *_DECLARED_UNTOUCHED,
    exception.HelperUnavailable,
    exception.LockTimeout,
    exception.ServiceUnavailable,
    exception.StateUnavailable,
    EpochRefused,
)


@dataclasses.dataclass(slots=True)
class PluginSteps:
    """See :class:`os_acc.plugins.base.PrivilegedSteps`.

    :ivar region: the region that is programmed; None in other calls.
    """

    deadline: float
    helper: Helper
    holder: Lease
    purpose: StepPurpose = StepPurpose.OTHER
    region: Region | None = None

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def lease(self) -> LeaseView:
        return self.holder

    def run(self, step: Step[_T, *_Ts], *arguments: *_Ts) -> _T:
        call: Callable[[], _T] = functools.partial(
            self.helper.run_step,
            step,
            self.holder,
            arguments,
            self.deadline,
            region=self.region,
            purpose=self.purpose,
        )
        return self._hand_over(call)

    def _hand_over(self, step: Callable[[], _T]) -> _T:
        return native_threads.hand_over(step)


@dataclasses.dataclass(slots=True)
class RegionSteps(PluginSteps):
    """See :class:`os_acc.plugins.base.ProgrammingSteps`.

    It records how far a programming has come: the region is restored as verified
    only if nothing was written.
    """

    _is_in_plugin: bool = False
    _has_written: bool = False
    _refusal: exception.OsAccError | None = None

    def program_dfl_port(self, region: Region, bitstream: Bitstream) -> None:
        self._on_region(self.helper.program, region, bitstream)

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        self._on_region(self.helper.load_xclbin, region, bitstream)

    def program(
        self, plugin: base.PluginBase, region: Region, bitstream: Bitstream
    ) -> None:
        """Call the plugin's ``program`` with these steps."""
        self._is_in_plugin = True
        try:
            plugin.program(region, bitstream, self)
        except exception.BitstreamError:
            # Nothing was written: the library may fetch the file again, and fail.
            self._is_in_plugin = False
            raise

    def left_untouched(self, error: exception.OsAccError) -> bool:
        """Return whether a failed programming has written nothing.

        A plugin's own error counts only if the contract gives it that meaning: any
        other one may have been raised in the middle of a write.
        """
        if self._has_written:
            return False
        if self._is_in_plugin and error is not self._refusal:
            return isinstance(error, _DECLARED_UNTOUCHED)
        return _has_not_begun(error)

    def _on_region(
        self,
        step: Callable[[Region, Bitstream, int, float], str],
        region: Region,
        bitstream: Bitstream,
    ) -> None:
        self._hand_over(
            lambda: step(region, bitstream, self.holder.epoch, self.deadline)
        )

    def _hand_over(self, step: Callable[[], _T]) -> _T:
        """Run a step, and record whether it may have written."""
        before, self._has_written = self._has_written, True
        try:
            return native_threads.hand_over(step)
        except exception.OsAccError as error:
            self._refusal = error
            if _has_not_begun(error):
                self._has_written = before
            raise


def with_actions(plugins: Plugins, leases: Iterable[Lease]) -> list[Lease]:
    """Return leases, marked if their plugins have to release them.

    A plugin that inherits both ``prepare`` and ``release`` has nothing to release. A
    recorded one stays: an earlier version of the plugin may have prepared the device.
    """

    def is_released(lease: Lease) -> bool:
        plugin, inherited = plugins.get(lease.plugin), base.PluginBase
        if plugin is None or not (lease.is_the_guests or lease.needs_erase):
            return False
        return (
            type(plugin).prepare is not inherited.prepare
            or type(plugin).release is not inherited.release
        )

    return [
        each.needing(Action.RELEASE) if is_released(each) else each for each in leases
    ]


def check_loaded(plugins: Plugins, leases: Iterable[Lease]) -> None:
    """Check that each plugin that has to release a device is loaded.

    :raises PluginFailed: NOT_LOADED: one is not.
    """
    for lease in leases:
        _plugin_of(plugins, lease)


def prepare(services: Services, lease: Lease, deadline: float) -> None:
    """Let the plugin prepare a device; skip a missing one with nothing to release.

    A lasting refusal is recorded in the state directory.

    :raises PluginFailed: NOT_LOADED: it has to release the device.
    :raises OsAccError: see :func:`call`.
    """
    steps = PluginSteps(deadline, services.helper, lease, StepPurpose.PREPARE)
    try:
        _for_lease(services.plugins, steps, "prepare")
    except exception.HostStepFailed as error:
        if error.reason is exception.StepReason.UNSUITABLE:
            where = services.state_path, services.root
            options = services.plugins.options_of(lease.plugin)
            state_files.record_refusal(*where, lease.address, options, error)
        raise


def release(services: Services, lease: Lease, deadline: float, is_plug: bool) -> None:
    """Let the plugin undo :func:`prepare`; skip a missing one with nothing to release.

    :param is_plug: whether this rolls back a plug of this boot.
    :raises PluginFailed: NOT_LOADED: it has to release the device.
    :raises OsAccError: see :func:`call`.
    """
    root = services.root
    steps = PluginSteps(deadline, services.helper, lease, StepPurpose.RETURN)
    try:
        device_state.check_distinct(root, lease)
        _for_lease(services.plugins, steps, "release")
    except (exception.DeviceGone, exception.DeviceChanged, DeviceClaimed) as error:
        is_there = device_state.is_in_place(root, lease)
        is_mine = is_there and lease.needs_release and not is_plug
        if isinstance(error, DeviceClaimed) and not is_mine:
            # The helper never recorded the device for this lease, or does no more.
            return
        # The plugin's changes went with the device; those of a function, or of a
        # parent, that is still there did not.
        if is_there:
            raise
        LOG.warning("%s has nothing to release: %s", lease.plugin, error)
    except exception.HostStepFailed as error:
        # The helper records a device before the first step that prepares it: root's
        # configuration has denied that step.
        if not is_plug or error.reason is not exception.StepReason.DENIED:
            raise


def erase(services: Services, lease: Lease, deadline: float) -> float:
    """Let the plugin start or continue an erasure; return the part that is done.

    A consumer on the host may still write to the device: what reaches it after its
    erasure would reach the next guest.

    :raises DeviceInUse: a process has the device open, or the host uses it.
    :raises PluginFailed: NOT_LOADED: the plugin is missing; FAILED: it did not return
        a number from 0.0 to 1.0.
    :raises OsAccError: see :func:`call`.
    """
    verification.check_unused(services.root, [lease])
    services.helper.check_unused(lease, deadline)
    steps = PluginSteps(deadline, services.helper, lease, StepPurpose.RETURN)
    done = _for_lease(services.plugins, steps, "erase")
    is_number = isinstance(done, int | float) and not isinstance(done, bool)
    if not is_number or not 0.0 <= done <= 1.0:
        raise exception.PluginFailed(
            f"erase() of the plugin {lease.plugin} returned {exception.show(done)}, "
            "which is not a number from 0.0 to 1.0"
        )
    return float(done)


def _for_lease(plugins: Plugins, steps: PluginSteps, method: str) -> Any:
    plugin = _plugin_of(plugins, steps.holder)
    if plugin is None:
        return None
    function = getattr(plugin, method)
    inherited = (base.PluginBase.prepare, base.PluginBase.release)
    if getattr(function, "__func__", None) in inherited:
        return None
    handle = dataclasses.replace(steps.holder.handle, members=steps.holder.members)
    return call(plugins, plugin, steps.deadline, function, handle, steps)


def _plugin_of(plugins: Plugins, lease: Lease) -> base.PluginBase | None:
    """Return the plugin of a lease; None: it is not loaded, and has nothing to do."""
    plugin = plugins.get(lease.plugin)
    if plugin is None and (lease.needs_release or lease.needs_erase):
        part = "prepared" if lease.needs_release else "has to erase"
        raise exception.PluginFailed(
            f"the plugin {lease.plugin}, which {part} {lease.address}, is "
            f"{plugins.why_missing(lease.plugin)}",
            reason=exception.PluginReason.NOT_LOADED,
        )
    return plugin


def call(
    plugins: Plugins,
    plugin: base.PluginBase,
    deadline: float,
    function: Callable[..., _T],
    *args: object,
) -> _T:
    """Call a method of a plugin until a deadline.

    :param deadline: on the clock of ``time.monotonic()``.
    :raises DeviceStuck: the deadline has passed.
    :raises PluginFailed: the method raised an exception, or does not return.
    :raises OsAccError: the method raised it, complete; it is not wrapped.
    """
    seconds = deadlines.patience(deadline, math.inf)
    try:
        return plugins.call(plugin, seconds, lambda: _checked(function, *args))
    except exception.PluginFailed as error:
        # An error of the contract states its cause, and whether a retry helps.
        if isinstance(error.__cause__, exception.OsAccError):
            raise error.__cause__ from error.__cause__.__cause__
        if not error.retryable:
            # The caller gets the message alone. A call that lacked memory is repeated.
            LOG.error("%s", error.message, exc_info=error.__cause__)
        raise


def _checked(function: Callable[..., _T], *args: object) -> _T:
    """Call a method of a plugin; check the error of the contract that it raises.

    The library shows, records and compares its attributes. An error lacks them if its
    class does not call the constructor of its base.
    """
    try:
        return function(*args)
    except exception.OsAccError as error:
        kind = type(error).__name__
        plain_text(f"{kind}.message", error.message)
        plain_text(f"{kind}.hint", error.hint)
        plain_text(f"str() of a {kind}", str(error))
        expect(f"{kind}.fault", error.fault, exception.Fault)
        for name in ("retryable", "elsewhere"):
            expect(f"{kind}.{name}", getattr(error, name), bool)
        if not isinstance(error.reason, exception.ErrorReason | None):
            raise ValueError(
                f"{kind}.reason is {exception.show(error.reason)}, not an ErrorReason"
            ) from error
        for own, names in _OF_ERRORS:
            if isinstance(error, own):
                for name in names:
                    getattr(error, name)
        raise


def _has_not_begun(error: exception.OsAccError) -> bool:
    if isinstance(error, exception.DeviceStuck):
        # Without an address, the deadline passed before a step began.
        return not error.address
    return isinstance(error, _UNTOUCHED)
