# SPDX-License-Identifier: Apache-2.0

"""Correct and faulty plugins, as vendors write them."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from oslo_config import cfg

from os_acc.objects.device import AttachHandle, Device, UsableFunction
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base, pci
from os_acc.testing import TestHost

XILINX = 0x10EE


def device(plugin: base.PluginBase, usable: UsableFunction) -> Device:
    return Device(
        plugin=plugin.name,
        address=usable.function.address,
        identity=usable.function.identity,
        resource_class="CUSTOM_ACCELERATOR_ACME",
        traits=frozenset({"CUSTOM_ACME"}),
        handles=(usable.handle(),),
        numa_node=usable.function.numa_node,
    )


class Acme(base.PluginBase):
    """Offers every card of one vendor."""

    contract_version = (1, 0)
    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=XILINX),)

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        super().__init__(name, conf, root)
        self.calls: list[tuple[str, AttachHandle]] = []

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        for usable in candidates.usable:
            if usable.function.identity.vendor == self.conf.vendor:
                yield device(self, usable)

    def prepare(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.calls.append(("prepare", handle))

    def release(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.calls.append(("release", handle))


class OfThisContract(Acme):
    """Does the same, and is written for the present version of the contract."""

    contract_version = base.CONTRACT_VERSION


class Marks(Acme):
    """Leaves a mark on the host while a device is prepared; a reboot keeps it."""

    def prepare(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        _marks(self.root).mkdir(parents=True, exist_ok=True)
        (_marks(self.root) / str(handle.address)).touch()

    def release(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().release(handle, steps)
        unmark(self.root, str(handle.address))


class MarksIntel(Marks):
    """Does the same for the functions of another vendor."""

    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=0x8086),)


class MarksNoMore(Acme):
    """A later version of it, which inherits both steps."""

    prepare = base.PluginBase.prepare
    release = base.PluginBase.release


class Erases(Marks):
    """Its cards have memory that a reset keeps, and that it erases block by block.

    :cvar fault: raised by each call, after one more block is erased.
    :cvar answer: returned by each call; None: the part that is done.
    """

    contract_version = (1, 0)
    fault: ClassVar[Exception | None] = None
    answer: ClassVar[Any] = None

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        for found in super().discover(candidates):
            yield dataclasses.replace(found, erasure=base.Erasure.PLUGIN)

    def erase(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> float:
        self.calls.append(("erase", handle))
        done = erase_block(self.root, str(handle.address))
        if self.fault is not None:
            raise self.fault
        return done if self.answer is None else self.answer


class ErasesIntel(Erases):
    """Does the same for the functions of another vendor."""

    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=0x8086),)


class ErasesPci(pci.PciPlugin):
    """Offers the functions of a vendor, or all, as ``pci`` does, and erases them."""

    contract_version = (1, 0)
    is_fallback = False
    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=0),)

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        own = dataclasses.replace(
            candidates,
            usable=tuple(filter(self._is_own, candidates.usable)),
            matched=tuple(filter(self._is_own, candidates.matched)),
        )
        for found in super().discover(own):
            yield dataclasses.replace(found, erasure=base.Erasure.PLUGIN)

    def erase(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> float:
        return erase_block(self.root, str(handle.address))

    def _is_own(self, candidate: base.MatchedFunction) -> bool:
        return self.conf.vendor in (0, candidate.function.identity.vendor)


class ErasesXilinx(ErasesPci):
    """Does so for the functions of one vendor."""

    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=XILINX),)


#: The blocks of a medium; each call of :class:`Erases` erases one.
BLOCKS: Final = 4


def erase_block(root: str, address: str) -> float:
    """Erase one more block of the memory of a device; return the part that is done."""
    medium = medium_of(root, address)
    blocks = medium.read_text() if medium.exists() else ""
    left = blocks.strip("0")
    medium.parent.mkdir(parents=True, exist_ok=True)
    medium.write_text(("0" * BLOCKS + left[1:])[-BLOCKS:])
    return 1.0 - len(left[1:]) / BLOCKS


def medium_of(root: str, address: str) -> Path:
    """Return the file that stands for the memory of a device."""
    return Path(root, "var/lib/acme-media", address)


def write_medium(root: str, *addresses: str) -> None:
    """Fill the memory of devices with data, as a guest."""
    for each in addresses:
        medium_of(root, each).parent.mkdir(parents=True, exist_ok=True)
        medium_of(root, each).write_text("1" * BLOCKS)


def has_data(root: str, address: str) -> bool:
    """Return whether the memory of a device has data of a guest."""
    medium = medium_of(root, address)
    return medium.exists() and "1" in medium.read_text()


def _marks(root: str) -> Path:
    return Path(root, "var/lib/acme")


def marked(root: str) -> list[str]:
    """Return the addresses of the devices with the mark of :class:`Marks`."""
    return sorted(each.name for each in _marks(root).glob("*"))


def unmark(root: str, address: str) -> None:
    """Remove the mark of a device, if it has one."""
    (_marks(root) / address).unlink(missing_ok=True)


class Rival(Acme):
    """Offers the same cards."""

    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=XILINX),)


class Newer(Acme):
    contract_version = (1, base.CONTRACT_VERSION[1] + 1)


class Undeclared(base.PluginBase):
    """Declares no contract version."""

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return ()


class Other(Acme):
    contract_version = (2, 0)


class Malformed(Acme):
    contract_version = "1.0"  # type: ignore[assignment]


class FailsToStart(Acme):
    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        raise RuntimeError("no licence")


class Abstract(base.PluginBase):
    """Does not define discover()."""

    contract_version = (1, 0)


class NoPlugin:
    """Is not derived from the base class."""

    contract_version = base.CONTRACT_VERSION
    options = ()

    def __init__(self, name: str, conf: object, root: str) -> None:
        self.name = name


class FailsToDiscover(Acme):
    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        yield from super().discover(candidates)
        raise RuntimeError("firmware is too old")


class Leaves(Acme):
    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        raise SystemExit("no licence server")


class FailsToPrepare(Acme):
    def prepare(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        raise RuntimeError("cannot prepare")


class FailsToRelease(Acme):
    def release(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().release(handle, steps)
        raise RuntimeError("cannot release")


class IsBusy(Acme):
    """A daemon of the vendor uses its devices from time to time."""

    is_busy: ClassVar[bool] = True

    def prepare(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        self._check(handle)

    def release(self, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().release(handle, steps)
        self._check(handle)

    def _check(self, handle: AttachHandle) -> None:
        if self.is_busy:
            raise base.DeviceInUse("acmed uses it", address=str(handle.address))


class NeverReturns(Acme):
    """Hangs until its gate is opened."""

    gate = threading.Event()

    @classmethod
    def wait(cls) -> None:
        """Wait for the gate; eventlet wakes no greenlet of another thread."""
        while not cls.gate.is_set():
            time.sleep(0.005)

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        self.wait()
        return ()


class HangsInItsMaking(Acme):
    """Hangs in its constructor, until the same gate is opened."""

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        NeverReturns.wait()
        super().__init__(name, conf, root)


def erasing(host: TestHost) -> list[str]:
    """Return the devices that are being erased."""
    leases = host.manager.store.leases()
    return [str(each.address) for each in leases if each.state is LeaseState.ERASING]


def advance(host: TestHost, times: int = BLOCKS) -> None:
    """Do as that many rounds of the service."""
    for _ in range(times):
        for attempt in host.manager.retrier.continue_erasures():
            attempt.result(60)
