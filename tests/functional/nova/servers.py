# SPDX-License-Identifier: Apache-2.0

"""Nova's API, conductor, scheduler and compute manager, and Placement, in this process.

The virt driver is Nova's fake one, and os_acc adds its providers to the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixtures
from nova.tests.functional import integrated_helpers
from nova.virt import fake

from tests.functional.nova import operations
from tests.functional.nova.compute import Update

#: Methods of a virt driver that start or end the process of a guest.
_OF_GUEST = (
    "destroy",
    "power_off",
    "power_on",
    "reboot",
    "rescue",
    "resume",
    "spawn",
    "suspend",
)


def _noted(name: str, calls: list[str]) -> Callable[..., Any]:
    def method(driver: fake.FakeDriver, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(fake.FakeDriver, name)(driver, *args, **kwargs)

    return method


def _driver(update: Update, calls: list[str], dumps: list[str]) -> type[Any]:
    class OsAccDriver(fake.FakeDriver):  # type: ignore[misc]
        def trigger_crash_dump(self, instance: Any) -> None:
            dumps.append(instance.uuid)

        def update_provider_tree(
            self, provider_tree: Any, nodename: str, allocations: Any = None
        ) -> None:
            super().update_provider_tree(provider_tree, nodename, allocations)
            update(provider_tree, nodename)

    for name in _OF_GUEST:
        setattr(OsAccDriver, name, _noted(name, calls))
    return OsAccDriver


class Servers(
    operations.ServerOperations,
    integrated_helpers.ProviderUsageBaseTestCase,  # type: ignore[misc]
):
    """One compute node, and the operations of ``openstack server`` on it.

    :param host: the name of the compute service and of its node.
    :ivar guest_calls: the driver's methods that Nova has called to start or end the
        process of a guest.
    :ivar dumps: the servers whose crash dump Nova has triggered.
    """

    #: Below ``nova.virt``, where Nova looks for drivers.
    compute_driver = "fake.OsAccDriver"

    def __init__(self, host: str, update: Update) -> None:
        super().__init__()
        self._host = host
        self.guest_calls: list[str] = []
        self.dumps: list[str] = []
        self._driver = _driver(update, self.guest_calls, self.dumps)

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.MonkeyPatch(f"nova.virt.{self.compute_driver}", self._driver)
        )
        self._compute = self.start_service("compute", host=self._host)

    def reclaim(self, server: dict[str, Any]) -> None:
        """Run Nova's periodic task an hour later."""
        self._reclaim(self._compute, server)
