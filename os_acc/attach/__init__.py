# SPDX-License-Identifier: Apache-2.0

"""Plug and unplug: plan leases, prepare devices, give them back."""

from __future__ import annotations

import dataclasses
import typing

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
