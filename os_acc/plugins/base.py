# SPDX-License-Identifier: Apache-2.0

"""The contract between os_acc and a vendor's plugin.

A plugin identifies its devices and describes their properties. The library does
all dangerous work: locks, journal, rollback, deadlines, binding to vfio-pci and
restoring, reports.

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

#: The version of this contract: (major, minor). A plugin is loaded if its major
#: is the same and its minor not higher.
API_VERSION = (1, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The usable functions that the operator named, for a plugin to select from.

    ``claims`` are sorted by address; each contains a function and all functions
    that a guest must get along with it.

    :ivar root: parent directory of ``/sys``; ``/`` except in tests.
    :ivar regions: the FPGA regions of leased functions. They are in use by
        guests; the host may not be able to read them.
    :ivar named: every function that the operator named, sorted by address. The
        function that names a device must not depend on which ones are usable
        at the moment: the provider has that name. Since version 1.2.
    :ivar places: the functions that name recorded providers. Among several
        functions that could name a device, prefer one of these. Since version
        1.2.
    """

    claims: tuple[UsableFunction, ...]
    root: str = "/"
    regions: Mapping[PciAddress, Region] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    named: tuple[NamedFunction, ...] = ()
    places: frozenset[PciAddress] = frozenset()


class PrivilegedSteps(Protocol):
    """Privileged steps that the library performs for a programming plugin.

    Each is bound to one plug: its deadline, its locks, its journal.
    """

    def reconfigure(self, region: Region, bitstream: Bitstream) -> None:
        """Have the kernel's DFL driver program a region.

        :raises ProgrammingFailed: the hardware rejected the bitstream.
        :raises HostError: the host refused it.
        """

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        """Have XRT's tools load an xclbin into the user partition of a card.

        :raises ProgrammingFailed: the card rejected the xclbin; the message is
            XRT's.
        :raises HostError: the host refused it.
        """


class PluginBase(abc.ABC):
    """A family of devices.

    A plugin is instantiated once for each ``initialize()``; its methods are
    called from several threads. An exception from one of them sets the plugin,
    or the device concerned, aside; it never stops the others.

    :param options: the plugin's group in the configuration.
    """

    #: The version of the contract for which the plugin was written.
    api_version: ClassVar[tuple[int, int]] = API_VERSION
    #: Its options, in the group ``[os_acc_<name of the entry point>]``.
    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: True if an intact region always reports its contents. A region that reports
    #: none is then partly programmed, and only used by requests that program it.
    is_always_readable: ClassVar[bool] = False
    #: A generic plugin only gets functions that no other plugin takes.
    generic: ClassVar[bool] = False

    def __init__(self, name: str, options: cfg.ConfigOpts.GroupAttr) -> None:
        self.name = name
        self.conf = options

    @abc.abstractmethod
    def discover(self, candidates: Candidates) -> Iterable[Device | RejectedDevice]:
        """Return the devices that this plugin takes from the candidates.

        The method must be read-only and fast: it runs at each plug. Use
        :meth:`Claim.handle` to create the handles of a device. A plugin rejects a
        device that it recognises but cannot serve, with a reason: then no other
        plugin offers it.
        """

    def prepare(self, handle: Handle) -> None:
        """Prepare the device before it is unbound from its host driver.

        The intent is on disk when this method is called. It may be called again
        after a crash, and has to be idempotent; :meth:`release` is its inverse.
        """
        del handle

    def read_region(self, root: str, region: Region) -> Region | None:
        """Return the contents of a region, read from hardware; None: unreadable.

        It is called before and after :meth:`program`.
        """
        del root, region
        return None

    def program(
        self, region: Region, bitstream: Bitstream, steps: PrivilegedSteps
    ) -> None:
        """Program a region that no guest uses; return when it is done.

        The library has locked the card, verified the file and recorded the region
        as unverified; it reads the region back afterwards.
        """
        raise NotImplementedError(f"{self.name} programs nothing: {region}")

    def release(self, handle: Handle) -> None:
        """Undo :meth:`prepare`, once the device is back with its driver.

        It is also called after a :meth:`prepare` that failed or never ran.
        """
        del handle
