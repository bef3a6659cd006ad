# SPDX-License-Identifier: Apache-2.0

"""The one manager of a process, and how it is made ready."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator

from oslo_config import cfg
from oslo_log import log

from os_acc import conf, deadlines, exception, plugins
from os_acc.attach import lifecycle, manager, programming, release_retries
from os_acc.attach.services import Services
from os_acc.bitstreams import library
from os_acc.helper import client, reconciliation
from os_acc.inventory import catalog, discovery, monitor, snapshots, sriov
from os_acc.objects import device_spec
from os_acc.objects.lease import Owner
from os_acc.placement import sync
from os_acc.profiles.lookup import ProfileLookup
from os_acc.store import readonly
from os_acc.store.leases import Store
from os_acc.store.locks import Locks

LOG = log.getLogger(__name__)

#: Seconds that one transaction waits for those of other processes.
STORE_SECONDS = 10.0

#: What of the time that is left goes to what a crash has left, and of the rest
#: to VFs: a device that is stuck must not keep the others from being offered.
_REPLAY_SHARE = 0.5
_VFS_SHARE = 0.75

_lock = threading.Lock()
_manager: manager.Manager | None = None
_monitor: monitor.HostMonitor | None = None
# The kernel says it once: a reset must not forget it.
_health = monitor.FaultTracker()
#: What the log has been told, also by managers before a ``reset=True``.
_told = discovery.RejectionLog()


def _forget_parent() -> None:
    global _lock, _monitor
    _lock = threading.Lock()
    # A thread is not inherited.
    _monitor = None


os.register_at_fork(after_in_child=_forget_parent)


def get() -> manager.Manager:
    """The manager.

    :raises NotInitialized: initialize() has not succeeded yet.
    """
    if _manager is None:
        raise exception.NotInitialized("os_acc is not initialized")
    return _manager


def initialize(
    reset: bool = False,
    *,
    config: cfg.ConfigOpts | None = None,
    root: str = "/",
    owner: Owner = Owner.NOVA,
) -> manager.Manager:
    """Make the manager, once; see :func:`os_acc.initialize`.

    :param config: the service's configuration; default the global one.
    :param root: where ``/sys`` and ``/proc`` are found; ``/`` but in tests.
    """
    global _manager, _monitor
    if type(reset) is not bool:
        raise exception.InvalidInput(
            f"reset is {exception.show(reset)}, not True or False"
        )
    if _manager is not None and not reset:
        return _manager
    config = config or cfg.CONF
    settings = conf.Settings.load(config)
    deadline = time.monotonic() + settings.initialize_timeout
    busy = exception.InitializeTimeout("another thread is still initializing")
    with deadlines.alone(_lock, deadline, busy), _in_time(settings):
        if _manager is None or reset:
            before, _manager = (
                _manager,
                _build(config, settings, root, owner, deadline, _health),
            )
            if before is not None:
                before.retrier.stop()
            _manager.retrier.start()
            if _monitor is not None:
                _monitor.stop()
            _monitor = _watch(_manager)
        return _manager


def _watch(of: manager.Manager) -> monitor.HostMonitor | None:
    """Keep the published inventory current; see :mod:`os_acc.inventory.monitor`."""
    if of.root != "/":
        # The kernel speaks of its own devices only.
        return None
    watcher = monitor.HostMonitor(_health, of.refresh, snapshots.MAX_AGE)
    watcher.start()
    return watcher


def build(config: cfg.ConfigOpts, root: str, owner: Owner) -> manager.Manager:
    """A manager of one's own; see :func:`initialize`."""
    settings = conf.Settings.load(config)
    deadline = time.monotonic() + settings.initialize_timeout
    with _in_time(settings):
        return _build(config, settings, root, owner, deadline, monitor.FaultTracker())


@contextlib.contextmanager
def _in_time(settings: conf.Settings) -> Iterator[None]:
    try:
        yield
    except exception.DeviceStuck as error:
        raise exception.InitializeTimeout(
            f"not ready in {settings.initialize_timeout:.0f} s: {error.message}"
        ) from error


def _build(
    config: cfg.ConfigOpts,
    settings: conf.Settings,
    root: str,
    owner: Owner,
    deadline: float,
    health: monitor.FaultTracker,
) -> manager.Manager:
    """Everything that initialize() does, in its order.

    1. options, 2. plugins, 3. store, 4. helper, 5. what a crash has left,
    6. virtual functions, 7. a first look at the devices. :func:`initialize`,
    which makes the manager of a service, then starts its threads.
    """
    rules = _rules(settings)
    loaded = plugins.load(config, root, settings.enabled_plugins, deadline)
    store = Store.open(settings.state_path, STORE_SECONDS, deadline=deadline)
    locks = Locks.below(settings.state_path)
    helper = client.Helper(settings.write_timeout, settings.helper_start_timeout)
    helper.start(deadline)
    images = library.build(config, settings.state_path, locks)
    services = Services(root, store, locks, helper, loaded)
    programmer = programming.Programmer(services, images)
    life = lifecycle.Lifecycle(services, programmer)
    life.replay(_part(deadline, _REPLAY_SHARE))
    reconciler = reconciliation.Reconciler(helper)
    # Before VFs are made: a PF may be with a guest whose lease is lost.
    reconciler.recorded_state(store.until(deadline), deadline)
    sriov.make(root, rules, store, locks, helper, _part(deadline, _VFS_SHARE))
    offered = catalog.Catalog(
        root, settings.node_name, rules, loaded, store, _told, health, reconciler
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
        release_retries.Retrier(
            life, offered, settings.release_retry_interval, settings.write_timeout
        ),
    )
    ready.discover(deadline)
    if loaded.loaded and len(loaded.hanging()) == len(loaded.loaded):
        raise exception.InitializeTimeout(
            f"no plugin has answered: {', '.join(loaded.hanging())}"
        )
    return ready


def new_publisher(config: cfg.ConfigOpts, settings: conf.Settings) -> sync.Publisher:
    """Who tells Placement; nothing is asked of it yet.

    :raises InvalidConfiguration: an entry cannot be read.
    """
    named = device_spec.parse(settings.device_spec).resource_classes
    return sync.Publisher(config, settings.node_name, named=named)


def _part(deadline: float, share: float) -> float:
    now = time.monotonic()
    return now + (deadline - now) * share


@dataclasses.dataclass(frozen=True, slots=True)
class HostInspection:
    """What is there at one moment, for somebody who changes nothing."""

    stock: discovery.Inventory
    recorded: readonly.StoreSnapshot
    plugins: plugins.Plugins


def look(config: cfg.ConfigOpts, root: str) -> HostInspection:
    """See what is there: no helper, no replay, no file and no VF is made.

    :raises OsAccError: options, store or host cannot be read.
    """
    settings = conf.Settings.load(config)
    recorded = readonly.read(settings.state_path, STORE_SECONDS)
    loaded = plugins.load(config, root, settings.enabled_plugins)
    stock = discovery.discover(
        root, _rules(settings), loaded, settings.node_name, recorded
    )
    return HostInspection(stock, recorded, loaded)


def _rules(settings: conf.Settings) -> discovery.OperatorRules:
    return discovery.OperatorRules(
        named=device_spec.parse(settings.device_spec),
        nova=device_spec.nova_claims(settings.nova_device_spec),
        nova_policies=device_spec.nova_numa_policies(settings.nova_aliases),
        nova_mdev_parents=device_spec.nova_mdev_addresses(settings.nova_mdev_addresses),
        nova_mdev_types=frozenset(settings.nova_mdev_types),
    )
