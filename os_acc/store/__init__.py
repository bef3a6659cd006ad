# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What has to survive a crash: leases, the journal, and the locks beside them."""

from __future__ import annotations

from os_acc.store.database import StoreDamaged, owner_of
from os_acc.store.journal import Event, Operation
from os_acc.store.leases import Store
from os_acc.store.locks import Locks, consumer_lock, device_lock
from os_acc.store.refusals import AlreadyLeased, StaleLease

__all__ = [
    "AlreadyLeased",
    "Event",
    "Locks",
    "Operation",
    "StaleLease",
    "Store",
    "StoreDamaged",
    "consumer_lock",
    "device_lock",
    "owner_of",
]
