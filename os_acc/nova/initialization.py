# SPDX-License-Identifier: Apache-2.0

"""The node's handle for the virt driver, also while os_acc cannot serve.

nova-compute has to start although the helper or the store is not available: servers
without accelerators do not need them. Until an attempt succeeds, the driver answers
from the store alone, withdraws the providers, and refuses servers with accelerators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from oslo_config import cfg
from oslo_log import log

import os_acc
from os_acc import deadlines, exception
from os_acc.nova import coexistence, conversion
from os_acc.objects.api import AcceleratorEntry, InstanceDict

LOG = log.getLogger(__name__)


class DeferredNode:
    """The handle of a node that is initialized now, or later by a thread.

    :param name: Nova's name of the compute node.
    :param initialize: returns the handle, or raises.
    :param interval: seconds between two attempts.
    :param config: the configuration of os_acc; None: that of the process.
    """

    def __init__(
        self,
        name: str,
        initialize: Callable[[], os_acc.Node],
        interval: float,
        config: cfg.ConfigOpts | None = None,
    ) -> None:
        self._name, self._initialize, self._interval = name, initialize, interval
        self._config = config
        self._node: os_acc.Node | None = None
        self._failure: exception.OsAccError | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Initialize the node; repeat in a thread if os_acc cannot serve now.

        :raises InvalidConfiguration: an option has an invalid value.
        :raises DeviceStuck: there is no thread for the repetition.
        """
        if not self._attempt():
            deadlines.start(self._repeat)

    def stop(self) -> None:
        """End the thread after its attempt."""
        self._ended.set()

    def _attempt(self) -> bool:
        try:
            coexistence.check_classes(self._config or cfg.CONF)
            self._node = self._initialize()
        except exception.InvalidConfiguration:
            raise
        except exception.OsAccError as error:
            self._failure = error
            LOG.error("os_acc cannot serve; servers with accelerators fail: %s", error)
            return False
        LOG.info("os_acc serves the accelerators of node %s", self._name)
        return True

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                if self._attempt():
                    return
            except exception.InvalidConfiguration as error:
                self._failure = error
                LOG.error("os_acc is not initialized until a restart: %s", error)
                return

    def ready(self) -> os_acc.Node:
        """Return the node.

        :raises OsAccError: it cannot serve; the error of the last attempt.
        """
        if self._node is None:
            raise self._failure or exception.NotInitialized("os_acc is not initialized")
        return self._node

    # -- answers without a node ----------------------------------------------------

    def attached(
        self, instance_info: InstanceDict | None = None
    ) -> dict[str, list[AcceleratorEntry]]:
        """See :func:`os_acc.attached`; the store answers also without a node."""
        if self._node is not None:
            return self._node.attached(instance_info)
        held = os_acc.recorded(self._config)
        if instance_info is None:
            return held
        consumer = instance_info["uuid"]
        return {consumer: held[consumer]} if consumer in held else {}

    def owns_any(self, allocations: Mapping[str, Any]) -> bool:
        """See :func:`os_acc.owns_any`.

        Without a node, units that may be of an accelerator count.
        """
        if self._node is not None:
            return self._node.owns_any(allocations)
        return bool(conversion.accelerator_amounts(allocations))

    def update_provider_tree(self, provider_tree: Any, nodename: str) -> None:
        """Publish the accelerators, or reserve them while os_acc cannot serve."""
        if self._node is not None:
            self._node.update_provider_tree(provider_tree, nodename)
        else:
            os_acc.withdraw_providers(
                provider_tree, nodename, node_name=self._name, config=self._config
            )
