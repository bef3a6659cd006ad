# SPDX-License-Identifier: Apache-2.0

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
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Protocol

from oslo_config import cfg

from os_acc.objects.claim import NamedFunction, UsableFunction
from os_acc.objects.device import Device, Handle, RejectedDevice
from os_acc.objects.image import Bitstream
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region

#: The version of this contract: (major, minor). A plugin is loaded where its
#: major is the same and its minor not higher.
API_VERSION = (1, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """What a plugin may choose from: usable functions that the operator named.

    ``claims`` are sorted by address; each function stands in it with the
    whole of what a guest has to be given along with it.

    :ivar root: where ``/sys`` is found; ``/`` but in tests.
    :ivar regions: the FPGA regions behind functions that are leased. A guest
        has those: the host may see nothing of them.
    :ivar named: every function that the operator named, sorted by address. What
        a device is named after must not depend on which of them are usable at
        the moment: its name is that of its provider. Since version 1.2.
    :ivar places: the functions that providers on record are named after. Where
        several could name a device, one of these is to. Since version 1.2.
    """

    claims: tuple[UsableFunction, ...]
    root: str = "/"
    regions: Mapping[PciAddress, Region] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    named: tuple[NamedFunction, ...] = ()
    places: frozenset[PciAddress] = frozenset()


class PrivilegedSteps(Protocol):
    """Privileged steps that the library takes for a plugin that programs.

    Each is bound to one plug: its deadline, its locks, its journal.
    """

    def reconfigure(self, region: Region, bitstream: Bitstream) -> None:
        """Let the kernel's DFL driver program a region.

        :raises ProgrammingFailed: the hardware has not taken it.
        :raises HostError: the host refused it.
        """

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        """Let XRT's tools load an xclbin into the user partition of a card.

        :raises ProgrammingFailed: the card has not taken it, in XRT's words.
        :raises HostError: the host refused it.
        """


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
    #: Whether a region names what it holds whenever it is in order. One that names
    #: nothing is half-way then: it only goes to who has it programmed.
    is_always_readable: ClassVar[bool] = False
    #: A generic plugin only gets what no other plugin takes.
    generic: ClassVar[bool] = False

    def __init__(self, name: str, options: cfg.ConfigOpts.GroupAttr) -> None:
        self.name = name
        self.conf = options

    @abc.abstractmethod
    def discover(self, candidates: Candidates) -> Iterable[Device | RejectedDevice]:
        """The devices that this plugin takes from the candidates.

        Read only and quick: it runs at each plug. A handle of a device is
        made by :meth:`Claim.handle`. What a plugin knows and finds unfit is
        refused with a reason: then no other plugin offers it.
        """

    def prepare(self, handle: Handle) -> None:
        """Do what the device needs before it leaves its host driver.

        Called after the intent is on disk. It may be called again after a
        crash, and has to be idempotent; :meth:`release` is its inverse.
        """
        del handle

    def read_region(self, root: str, region: Region) -> Region | None:
        """What a region holds now, by the hardware; None: it cannot be seen.

        Called before and after :meth:`program`.
        """
        del root, region
        return None

    def program(
        self, region: Region, bitstream: Bitstream, steps: PrivilegedSteps
    ) -> None:
        """Program a region that no guest has; return when it is done.

        The library has locked the card, verified the file, recorded that the
        region holds nothing known, and reads back afterwards.
        """
        raise NotImplementedError(f"{self.name} programs nothing: {region}")

    def release(self, handle: Handle) -> None:
        """Undo :meth:`prepare`, once the device is back with its driver.

        Also called after a :meth:`prepare` that failed or never ran.
        """
        del handle
