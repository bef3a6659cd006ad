# SPDX-License-Identifier: Apache-2.0

"""Creation of the managers of a process: one for each node."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

from oslo_config import cfg
from oslo_log import log

from os_acc import conf, deadlines, exception, inspection
from os_acc.attach import (
    Services,
    external_events,
    lifecycle,
    manager,
    programming,
    recovery,
    region_operations,
    serialize,
)
from os_acc.bitstreams import library
from os_acc.bitstreams.options import BitstreamSettings
from os_acc.helper import client, reconciliation
from os_acc.host import numa
from os_acc.inventory import catalog, discovery, monitor, snapshots, sriov
from os_acc.node import Node
from os_acc.numa.network_options import NetworkAffinity
from os_acc.objects import device_spec
from os_acc.objects.api import AcceleratorEntry
from os_acc.objects.lease import Owner
from os_acc.placement import sync
from os_acc.plugins import loader
from os_acc.profiles.expansion import ProfileLookup
from os_acc.store import snapshot, state_files
from os_acc.store.leases import Store
from os_acc.store.locks import Locks

LOG = log.getLogger(__name__)

#: The share of the remaining time for the replay of unfinished leases, and of the rest
#: for VFs: a stuck device must not prevent others from being offered.
_REPLAY_SHARE = 0.5
_VFS_SHARE = 0.75

#: The first and the longest pause in seconds between two attempts to publish.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

#: The directory with ``sys`` and ``proc``; :mod:`os_acc.testing` replaces it.
default_root = "/"


class _Service:
    """The manager of a node, and the state that outlives it at a ``reset=True``.

    :ivar node: the handle that callers get.
    :ivar health: the faulty functions; the kernel reports a fault once.
    :ivar rejections: the rejections in the log.
    """

    def __init__(self, name: str) -> None:
        self.node = Node(name, self.current)
        self.health = monitor.FaultTracker()
        self.rejections = discovery.RejectionLog()
        self.manager: manager.Manager | None = None
        self.monitor: monitor.HostMonitor | None = None

    def current(self) -> manager.Manager:
        """Return the manager.

        :raises NotInitialized: the node is not initialized.
        """
        if self.manager is None:
            raise exception.NotInitialized(
                f"os_acc is not initialized for node {self.node.name}"
            )
        return self.manager

    def replace(self, ready: manager.Manager) -> None:
        """Make a new manager the current one, and start its threads."""
        before, self.manager = self.manager, ready
        if before is not None:
            before.retrier.stop()
        ready.retrier.start()
        if self.monitor is not None:
            self.monitor.stop()
        self.monitor = self._watch(ready)

    def _watch(self, ready: manager.Manager) -> monitor.HostMonitor | None:
        if ready.root != "/":
            # The kernel reports events of the real devices only.
            return None
        watcher = monitor.HostMonitor(self.health, ready.watch, snapshots.MAX_AGE)
        watcher.start()
        ready.health_steps.begin()
        return watcher


class Nodes:
    """The nodes of this process, by name.

    :ivar plain: the node that was last initialized without a ``node_name``.
    :ivar initializing: held by the thread that initializes a node.
    """

    def __init__(self, *ready: manager.Manager) -> None:
        self._services: dict[str, _Service] = {}
        self.plain: str | None = None
        self.initializing = threading.Lock()
        deadlines.reset_after_fork(self)
        for each in ready:
            self.service(each.settings.node_name).manager = each

    def service(self, name: str) -> _Service:
        """Return the service of a node; create it if there is none."""
        return self._services.setdefault(name, _Service(name))

    def default(self) -> _Service:
        """Return the service that the functions of :mod:`os_acc` use.

        :raises NotInitialized: there is none, or none of several is the plain one.
        """
        ready = {
            name: each
            for name, each in tuple(self._services.items())
            if each.manager is not None
        }
        if self.plain in ready:
            return ready[self.plain]
        if not ready:
            raise exception.NotInitialized("os_acc is not initialized")
        if len(ready) > 1:
            raise exception.NotInitialized(
                f"os_acc serves several nodes: {', '.join(sorted(ready))}",
                hint="use the methods of the os_acc.Node that initialize() returned",
            )
        return next(iter(ready.values()))

    def check_state_path(self, settings: conf.Settings) -> None:
        """Check that no other node of this process has the same state directory.

        :raises InvalidConfiguration: another node has it.
        """
        wanted = os.path.realpath(settings.state_path)
        # Another thread may add a node meanwhile.
        for name, each in tuple(self._services.items()):
            if each.manager is None or name == settings.node_name:
                continue
            if os.path.realpath(each.manager.settings.state_path) == wanted:
                raise exception.InvalidConfiguration(
                    f"[os_acc] state_path of node {settings.node_name} is "
                    f"{settings.state_path}, the state directory of node {name}",
                    hint="give each node a state_path of its own; to rename a node, "
                    "restart the service",
                )

    def forget_parent(self) -> None:
        """In a forked child, forget the parent's threads."""
        self.initializing = threading.Lock()
        for each in self._services.values():
            each.monitor = None


nodes = Nodes()


def get() -> manager.Manager:
    """Return the manager that the functions of :mod:`os_acc` use.

    :raises NotInitialized: initialize() has not succeeded yet, or the process has
        several nodes.
    """
    return nodes.default().current()


def initialize(
    reset: bool = False,
    *,
    wait_for_placement: bool = False,
    node_name: str | None = None,
    config: cfg.ConfigOpts | None = None,
    unmanaged: bool = False,
    root: str | None = None,
    owner: Owner = Owner.NOVA,
) -> manager.Manager:
    """Create the manager of a node, once; see :func:`os_acc.initialize`.

    :param config: the service's configuration; None: the global one.
    :param root: the directory with ``sys`` and ``proc``; None: the process's.
    """
    begin = time.monotonic()
    for name, value in {
        "reset": reset,
        "wait_for_placement": wait_for_placement,
        "unmanaged": unmanaged,
    }.items():
        if type(value) is not bool:
            raise exception.InvalidInput(
                f"{name} is {exception.show(value)}, not True or False"
            )
    config = checked_config(config)
    title = conf.node_name(config, node_name)
    ready = nodes.service(title).manager
    if ready is None or reset:
        where = root or default_root
        ready = _initialize(title, reset, config, where, owner, unmanaged)
    state_files.record_node_name(
        ready.settings.state_path, None if node_name is None else title
    )
    if node_name is None:
        nodes.plain = title
    if wait_for_placement:
        _wait_for_placement(ready, begin + ready.settings.initialize_timeout)
    return ready


def recorded(config: cfg.ConfigOpts | None) -> dict[str, list[AcceleratorEntry]]:
    """See :func:`os_acc.recorded`."""
    found = snapshot.read(conf.state_path(checked_config(config)))
    if found.damaged_claims:
        LOG.warning(
            "damaged records of leases claim %s: their instances are unknown",
            ", ".join(map(str, found.damaged_claims)),
        )
    return serialize.by_consumer(found.leases)


def checked_config(config: object) -> cfg.ConfigOpts:
    """Return the configuration; None: the global one.

    :raises InvalidInput: it is no configuration.
    """
    if config is None:
        return cfg.CONF
    if not isinstance(config, cfg.ConfigOpts):
        raise exception.InvalidInput(
            f"config is {exception.show(config)}, not a ConfigOpts of oslo.config"
        )
    return config


def _initialize(
    name: str,
    reset: bool,
    config: cfg.ConfigOpts,
    root: str,
    owner: Owner,
    unmanaged: bool,
) -> manager.Manager:
    settings = conf.Settings.load(config, name)
    deadline = time.monotonic() + settings.initialize_timeout
    busy = exception.InitializeTimeout("another thread is still initializing")
    with deadlines.alone(nodes.initializing, deadline, busy), _in_time(settings):
        service = nodes.service(name)
        if service.manager is None or reset:
            nodes.check_state_path(settings)
            ready = _build(config, settings, root, owner, unmanaged, deadline, service)
            service.replace(ready)
        return service.current()


def _wait_for_placement(ready: manager.Manager, deadline: float) -> None:
    """Publish the devices and traits; repeat while the cause of a failure can pass."""
    pause = _FIRST_PAUSE
    while (error := _unpublished(ready, deadline)) is not None:
        if time.monotonic() + pause >= deadline:
            raise exception.InitializeTimeout(
                "Placement does not have the accelerators of this host after "
                f"{ready.settings.initialize_timeout:.0f} s: {error.message}",
                hint=error.hint,
            ) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _unpublished(
    ready: manager.Manager, deadline: float
) -> exception.OsAccError | None:
    """Publish once; return the error of a failure that can pass."""
    try:
        refused = [each.error for each in ready.publish(deadline).refused]
    except exception.OsAccError as error:
        refused = [error]
    for each in refused:
        if not each.retryable:
            raise each
    return refused[0] if refused else None


def build(
    config: cfg.ConfigOpts,
    root: str,
    owner: Owner,
    unmanaged: bool = True,
    *,
    makes_vfs: bool = True,
) -> manager.Manager:
    """Create a separate manager; see :func:`initialize`.

    :param makes_vfs: whether to make the VFs that ``num_vfs`` requests.
    """
    settings = conf.Settings.load(config)
    deadline = time.monotonic() + settings.initialize_timeout
    with _in_time(settings):
        service = _Service(settings.node_name)
        return _build(
            config, settings, root, owner, unmanaged, deadline, service, makes_vfs
        )


@contextlib.contextmanager
def _in_time(settings: conf.Settings) -> Iterator[None]:
    try:
        yield
    except exception.DeviceStuck as error:
        raise exception.InitializeTimeout(
            f"initialization took longer than {settings.initialize_timeout:.0f} s: "
            f"{error.message}"
        ) from error


def _log_failed_start(plugin: str, start: futures.Future[None]) -> None:
    # It fails the steps of this plugin alone.
    if (error := start.exception()) is not None:
        LOG.error("%s; the privileged steps of plugin %s will fail", error, plugin)


def _build(
    config: cfg.ConfigOpts,
    settings: conf.Settings,
    root: str,
    owner: Owner,
    unmanaged: bool,
    deadline: float,
    service: _Service,
    makes_vfs: bool = True,
) -> manager.Manager:
    """Create a manager: the steps of :func:`initialize` in their order.

    1. read the options, 2. load plugins, 3. open the store, 4. start the helper,
    5. settle leases, 6. create VFs, 7. scan the host; :func:`initialize` adds threads.
    """
    rules = inspection.rules(settings, unmanaged)
    networks = _networks(config, root, owner)
    loaded = loader.load(config, root, settings.enabled_plugins, deadline)
    store = Store.open(settings.state_path, inspection.STORE_SECONDS, deadline=deadline)
    locks = Locks(settings.state_path)
    helper = client.Helper(
        settings.write_timeout, settings.helper_start_timeout, settings.node_name
    )
    helper.start(deadline)
    for name, context in loaded.contexts:
        note = functools.partial(_log_failed_start, name)
        helper.begin(context).over.add_done_callback(note)
    services = Services(root, store, locks, helper, loaded, settings.state_path)
    images = library.build(config, settings.state_path)
    programmer = programming.Programmer(services, images)
    reconciler = reconciliation.Reconciler(helper)
    offered = catalog.Catalog(
        *(root, settings.node_name, rules, loaded, store),
        *(service.rejections, service.health, reconciler),
    )
    life = lifecycle.Lifecycle(services, programmer, offered.offered, rules.nova)
    recover = recovery.Recovery(services, life, offered)
    recover.replay(_part(deadline, _REPLAY_SHARE))
    # Before VFs are created: a guest may have a PF whose lease is lost.
    reconciler.recorded_state(store.until(deadline), deadline)
    vfs = sriov.VfMaker(root, rules, store, locks, helper)
    if makes_vfs:
        vfs.make(_part(deadline, _VFS_SHARE), is_start=True)
    regions = region_operations.RegionOperations(
        services,
        life,
        programmer,
        offered,
        at_release=BitstreamSettings.load(config).reprogram_at_release,
    )
    ready = manager.Manager(
        services,
        settings,
        life,
        programmer,
        owner,
        offered,
        ProfileLookup(config),
        new_publisher(config, settings),
        regions,
        recover,
        recovery.Retrier(recover, life, offered, regions, settings),
        external_events.NovaEvents(config),
        networks,
        vfs,
    )
    ready.discover(deadline)
    if offered.read_health():
        ready.discover(deadline)
    if loaded.loaded and len(loaded.hanging()) == len(loaded.loaded):
        raise exception.InitializeTimeout(
            f"no plugin has answered in time: {', '.join(loaded.hanging())}"
        )
    return ready


def _networks(
    config: cfg.ConfigOpts, root: str, owner: Owner
) -> Callable[[], NetworkAffinity]:
    """Return a function that returns the NUMA nodes of the host's networks.

    Nova's service does not start with invalid options. The command reads them for a
    guest with networks only: it has to give devices back in any case.
    """
    if owner is Owner.COMMAND:
        return lambda: NetworkAffinity.load(config)
    affinity = NetworkAffinity.load(config)
    if affinity.physnets or affinity.tunnel:
        affinity.on(numa.read_topology(root))
    return lambda: affinity


def new_publisher(config: cfg.ConfigOpts, settings: conf.Settings) -> sync.Publisher:
    """Return the publisher; it sends no request to Placement yet.

    :raises InvalidConfiguration: an entry of ``device_spec`` is invalid.
    """
    named = device_spec.parse(settings.device_spec).resource_classes
    return sync.Publisher(config, settings.node_name, named=named)


def _part(deadline: float, share: float) -> float:
    return deadline - (deadline - time.monotonic()) * (1 - share)
