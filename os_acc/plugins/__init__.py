# SPDX-License-Identifier: Apache-2.0

"""Load the vendors' plugins; set a failing one aside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from oslo_config import cfg
from oslo_log import log

from os_acc import deadlines, exception
from os_acc.objects import vfio_driver
from os_acc.objects.typed import expect, expect_all
from os_acc.plugins import base, calls, entry_points
from os_acc.plugins.entry_points import InstalledPlugin
from os_acc.privsep import Context, HealthReading, Step

LOG = log.getLogger(__name__)

NAMESPACE = entry_points.NAMESPACE

# Limit for each plugin's import and constructor, so that a hanging one leaves
# time for the others.
_LOAD_SECONDS = 20.0

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class SetAside:
    """A plugin that cannot be used, and the reason.

    :ivar error: the exception of the vendor's code; None: there is none.
    """

    name: str
    reason: str
    error: BaseException | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    @classmethod
    def after(cls, name: str, error: exception.PluginFailed) -> Self:
        """Return a plugin that has failed in a call."""
        return cls(name, error.message, error.__cause__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """A plugin, with the attributes that were read and checked when it was made.

    A property of the vendor's may fail when it is read again.
    """

    plugin: base.PluginBase
    is_fallback: bool
    contexts: tuple[Context, ...]
    health_step: Step[HealthReading] | None
    own_vfio_drivers: frozenset[str]
    caller: calls.PluginCalls


@dataclasses.dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins in the order in which they select devices: fallbacks last.

    :ivar enabled: the plugins that are loaded or set aside, by their names.
    """

    _made: Mapping[str, _Made]
    set_aside: tuple[SetAside, ...]
    enabled: Mapping[str, InstalledPlugin]

    @property
    def loaded(self) -> tuple[base.PluginBase, ...]:
        """The plugins that are not set aside."""
        return tuple(each.plugin for each in self._made.values())

    @property
    def health_steps(self) -> Mapping[str, Step[HealthReading]]:
        """The health step of each plugin that has one, by its name."""
        steps = {name: each.health_step for name, each in self._made.items()}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def own_vfio_drivers(self) -> Mapping[str, frozenset[str]]:
        """The drivers on which functions of each plugin stay, by its name."""
        return {name: each.own_vfio_drivers for name, each in self._made.items()}

    @property
    def contexts(self) -> tuple[tuple[str, Context], ...]:
        """The privileged contexts of the plugins, each with the name of its plugin."""
        return tuple(
            (name, context)
            for name, each in self._made.items()
            for context in each.contexts
        )

    def call(
        self,
        plugin: base.PluginBase,
        seconds: float,
        function: Callable[..., _T],
        *args: object,
    ) -> _T:
        """Call a plugin's method; see :meth:`os_acc.plugins.calls.PluginCalls.call`.

        :raises PluginFailed: it raised an exception, or does not return.
        """
        return self._made[plugin.name].caller.call(seconds, function, *args)

    def options_of(self, name: str) -> str:
        """Return the name and the options of a plugin as text, to be compared."""
        plugin = self.get(name)
        return repr((name, sorted(plugin.conf.items()) if plugin else None))

    def hanging(self) -> tuple[str, ...]:
        """Return the plugins that have not returned from a call in time."""
        return tuple(name for name, each in self._made.items() if each.caller.hangs)

    def get(self, name: str) -> base.PluginBase | None:
        """Return the loaded plugin of this name, or None."""
        made = self._made.get(name)
        return made.plugin if made else None

    def why_missing(self, name: str) -> str:
        """Return the reason why no plugin of this name is loaded."""
        for each in self.set_aside:
            if each.name == name:
                return f"set aside: {each.reason}"
        return "not installed or not enabled"


def load(
    conf: cfg.ConfigOpts,
    root: str,
    enabled: Sequence[str],
    deadline: float = math.inf,
) -> Plugins:
    """Load the enabled plugins, or all that are installed.

    :param root: see :class:`os_acc.plugins.base.PluginBase`.
    :raises InvalidConfiguration: an enabled plugin is not installed.
    :raises DeviceStuck: the deadline has passed.
    """
    found = entry_points.installed(enabled)
    _check_enabled(enabled, found)
    aside: list[SetAside] = []
    made = []
    for each in found:
        try:
            made.append(_make(conf, root, each, deadline))
        except exception.PluginFailed as error:
            aside.append(SetAside.after(each.name, error))
            LOG.error(
                "plugin %s is set aside: %s",
                *(each.name, aside[-1].reason),
                exc_info=aside[-1].error,
            )
    made.sort(key=lambda each: (each.is_fallback, each.plugin.name))
    return Plugins(
        {each.plugin.name: each for each in made},
        # A traceback has the frames of all its calls.
        tuple(dataclasses.replace(each, error=None) for each in aside),
        {each.name: each for each in found},
    )


def section_of(name: str) -> str:
    """Return the option group of a plugin."""
    return f"os_acc_{name}"


def list_opts(
    enabled: Sequence[str] = (),
) -> list[tuple[str | cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of the enabled plugins, or of all that are installed."""
    options: list[tuple[str | cfg.OptGroup, list[cfg.Opt]]] = []
    for each in entry_points.installed(enabled):
        try:
            caller = calls.PluginCalls(each.name)
            plugin = _imported(each, caller, math.inf)
            found = caller.call(_LOAD_SECONDS, lambda plugin: [*plugin.options], plugin)
        except exception.PluginFailed as error:
            LOG.error("the options of plugin %s are unknown: %s", each.name, error)
            continue
        if found:
            options.append((section_of(each.name), found))
    return options


def _imported(
    found: InstalledPlugin, caller: calls.PluginCalls, deadline: float
) -> Any:
    """Import the class of a plugin.

    :raises PluginFailed: there are several, or its import fails or does not end.
    """
    if found.conflict:
        raise exception.PluginFailed(found.conflict)
    try:
        return caller.call(_load_patience(deadline), found.points[0].load)
    except exception.PluginFailed as error:
        raise exception.PluginFailed(
            f"cannot be imported: {error.message}"
        ) from error.__cause__


def _check_enabled(enabled: Sequence[str], found: Sequence[InstalledPlugin]) -> None:
    for name in sorted({*enabled}.difference(each.name for each in found)):
        others = sorted(each.name for each in entry_points.installed())
        raise exception.InvalidConfiguration(
            f"[os_acc] enabled_plugins names {name!r}, which is not installed",
            hint="install its package, or correct the name; installed plugins: "
            f"{', '.join(others) or 'none'}",
        )


def _load_patience(deadline: float) -> float:
    deadlines.left(deadline)
    return deadlines.patience(deadline, _LOAD_SECONDS)


def _make(
    conf: cfg.ConfigOpts, root: str, found: InstalledPlugin, deadline: float
) -> _Made:
    """Import and instantiate a plugin.

    :raises PluginFailed: it cannot be used, or its code fails or does not end.
    :raises DeviceStuck: the deadline has passed.
    """
    caller = calls.PluginCalls(found.name)

    def make(kind: Any) -> _Made:
        section = section_of(found.name)
        conf.register_group(cfg.OptGroup(section))
        conf.register_opts(kind.options, group=section)
        plugin = kind(found.name, conf[section], root)
        if not isinstance(plugin, base.PluginBase):
            raise TypeError(f"{kind!r} is not derived from PluginBase")
        return _with_attributes(plugin, caller)

    kind = _imported(found, caller, deadline)
    version = caller.call(
        _load_patience(deadline), getattr, kind, "contract_version", None
    )
    if why_not := _unusable(found.name, version):
        raise exception.PluginFailed(why_not)
    return caller.call(_load_patience(deadline), make, kind)


def _with_attributes(plugin: base.PluginBase, caller: calls.PluginCalls) -> _Made:
    """Read and check the attributes of a plugin that the library uses.

    :raises AttributeError: its constructor does not call that of PluginBase.
    :raises TypeError, ValueError: an attribute has another type, or its name was
        changed.
    """
    if plugin.name != caller.plugin_name:
        raise TypeError(f"its name is {plugin.name!r}, not that of its entry point")
    is_fallback = plugin.is_fallback
    expect("its is_fallback", is_fallback, bool)
    expect("its always_reports_function_id", plugin.always_reports_function_id, bool)
    step = plugin.health_step
    if step is not None and not (isinstance(step, Step) and step.is_health):
        raise TypeError(f"its health_step is {step!r}, which no health_step() made")
    if step is not None and not step.parameters.accept(step.arguments):
        raise TypeError("its health_step lacks arguments: see with_arguments()")
    contexts = tuple(plugin.contexts)
    expect_all("its contexts", contexts, tuple, Context)
    drivers = plugin.own_vfio_drivers
    expect("its own_vfio_drivers", drivers, tuple, list)
    for driver in drivers:
        if not vfio_driver.is_name(driver) or vfio_driver.is_vfio_driver(driver):
            raise TypeError(
                f"its own_vfio_drivers has {driver!r}: it names drivers of the host, "
                "without the word vfio, as plain text"
            )
    return _Made(plugin, is_fallback, contexts, step, frozenset(drivers), caller)


def _unusable(name: str, version: object) -> str:
    """Return why a plugin of this name and contract cannot be used; '': it can."""
    # The privileged helper records it.
    if not vfio_driver.is_name(name):
        return (
            "the name of its entry point is not at most 64 letters, digits and "
            "characters of _.+:- of ASCII, with a letter, a digit or _ first"
        )
    major, minor = base.CONTRACT_VERSION
    if (
        not isinstance(version, tuple)
        or [*map(type, version)] != [int, int]
        or not (major, 0) <= version <= (major, minor)
    ):
        return (
            f"its contract_version is {exception.show(version)}; this os_acc supports "
            f"{major}.0 to {major}.{minor}"
        )
    return ""
