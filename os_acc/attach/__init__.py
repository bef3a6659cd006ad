# SPDX-License-Identifier: Apache-2.0

"""Plug and unplug: plan leases, prepare devices, give them back."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence

from os_acc.helper.errors import EpochRefused
from os_acc.objects.lease import Lease, latest

if typing.TYPE_CHECKING:
    from os_acc.helper.client import Helper
    from os_acc.plugins.loader import Plugins
    from os_acc.store.leases import Store
    from os_acc.store.locks import Locks


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The objects that the parts of a plug share; one for each manager.

    :ivar root: the directory with ``sys`` and ``proc``; ``/`` except in tests.
    :ivar store: the leases.
    :ivar locks: the locks of consumers, cards and images, across processes.
    :ivar helper: the client of the privileged helper.
    :ivar plugins: the plugins that are loaded.
    :ivar state_path: the directory of the store, also of the refusals of plugins.
    """

    root: str
    store: Store
    locks: Locks
    helper: Helper
    plugins: Plugins
    state_path: str

    def with_epoch(
        self, step: Callable[[Lease, float], object], lease: Lease, deadline: float
    ) -> Lease:
        """Run a privileged step; repeat it once if its epoch is refused.

        :returns: the lease with the epoch that the helper has accepted.
        """
        try:
            step(lease, deadline)
        except EpochRefused as error:
            (lease,) = self.accepted([lease], error, deadline)
            step(lease, deadline)
        return lease

    def accepted(
        self, leases: Sequence[Lease], error: EpochRefused, deadline: float
    ) -> tuple[Lease, ...]:
        """Return the leases, those of the refusing device with an accepted epoch.

        After the loss of a store, epochs continue above those that the helper has
        seen; epochs issued while the clock was ahead come back to the present.
        """

        def is_about(lease: Lease) -> bool:
            card = (lease.region.card,) if lease.region else ()
            return error.address in map(str, (*lease.members, *card))

        found = [each for each in leases if is_about(each)]
        fresh = self.store.until(deadline).replace(found or leases, error.accepted)
        return latest(leases, fresh)
