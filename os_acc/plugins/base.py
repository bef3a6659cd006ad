# SPDX-License-Identifier: Apache-2.0

"""The contract between os_acc and a vendor's plugin.

A plugin identifies its devices and describes their properties. The library does
all dangerous work: locks, journal, rollback, deadlines, binding to vfio-pci and
restoring, reports.

A vendor ships a package with an entry point in the namespace ``os_acc``::

    [project.entry-points.os_acc]
    acme = "acme_accelerator.plugin:AcmePlugin"

``__all__`` of this module is the contract, and a plugin imports its names from
here. :class:`os_acc.privsep.Context` belongs to it, for privileged code of the
vendor's own. ``doc/source/contributor/plugins.rst`` has the rules.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, Protocol, TypeVar, TypeVarTuple

from oslo_config import cfg

from os_acc.exception import (
    BitstreamError,
    ChangeReason,
    DeviceChanged,
    DeviceGone,
    DeviceInUse,
    DeviceStuck,
    ErrorReason,
    Fault,
    HostError,
    HostStepFailed,
    ImageReason,
    ImageUnusable,
    OsAccError,
    ProgrammingFailed,
    ProgrammingReason,
    StepReason,
)
from os_acc.objects.bitstream import (
    Bitstream,
    BitstreamRequest,
    Header,
    Image,
    ImageFormat,
)
from os_acc.objects.device import (
    AttachHandle,
    Device,
    DeviceTags,
    Erasure,
    MatchedFunction,
    OfferedType,
    RejectedDevice,
    RejectReason,
    UsableFunction,
    VendorReason,
)
from os_acc.objects.lease import ErasureRecord, Guest, LeaseView, PriorBinding
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.objects.numa import Affinity, NUMAPolicy, PolicySources
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity, PciRole
from os_acc.objects.region import Region
from os_acc.objects.request_group import AttachTarget, GroupAllocation
from os_acc.privsep import Context, HealthReading, Step

__all__ = [
    "CONTRACT_VERSION",
    "Affinity",
    "AttachHandle",
    "AttachTarget",
    "Bitstream",
    "BitstreamError",
    "BitstreamRequest",
    "Candidates",
    "ChangeReason",
    "Device",
    "DeviceChanged",
    "DeviceGone",
    "DeviceInUse",
    "DeviceStuck",
    "DeviceTags",
    "Erasure",
    "ErasureRecord",
    "ErrorReason",
    "Fault",
    "GroupAllocation",
    "Guest",
    "Header",
    "HostError",
    "HostStepFailed",
    "Image",
    "ImageFormat",
    "ImageReason",
    "ImageUnusable",
    "LeaseView",
    "MatchedFunction",
    "MdevSlot",
    "MdevType",
    "NUMAPolicy",
    "OfferedType",
    "OsAccError",
    "PciAddress",
    "PciFunction",
    "PciIdentity",
    "PciRole",
    "PluginBase",
    "PolicySources",
    "PriorBinding",
    "PrivilegedSteps",
    "ProgrammingFailed",
    "ProgrammingReason",
    "ProgrammingSteps",
    "Region",
    "RejectReason",
    "RejectedDevice",
    "StepReason",
    "UsableFunction",
    "VendorReason",
]

#: The version of this contract: (major, minor).
CONTRACT_VERSION: Final = (1, 0)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The functions that a plugin selects its devices from.

    :ivar usable: the functions that may be attached to a guest, sorted by address,
        without those that another plugin has taken. A plugin takes functions from
        here alone.
    :ivar matched: all functions that ``[os_acc] device_spec`` matches, usable or
        not, sorted by address.
    :ivar provider_addresses: the functions on the host that recorded providers are
        named after. See :class:`Device` for its use.
    :ivar leased_regions: the regions of leased functions of this plugin, by the
        address of the function. The host may be unable to read them while a guest
        has the function. After a reboot ``function_id`` is None, and ``functions``
        is empty.
    :ivar mdev_types: the types of mediated devices that may be offered, without those
        that another plugin has taken.
    """

    usable: tuple[UsableFunction, ...]
    matched: tuple[MatchedFunction, ...] = ()
    provider_addresses: frozenset[PciAddress] = frozenset()
    leased_regions: Mapping[PciAddress, Region] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    mdev_types: tuple[OfferedType, ...] = ()


class PrivilegedSteps(Protocol):
    """The library's side of one plug or unplug.

    Later versions of the contract add methods here.
    """

    def seconds_left(self) -> float:
        """Return the seconds until the operation's deadline; 0.0 after it."""

    @property
    def lease(self) -> LeaseView:
        """The lease for which the plugin is called."""

    def run(self, step: Step[_T, *_Ts], *arguments: *_Ts) -> _T:
        """Run a privileged step of the vendor's on the device; return its value.

        The step runs in the helper of its context, under the lock of the lease's
        device, until the deadline of the operation (:meth:`seconds_left`), for 10
        minutes at most.

        :param step: of :meth:`os_acc.privsep.Context.step` or ``parent_step``.
        :param arguments: plain values, of the types that the step declares.
        :raises TypeError: they are of other types.
        :raises DeviceGone: the device has vanished.
        :raises DeviceChanged: another device has its address.
        :raises DeviceStuck: the step has not ended in time: it goes on, and keeps the
            device locked. Or another one has not ended, for which it waited.
        :raises HostStepFailed: the step raised an exception, or root's configuration
            does not allow it; ``errno`` is that of an OSError.
        :raises OsAccError: the helper is not available. A plugin lets the errors of a
            step pass: the library repeats what can be repeated.
        """


class ProgrammingSteps(PrivilegedSteps, Protocol):
    """The library's privileged steps for :meth:`PluginBase.program`.

    They belong to one plug, with its deadline, its locks and its journal. A plugin
    calls a step before it writes anything itself, and lets the errors of the step
    pass. If a step fails after the plugin has written, the plugin raises
    ProgrammingFailed from its error.
    """

    def program_dfl_port(self, region: Region, bitstream: Bitstream) -> None:
        """Program a port through the FPGA Management Engine (``dfl-pci``).

        :raises ImageUnusable: the file was altered, or is for another interface.
        :raises ProgrammingFailed: the hardware rejected the bitstream.
        :raises HostError: the kernel refused the step.
        """

    def load_xclbin(self, region: Region, bitstream: Bitstream) -> None:
        """Load an xclbin into the user partition of a card, with XRT's tools.

        :raises ImageUnusable: the file was altered, or is for another interface.
        :raises ProgrammingFailed: the card rejected the xclbin; the message is
            XRT's.
        :raises HostError: the host refused the step.
        """


class PluginBase(abc.ABC):
    """A family of devices.

    A plugin is instantiated once for each ``initialize()``. Its methods are called
    from several threads, without privileges, and with a time limit: a call that
    exceeds it is abandoned, and the plugin gets no other call until it returns. If
    nova-compute runs under eventlet, one call of a plugin runs at a time, in a thread
    of the kernel that ends with it: start no thread that outlives the call.
    A plugin that fails never stops the others.

    :param name: the name of its entry point.
    :param conf: its options, the group ``[os_acc_<name>]`` of the configuration.
    :param root: the directory with ``/sys``, ``/proc``, ``/dev`` and ``/run``; ``/``
        except in tests. A plugin reads every file below it.
    """

    #: The version of the contract for which the plugin was written: (major, minor).
    #: Each plugin declares it. It is loaded if its major number is that of
    #: :data:`CONTRACT_VERSION`, and its minor number is not higher.
    contract_version: ClassVar[tuple[int, int]]
    #: Its options.
    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: The contexts of its privileged steps. Their helpers are started with the
    #: library's own, and ``os-acc check`` covers them.
    contexts: ClassVar[Sequence[Context]] = ()
    #: Reads, as root, what no other user can read of the health of a function; made
    #: with :meth:`os_acc.privsep.Context.health_step`. The library runs it about once a
    #: minute, in a thread of the service, for each function of a device that no lease
    #: has taken. For a VF it reads the PF, while guests may use other VFs of that PF.
    health_step: Step[HealthReading] | None = None
    #: Drivers of the host that offer a function to VFIO themselves, without the word
    #: vfio in their names: a function stays on such a driver while a guest has it.
    #: ``device_spec`` names the driver with ``vfio_driver``, and no plugin but those
    #: that declare it gets the function. :meth:`prepare` makes the driver offer it, and
    #: :meth:`release` ends that.
    own_vfio_drivers: ClassVar[Sequence[str]] = ()
    #: Whether an intact region always reports a ``function_id``. A region that
    #: reports none is then partly programmed, and is programmed before its use.
    always_reports_function_id: ClassVar[bool] = False
    #: Whether the plugin only gets functions that no other plugin takes.
    is_fallback: ClassVar[bool] = False

    name: str
    conf: cfg.ConfigOpts.GroupAttr
    root: str

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        self.name = name
        self.conf = conf
        self.root = root

    @abc.abstractmethod
    def discover(self, candidates: Candidates) -> Iterable[Device | RejectedDevice]:
        """Return the devices that this plugin takes from the candidates.

        The method is read-only and fast: it runs at each plug, for 10 seconds at
        most. A plugin rejects a function of ``candidates.usable`` that it recognises
        but cannot serve, so that no other plugin offers it.

        The library checks each device, and rejects one that breaks a rule of the
        contract. After any exception the plugin offers nothing in this scan.
        """

    def prepare(self, handle: AttachHandle, steps: PrivilegedSteps) -> None:
        """Prepare an accelerator before its functions leave their host drivers.

        That is one for a guest, or one of :attr:`.Erasure.PLUGIN` for any consumer: see
        ``attach_target`` of ``steps.lease``.
        It may be called again after a crash, and is idempotent; :meth:`release` is
        its inverse. After any exception the plug fails, and is rolled back. The
        caller of the plug gets an error of the contract as it is, and any other
        exception as PluginFailed.
        """
        del handle, steps

    def migration_profile(self, lease: LeaseView) -> str | None:
        """Return what the target of a live migration has to have; None: the model,
        the type of the mediated device, the driver and its version.

        It is read-only, and called at both ends before anything is changed. After any
        exception the guest is not migrated.
        """
        del lease
        return None

    def accepts_migration(self, source: str, target: str) -> bool:
        """Return whether a device takes over the state of one with another profile.

        It is called at the target, for profiles that differ. Each begins with the name
        of the plugin and the resource class, before :meth:`migration_profile`.
        """
        del source, target
        return False

    def read_region(self, region: Region) -> Region | None:
        """Return the region as the hardware reports it now; None: unreadable.

        It is called before and after :meth:`program`. The result differs from
        ``region`` in ``interface_id``, ``function_id`` and ``functions`` alone, unless
        the card was replaced. After any exception the plug fails.
        """
        del region
        return None

    def functions_of(
        self, region: Region, bitstream: Bitstream
    ) -> Sequence[tuple[PciAddress, str]]:
        """Return ``Region.functions`` as they will be with a bitstream in the region.

        A plugin whose :meth:`read_region` returns ``functions`` implements this, too:
        the library selects the PCI function for a guest before it programs. It is
        read-only, and called before :meth:`program`. If :meth:`read_region` then
        returns another function for the PCI function of a guest, the plug fails.
        After any exception the plug fails.
        """
        del region, bitstream
        return ()

    def program(
        self, region: Region, bitstream: Bitstream, steps: ProgrammingSteps
    ) -> None:
        """Program a region that no guest uses; return when it is done.

        The library has locked the card, verified the file and recorded the region
        as unverified; it reads the region back afterwards. If the file in the cache
        was altered (ImageUnusable, INVALID), the library fetches it again and calls
        the method a second time.

        :raises BitstreamError: this bitstream cannot be programmed here. Nothing was
            written; the same holds for DeviceGone, DeviceChanged and DeviceInUse.
            None of them may be raised once something was written.
        :raises ProgrammingFailed: the hardware did not accept it. After this error
            and any other one the region remains unverified, unless a step of
            ``steps`` raised the error before it began.
        """
        raise NotImplementedError(f"{self.name} programs nothing: {region}")

    def release(self, handle: AttachHandle, steps: PrivilegedSteps) -> None:
        """Undo :meth:`prepare`, once the functions are back with their drivers.

        It is idempotent, and is also called after a :meth:`prepare` that failed or
        never ran. The library repeats it after DeviceInUse, after DeviceStuck, and
        after a HostStepFailed, OSError or MemoryError if memory or descriptors ran
        out (EMFILE, ENFILE, ENOMEM). DeviceGone and DeviceChanged end the release if no
        function of the lease is left. After any other exception the device is
        quarantined.
        """
        del handle, steps

    def erase(self, handle: AttachHandle, steps: PrivilegedSteps) -> float:
        """Start or continue the erasure of a guest's data; return the part done.

        The library calls it for devices with :attr:`Erasure.PLUGIN` alone: once a lease
        has ended, :meth:`release` has returned and the functions are back with their
        drivers, and before another guest may get the device. It repeats the call at
        intervals until the result is 1.0, which states that the erasure has ended and
        was verified. A call is short: it starts the work of the hardware, or asks for
        its progress. Two calls for one device never overlap.

        A call continues what an earlier one has begun, also in another process, after a
        crash, or after a reboot in the middle; if the device does not report its
        progress, the erasure begins again. After an exception from which the library
        repeats :meth:`release`, it repeats this call as well; after any other one, or
        if it returns the same part for 6 hours, the device is quarantined.

        :returns: the part that is done, from 0.0 to 1.0.
        """
        del steps
        raise NotImplementedError(f"{self.name} erases nothing: {handle.address}")
