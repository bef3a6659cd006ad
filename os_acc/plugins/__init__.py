# SPDX-License-Identifier: Apache-2.0

"""Load the vendors' plugins; set a failing one aside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from types import MappingProxyType
from typing import Any, Self, TypeVar

import stevedore
from oslo_config import cfg
from oslo_log import log
from stevedore import extension

from os_acc import deadlines, exception
from os_acc.objects import vfio_driver
from os_acc.plugins import base, calls
from os_acc.privsep import Context, HealthReading, Step

LOG = log.getLogger(__name__)

NAMESPACE = "os_acc"

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


@dataclasses.dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins in the order in which they select devices: fallbacks last.

    :ivar health_steps: the health step of each plugin that has one, by its name.
    :ivar own_vfio_drivers: the drivers on which functions of each plugin stay, by its
        name.
    """

    loaded: tuple[base.PluginBase, ...]
    set_aside: tuple[SetAside, ...]
    health_steps: Mapping[str, Step[HealthReading]]
    own_vfio_drivers: Mapping[str, frozenset[str]]
    _contexts: tuple[tuple[str, Context], ...]
    _calls: Mapping[str, calls.PluginCalls]

    @classmethod
    def _of(cls, made: Iterable[_Made], set_aside: Iterable[SetAside]) -> Self:
        """Return these plugins, without any pending calls."""
        order = sorted(made, key=lambda each: (each.is_fallback, each.plugin.name))
        names = [each.plugin.name for each in order]
        steps = {
            each.plugin.name: each.health_step
            for each in order
            if each.health_step is not None
        }
        contexts = tuple(
            (each.plugin.name, context) for each in order for context in each.contexts
        )
        return cls(
            tuple(each.plugin for each in order),
            tuple(set_aside),
            MappingProxyType(steps),
            MappingProxyType(
                {each.plugin.name: each.own_vfio_drivers for each in order}
            ),
            contexts,
            MappingProxyType({name: calls.PluginCalls(name) for name in names}),
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
        return self._calls[plugin.name].call(seconds, function, *args)

    def contexts(self) -> tuple[tuple[str, Context], ...]:
        """Return the privileged contexts of the plugins, each with its plugin."""
        return self._contexts

    def hanging(self) -> tuple[str, ...]:
        """Return the plugins that have not returned from a call in time."""
        return tuple(name for name, each in self._calls.items() if each.hangs)

    def get(self, name: str) -> base.PluginBase | None:
        """Return the loaded plugin of this name, or None."""
        return next((each for each in self.loaded if each.name == name), None)

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
    aside: list[SetAside] = []

    def failed(_manager: object, entry_point: object, error: BaseException) -> None:
        name = str(getattr(entry_point, "name", entry_point))
        reason = f"cannot be imported: {calls.described(error)}"
        aside.append(_logged(SetAside(name, reason, error)))

    manager = _manager_of(enabled, failed, deadline)
    _check_enabled(enabled, {*manager.entry_points_names(), *manager.names()})
    made = [
        _make(conf, root, found, aside, deadline)
        for found in sorted(manager, key=lambda each: each.name)
    ]
    return Plugins._of((each for each in made if each is not None), aside)


def section_of(name: str) -> str:
    """Return the option group of a plugin."""
    return f"os_acc_{name}"


def list_opts() -> list[tuple[str | cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options of all installed plugins, for the sample configuration."""
    manager: stevedore.ExtensionManager[base.PluginBase] = stevedore.ExtensionManager(
        NAMESPACE
    )
    return [
        (section_of(found.name), list(found.plugin.options))
        for found in manager
        if found.plugin.options
    ]


def _manager_of(
    enabled: Sequence[str],
    failed: Callable[[object, object, BaseException], None],
    deadline: float,
) -> stevedore.ExtensionManager[base.PluginBase]:
    if not enabled:
        return _All(deadline, NAMESPACE, on_load_failure_callback=failed)
    # Plugins that are not enabled are not even imported.
    return _Named(
        deadline,
        NAMESPACE,
        list(enabled),
        on_load_failure_callback=failed,
        on_missing_entrypoints_callback=_say_nothing,
    )


class _Contained(stevedore.ExtensionManager[base.PluginBase]):
    """Reports all failed imports alike: some would otherwise end the service."""

    def __init__(self, deadline: float, *args: Any, **kwargs: Any) -> None:
        self._deadline = deadline
        super().__init__(*args, **kwargs)

    def _load_one_plugin(self, *args: Any, **kwargs: Any) -> Any:
        loading = deadlines.begin(super()._load_one_plugin, *args, **kwargs)
        try:
            return loading.result(_load_patience(self._deadline))
        except futures.TimeoutError as error:
            raise ImportError("it does not return") from error
        except (AssertionError, SystemExit) as error:
            raise ImportError(repr(error)) from error


class _All(_Contained):
    """All installed plugins."""


class _Named(_Contained, stevedore.NamedExtensionManager[base.PluginBase]):
    """The enabled plugins."""


def _say_nothing(_missing: object) -> None:
    """Ignore missing plugins, which :func:`_check_enabled` rejects."""


def _check_enabled(enabled: Sequence[str], installed: set[str]) -> None:
    for name in enabled:
        if name not in installed:
            raise exception.InvalidConfiguration(
                f"[os_acc] enabled_plugins names {name!r}, which is not installed",
                hint="install its package, or correct the name; installed plugins: "
                f"{', '.join(sorted(installed)) or 'none'}",
            )


def _load_patience(deadline: float) -> float:
    deadlines.left(deadline)
    return deadlines.patience(deadline, _LOAD_SECONDS)


def _make(
    conf: cfg.ConfigOpts,
    root: str,
    found: extension.Extension[base.PluginBase],
    aside: list[SetAside],
    deadline: float,
) -> _Made | None:
    def make() -> _Made:
        section = section_of(found.name)
        conf.register_group(cfg.OptGroup(section))
        conf.register_opts(found.plugin.options, group=section)
        plugin = found.plugin(found.name, conf[section], root)
        if not isinstance(plugin, base.PluginBase):
            raise TypeError(f"{found.plugin!r} is not derived from PluginBase")
        return _with_attributes(plugin, found.name)

    caller = calls.PluginCalls(found.name)
    try:
        version = caller.call(
            _load_patience(deadline), getattr, found.plugin, "contract_version", None
        )
        why_not = _unusable(found.name, version)
        if why_not:
            aside.append(_logged(SetAside(found.name, why_not)))
            return None
        return caller.call(_load_patience(deadline), make)
    except exception.PluginFailed as error:
        aside.append(_logged(SetAside.after(found.name, error)))
        return None


def _with_attributes(plugin: base.PluginBase, name: str) -> _Made:
    """Read and check the attributes of a plugin that the library uses.

    :raises AttributeError: its constructor does not call that of PluginBase.
    :raises TypeError: an attribute has another type, or its name was changed.
    """
    if plugin.name != name:
        raise TypeError(f"its name is {plugin.name!r}, not that of its entry point")
    values = {
        attribute: getattr(plugin, attribute)
        for attribute in ("always_reports_function_id", "is_fallback")
    }
    for attribute, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"its {attribute} is {value!r}, not a bool")
    step = plugin.health_step
    if step is not None and not (isinstance(step, Step) and step.is_health):
        raise TypeError(f"its health_step is {step!r}, which no health_step() made")
    contexts = tuple(plugin.contexts)
    for context in contexts:
        if not isinstance(context, Context):
            raise TypeError(f"its contexts has {context!r}, not a Context")
    drivers = plugin.own_vfio_drivers
    if not isinstance(drivers, list | tuple):
        raise TypeError(f"its own_vfio_drivers is {drivers!r}, not a tuple")
    for driver in drivers:
        if not vfio_driver.is_name(driver) or vfio_driver.is_vfio_driver(driver):
            raise TypeError(
                f"its own_vfio_drivers has {driver!r}: it names drivers of the host, "
                "without the word vfio, as plain text"
            )
    return _Made(plugin, values["is_fallback"], contexts, step, frozenset(drivers))


def _unusable(name: str, version: object) -> str:
    """Return why a plugin of this name and contract cannot be used; '': it can."""
    # The privileged helper records it.
    if not vfio_driver.is_name(name):
        return (
            "the name of its entry point is not at most 64 letters, digits and "
            "characters of _.+:- of ASCII, with a letter, a digit or _ first"
        )
    if not _fits(version):
        major, minor = base.CONTRACT_VERSION
        return (
            f"its contract_version is {exception.show(version)}; this os_acc supports "
            f"{major}.0 to {major}.{minor}"
        )
    return ""


def _fits(version: object) -> bool:
    return (
        isinstance(version, tuple)
        and len(version) == 2
        and all(type(part) is int for part in version)
        and version[0] == base.CONTRACT_VERSION[0]
        and 0 <= version[1] <= base.CONTRACT_VERSION[1]
    )


def _logged(aside: SetAside) -> SetAside:
    LOG.error(
        "plugin %s is set aside: %s", aside.name, aside.reason, exc_info=aside.error
    )
    # A traceback has the frames of all its calls.
    return SetAside(aside.name, aside.reason)
