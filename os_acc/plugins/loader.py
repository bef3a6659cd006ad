# SPDX-License-Identifier: Apache-2.0

"""The loader of plugins: finds, imports and makes them, and sets a broken one aside."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import reprlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, Final, Self, TypeVar

import stevedore
from oslo_config import cfg
from oslo_log import log

from os_acc import deadlines, exception, native_threads
from os_acc.objects.drivers import is_driver_name, is_vfio_driver
from os_acc.objects.pci import PciIdentity
from os_acc.objects.typed import expect, expect_all
from os_acc.plugins import base
from os_acc.privsep import Context, HealthReading, Step

LOG = log.getLogger(__name__)

NAMESPACE: Final = "os_acc"
#: A distribution declares here which PCI functions a plugin serves: ``ace0:0e10``, or
#: ``ace0:*`` for all of a vendor, with the same value as the plugin's entry point.
_IDS: Final = "os_acc.ids"
_ID: Final = re.compile(r"[0-9a-f]{4}:([0-9a-f]{4}|\*)", re.ASCII)
# Limit for each plugin's import and constructor, so that a hanging one leaves
# time for the others.
_LOAD_SECONDS: Final = 20.0
_SHOWN: Final = reprlib.Repr()
_SHOWN.maxother = exception.LONGEST_MESSAGE

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that may be loaded.

    :ivar points: its entry points: one, unless several distributions have the name.
    :ivar ids: the declared PCI ids, as text.
    """

    name: str
    points: tuple[EntryPoint, ...]
    ids: frozenset[str] = frozenset()

    @property
    def conflict(self) -> str:
        """The reason why the metadata cannot be used; '' if they can."""
        if len(self.points) > 1:
            return f"several distributions have it: {', '.join(self.sources)}"
        wrong = sorted(each for each in self.ids if not _ID.fullmatch(each))
        return f"its distribution declares the PCI ids {wrong[0]!r}" if wrong else ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The distributions with their versions, or the values of the entry points."""
        return tuple(
            " ".join(filter(None, distribution_of(each))) or each.value
            for each in self.points
        )

    def serves(self, identity: PciIdentity) -> bool:
        """Return whether the distribution declares the ids of a function."""
        vendor = f"{identity.vendor:04x}"
        return not self.ids.isdisjoint(
            {f"{vendor}:{identity.product:04x}", f"{vendor}:*"}
        )


def installed(names: Sequence[str] = ()) -> tuple[InstalledPlugin, ...]:
    """Return the installed plugins of these names, or all, sorted by name."""
    points, ids = _points(NAMESPACE), _points(_IDS)
    found = []
    for name in sorted({each.name for each in points}):
        if names and name not in names:
            continue
        own = tuple(each for each in points if each.name == name)
        values = {each.value for each in own}
        declared = frozenset(each.name.lower() for each in ids if each.value in values)
        found.append(InstalledPlugin(name, own, declared))
    return tuple(found)


def distribution_of(point: EntryPoint) -> tuple[str, str]:
    """Return the name and the version of an entry point's distribution, or ''."""
    # The cache of stevedore does not have the distributions.
    for each in metadata.entry_points(group=NAMESPACE, name=point.name):
        if each.value == point.value and each.dist is not None:
            return each.dist.name, each.dist.version
    return "", ""


def _points(group: str) -> Iterable[EntryPoint]:
    # Without names, it loads none.
    manager: Any = stevedore.NamedExtensionManager(group, [])
    return tuple(manager.list_entry_points())


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class PluginCalls:
    """The calls of one plugin, each with a deadline.

    A hanging call is abandoned; until it returns, the plugin gets no other call
    that could hang as well.
    """

    plugin_name: str
    _hanging: set[futures.Future[Any]] = dataclasses.field(default_factory=set)
    _guard: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _turn: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """Forget all hanging calls."""
        self._hanging = set()
        self._guard, self._turn = threading.Lock(), threading.Lock()

    @property
    def hangs(self) -> bool:
        """Whether a call has exceeded its deadline and has not returned."""
        with self._guard:
            self._hanging = {each for each in self._hanging if not each.done()}
            return bool(self._hanging)

    def call(self, seconds: float, function: Callable[..., _T], *args: object) -> _T:
        """Call the plugin, and wait for at most ``seconds``.

        :raises PluginFailed: it raised an exception, or did not return in time; BUSY:
            it was not called, or too late, since an earlier call did not return.
        :raises DeviceStuck: no thread is available.
        """
        if self._hanging and self.hangs:
            raise self._busy()
        deadline = time.monotonic() + min(max(0.0, seconds), threading.TIMEOUT_MAX / 2)
        with contextlib.ExitStack() as turn:
            if native_threads.is_needed():
                # A lock of the plugin's would serve one thread of the kernel alone.
                turn.enter_context(deadlines.alone(self._turn, deadline, self._busy()))
            left = deadline - time.monotonic()
            answer = native_threads.begin(self._run, function, *args)
            try:
                return answer.result(max(0.0, left))
            except futures.TimeoutError as error:
                with self._guard:
                    self._hanging.add(answer)
                # The wait for its turn may have left it too little time.
                was_short = left < seconds / 2
                raise exception.PluginFailed(
                    f"the plugin {self.plugin_name} did not return in {left:.0f} s",
                    reason=exception.PluginReason.BUSY if was_short else None,
                ) from error

    def _busy(self) -> exception.PluginFailed:
        return exception.PluginFailed(
            f"the plugin {self.plugin_name} has not returned from an earlier call",
            reason=exception.PluginReason.BUSY,
        )

    def _run(self, function: Callable[..., _T], *args: object) -> _T:
        try:
            return function(*args)
        # Some libraries just exit, and CancelledError is not an Exception either. The
        # thread is the call's own, so that the exception is meant for no other code.
        except BaseException as error:
            failure = exception.PluginFailed(
                # Also if its repr() fails.
                f"the plugin {self.plugin_name} failed: {_SHOWN.repr(error)}"
            )
            if exception.is_exhaustion(error):
                failure.set_exhausted()
            raise failure from error


#: By name, root, and whether they load the plugin. A call that hangs keeps its entry:
#: the next initialization, which would leave one more thread, does not repeat it.
_calls = weakref.WeakValueDictionary[tuple[str, str, bool], PluginCalls]()


def _calls_of(name: str, root: str, *, loads: bool) -> PluginCalls:
    return _calls.setdefault((name, root, loads), PluginCalls(name))


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

    A property of the vendor's may fail when it is read again, and a plugin may replace
    its attributes.

    :ivar options: its options with their values, as text.
    """

    plugin: base.PluginBase
    options: str
    is_fallback: bool
    always_reports_function_id: bool
    contexts: tuple[Context, ...]
    health_step: Step[HealthReading] | None
    own_vfio_drivers: frozenset[str]
    caller: PluginCalls


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
        return tuple([each.plugin for each in self._made.values()])

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
    def always_reporting(self) -> frozenset[str]:
        """The names of the plugins whose intact regions always report a function id."""
        made = self._made.items()
        return frozenset(name for name, e in made if e.always_reports_function_id)

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
        """Call a plugin's method; see :meth:`PluginCalls.call`.

        :raises PluginFailed: it raised an exception, or does not return.
        """
        made = self._made[self.name_of(plugin)]
        return made.caller.call(seconds, function, *args)

    def name_of(self, plugin: base.PluginBase) -> str:
        """Return the name of a plugin as loaded; it may have changed its own."""
        (name,) = [n for n, each in self._made.items() if each.plugin is plugin]
        return name

    def options_of(self, name: str) -> str:
        """Return the name and the options of a plugin as text, to be compared."""
        made = self._made.get(name)
        return made.options if made else repr((name, None))

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
    found = installed(enabled)
    for name in sorted({*enabled}.difference(each.name for each in found)):
        others = sorted(each.name for each in installed())
        raise exception.InvalidConfiguration(
            f"[os_acc] enabled_plugins names {name!r}, which is not installed",
            hint="install its package, or correct the name; installed plugins: "
            f"{', '.join(others) or 'none'}",
        )
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
    made.sort(key=lambda each: (each.is_fallback, each.caller.plugin_name))
    return Plugins(
        {each.caller.plugin_name: each for each in made},
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
    for each in installed(enabled):
        try:
            caller = PluginCalls(each.name)
            plugin = _imported(each, caller, math.inf)
            found = caller.call(_LOAD_SECONDS, lambda plugin: [*plugin.options], plugin)
        except exception.PluginFailed as error:
            LOG.error("the options of plugin %s are unknown: %s", each.name, error)
            continue
        if found:
            options.append((section_of(each.name), found))
    return options


def _imported(found: InstalledPlugin, caller: PluginCalls, deadline: float) -> Any:
    """Import the class of a plugin.

    :raises PluginFailed: there are several, or its import fails or does not end.
    """
    if found.conflict:
        raise exception.PluginFailed(found.conflict)
    seconds = deadlines.patience(deadline, _LOAD_SECONDS)
    try:
        return caller.call(seconds, found.points[0].load)
    except exception.PluginFailed as error:
        raise exception.PluginFailed(
            f"cannot be imported: {error.message}"
        ) from error.__cause__


def _make(
    conf: cfg.ConfigOpts, root: str, found: InstalledPlugin, deadline: float
) -> _Made:
    """Import and instantiate a plugin.

    :raises PluginFailed: it cannot be used, or its code fails or does not end.
    :raises DeviceStuck: the deadline has passed.
    """
    # A scan that hangs keeps its plugin from no load.
    loading = _calls_of(found.name, root, loads=True)
    caller = _calls_of(found.name, root, loads=False)

    def make(kind: Any) -> _Made:
        section = section_of(found.name)
        conf.register_group(cfg.OptGroup(section))
        conf.register_opts(kind.options, group=section)
        plugin = kind(found.name, conf[section], root)
        if not isinstance(plugin, base.PluginBase):
            raise TypeError(f"{kind!r} is not derived from PluginBase")
        # The option of a wrong value is named now, and fails no scan later.
        options = repr((found.name, sorted(conf[section].items())))
        return _with_attributes(plugin, options, caller)

    kind = _imported(found, loading, deadline)
    seconds = deadlines.patience(deadline, _LOAD_SECONDS)
    version = loading.call(seconds, getattr, kind, "contract_version", None)
    _check_contract(found.name, version)
    return loading.call(deadlines.patience(deadline, _LOAD_SECONDS), make, kind)


def _with_attributes(
    plugin: base.PluginBase, options: str, caller: PluginCalls
) -> _Made:
    """Read and check the attributes of a plugin that the library uses.

    :raises AttributeError: its constructor does not call that of PluginBase.
    :raises TypeError, ValueError: an attribute has another type, or its name was
        changed.
    """
    if plugin.name != caller.plugin_name:
        raise TypeError(f"its name is {plugin.name!r}, not that of its entry point")
    is_fallback = plugin.is_fallback
    expect("its is_fallback", is_fallback, bool)
    always_reports = plugin.always_reports_function_id
    expect("its always_reports_function_id", always_reports, bool)
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
        if not is_driver_name(driver) or is_vfio_driver(driver):
            raise TypeError(
                f"its own_vfio_drivers has {driver!r}: it names drivers of the host, "
                "without the word vfio, as plain text"
            )
    return _Made(
        plugin,
        options,
        is_fallback,
        always_reports,
        contexts,
        step,
        frozenset(drivers),
        caller,
    )


def _check_contract(name: str, version: object) -> None:
    """Check the name of a plugin, and the version of the contract that it declares.

    :raises PluginFailed: it cannot be used.
    """
    # The privileged helper records it.
    if not is_driver_name(name):
        raise exception.PluginFailed(
            "the name of its entry point is not at most 64 letters, digits and "
            "characters of _.+:- of ASCII, with a letter, a digit or _ first"
        )
    major, minor = base.CONTRACT_VERSION
    if (
        not isinstance(version, tuple)
        or [*map(type, version)] != [int, int]
        or not (major, 0) <= version <= (major, minor)
    ):
        raise exception.PluginFailed(
            f"its contract_version is {exception.show(version)}; this os_acc supports "
            f"{major}.0 to {major}.{minor}"
        )
