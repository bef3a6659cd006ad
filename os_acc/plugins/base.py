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

"""The contract between os_acc and a vendor's plugin.

A plugin says which devices it knows and what they offer. Everything that is
dangerous is the library's work: locks, journal, rollback, deadlines, binding
to vfio-pci and back, reports.

A vendor ships a package with an entry point in the namespace ``os_acc``::

    [entry_points]
    os_acc =
        acme = acme_accelerator.plugin:AcmePlugin
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

from oslo_config import cfg

from os_acc.objects.claim import Claim
from os_acc.objects.device import Device, Handle

#: The version of this contract: (major, minor). A plugin is loaded where its
#: major is the same and its minor not higher.
API_VERSION = (1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """What a plugin may choose from: usable functions that the operator named.

    ``claims`` are sorted by address; each function stands in it with the
    whole of what a guest has to be given along with it.
    """

    claims: tuple[Claim, ...]


class PluginBase(abc.ABC):
    """A family of devices.

    A plugin is made once for each ``initialize()``; its methods are called
    from several threads. An exception from one of them sets the plugin, or
    the one device at hand, aside; it never stops the others.

    :param options: the plugin's group in the configuration.
    """

    #: The version of the contract that the plugin was written for.
    api_version: ClassVar[tuple[int, int]] = API_VERSION
    #: Its options, in the group ``[os_acc_<name of the entry point>]``.
    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: A generic plugin only gets what no other plugin takes.
    generic: ClassVar[bool] = False

    def __init__(self, name: str, options: cfg.ConfigOpts.GroupAttr) -> None:
        self.name = name
        self.conf = options

    @abc.abstractmethod
    def discover(self, candidates: Candidates) -> Iterable[Device]:
        """The devices that this plugin takes from the candidates.

        Read only and quick: it runs at each plug. A handle of a device is
        made by :meth:`Claim.handle`.
        """

    def prepare(self, handle: Handle) -> None:
        """Do what the device needs before it leaves its host driver.

        Called after the intent is on disk. It may be called again after a
        crash, and has to be idempotent; :meth:`release` is its inverse.
        """
        del handle

    def release(self, handle: Handle) -> None:
        """Undo :meth:`prepare`, once the device is back with its driver.

        Also called after a :meth:`prepare` that failed or never ran.
        """
        del handle
