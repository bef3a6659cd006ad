# SPDX-License-Identifier: Apache-2.0

"""A kernel that is a directory tree and behaves like Linux when written to."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self, Unpack

from os_acc.objects.mdev import DeviceAddress, DeviceName
from os_acc.privsep import kernel as privsep_kernel
from os_acc.testing import (
    boot,
    dfl,
    drivers,
    faults,
    functions,
    holders,
    mdevs,
    vfio,
)
from os_acc.testing.faults import Effect, InjectedFault, Struck
from os_acc.testing.nvme import NvmeNodes
from os_acc.testing.qat import HeartbeatFiles
from os_acc.testing.specs import FunctionSpec, HostSpec, Ids
from os_acc.testing.tree import Transaction, Tree, refuse
from os_acc.testing.writes import (
    HOT_UNPLUG,
    POLL,
    Pending,
    Write,
    WriteOutcome,
    WriteTarget,
    add_pending,
    carry_out,
    end,
    forget_pending,
    is_locked,
    is_under_way,
    name_of,
    perform,
    record,
    resume_pending,
    revive,
    target_of,
)

Address = str | DeviceAddress | DeviceName

# Attributes whose reads take device_lock(), too.
_LOCKED_READS = ("driver_override", "sriov_numvfs")


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionState:
    """The state of one function, as far as os_acc can change it."""

    address: str
    driver: str | None
    driver_override: str | None
    numvfs: int | None
    autoprobe: bool | None


#: A host's functions, sorted by address.
Snapshot = tuple[FunctionState, ...]


class FakeKernel(NvmeNodes, HeartbeatFiles):
    """A simulated kernel; any number of processes may use one tree at once.

    :param root: a tree that :meth:`build` made.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.realpath(root)
        self._tree = Tree(self.root)
        self.complete()

    @classmethod
    def build(cls, root: str | os.PathLike[str], host: HostSpec) -> Self:
        """Make the tree of a host in an empty directory, and boot the host."""
        os.makedirs(root, exist_ok=True)
        kernel = cls(root)
        with kernel._tree.transaction() as tree:
            boot.build(tree, host)
        return kernel

    def complete(self) -> None:
        """Carry out the rest of a change that a killed process has begun."""
        with self._tree.transaction():
            pass

    @contextlib.contextmanager
    def installed(self) -> Iterator[Self]:
        """Let privileged code of this process write to this kernel."""
        before = privsep_kernel.current
        privsep_kernel.current = self
        try:
            yield self
        finally:
            privsep_kernel.current = before

    # -- called by os_acc ----------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """Write an attribute, with the effect or error that Linux has.

        :raises OSError: with Linux's error number.
        """
        try:
            target = target_of(self.root, path, text)
        except OSError as error:
            with self._tree.transaction() as tree:
                self._note(tree, path, text, name_of(error))
            raise
        with self._tree.lock(self._lock_of(target)), self._programmed(target):
            with self._tree.transaction() as tree:
                fault = faults.take(tree, target.address, target.attribute)

            def waits(tree: Transaction) -> bool:
                locks = target.attribute != "drivers_probe"
                locked = locks and is_locked(tree, target.address)
                return locked or faults.hangs(tree, fault)

            self._wait_while(waits, path, text)
            under_way = self._carry_out(target, path, text, fault)
        if under_way is not None:
            self._wait_while(lambda tree: is_under_way(tree, under_way))

    def read(self, path: str) -> str:
        """Read an attribute; some reads wait while the function is locked."""
        directory, name = os.path.split(path)
        if name == "afu_id":
            with self._tree.transaction() as tree:
                if dfl.is_disabled(tree, os.path.basename(directory)):
                    raise refuse(errno.EBUSY, path)
        if name not in _LOCKED_READS or not os.path.lexists(path):
            return super().read(path)
        address = os.path.basename(os.path.realpath(directory))
        with self._tree.lock(address):
            self._wait_while(lambda tree: is_locked(tree, address))
            return super().read(path)

    def shares_files(self, task: int, other: int) -> bool:
        """Return False: the running kernel does not know the tasks of the tree."""
        return False

    def probe_vfio_group(self, group: int) -> int:
        """Return 0, or ENOENT, EACCES (:meth:`chown`), EBUSY (:meth:`hold`)."""
        with self._tree.transaction() as tree:
            if not tree.exists(f"dev/vfio/{group}"):
                return errno.ENOENT
            if holders.is_foreign(tree, group):
                return errno.EACCES
            return errno.EBUSY if holders.holds_group(tree, group) else 0

    def probe_vfio_device(self, name: str) -> int:
        """Return 0, or the error of :func:`.holders.check_bind`."""
        with self._tree.transaction() as tree:
            try:
                holders.check_bind(tree, name)
                if not mdevs.exists(tree, name):
                    drivers.check_open(tree, name)
            except OSError as error:
                return error.errno or errno.EIO
        return 0

    def hot_reset(self, group: int, function: str) -> None:
        """Reset the functions of a group; logged as a write of the node."""
        node = self._check_open(group, function)
        self.write(self.path(node), function)

    def _check_open(self, group: int | None, name: str) -> str:
        """Return the node through which privileged code opens a device."""
        node = f"dev/vfio/{group}"
        error = errno.ENOENT if group is None else self.probe_vfio_group(group)
        if error == errno.ENOENT:
            error = self.probe_vfio_device(name)
            with self._tree.transaction() as tree:
                node = holders.cdev(tree, name)
        if error:
            raise refuse(error, f"/{node}")
        return node

    def migration(self, group: int | None, name: str) -> tuple[int, int]:
        """Return what the driver of a device answers; vfio-pci has no migration."""
        self._check_open(group, name)
        with self._tree.transaction() as tree:
            if mdevs.exists(tree, name):
                return mdevs.migration(tree, name)
            is_plain = drivers.bound(tree, name) == drivers.VFIO
            return (0, 0) if is_plain else functions.spec(tree, name).migration

    # -- faults --------------------------------------------------------------

    def fail(
        self,
        address: Address | None = None,
        attribute: str = "",
        error: int = errno.EIO,
        **struck: Unpack[Struck],
    ) -> None:
        """Let a write fail with an error number and without effect.

        :param address: the function whose attribute is written; None: any.
        :param attribute: ``driver_override``, ``bind``, ``unbind``,
            ``drivers_probe``, ``sriov_numvfs``, ``sriov_drivers_autoprobe``,
            ``reset``, ``reset_method`` or ``hot_reset``; of a card on the DFL driver
            ``program``, ``release`` or ``assign``; empty for any.
        :param struck: ``times`` and ``nth``: see :class:`.Struck`.
        """
        self._add_fault(Effect.FAIL, address, attribute, error, **struck)

    def hang(
        self,
        address: Address | None = None,
        attribute: str = "",
        **struck: Unpack[Struck],
    ) -> None:
        """Let a write wait until :meth:`lift`; the device is locked meanwhile."""
        self._add_fault(Effect.HANG, address, attribute, **struck)

    def ignore(
        self,
        address: Address | None = None,
        attribute: str = "",
        **struck: Unpack[Struck],
    ) -> None:
        """Let a write report success without effect."""
        self._add_fault(Effect.IGNORE, address, attribute, **struck)

    def kill(
        self,
        address: Address | None = None,
        attribute: str = "",
        *,
        after: bool = False,
        **struck: Unpack[Struck],
    ) -> None:
        """Let the writing process die by SIGKILL before or after the effect."""
        effect = Effect.KILL_AFTER if after else Effect.KILL_BEFORE
        self._add_fault(effect, address, attribute, **struck)

    def lift(self, address: Address | None = None, attribute: str = "") -> None:
        """Remove faults, all by default, and resume writes that hang."""
        with self._tree.transaction() as tree:
            faults.lift(tree, str(address or ""), attribute)

    # -- events around the kernel --------------------------------------------

    def set_power(self, address: Address, *, on: bool) -> None:
        """Switch the power of a function's slot; sysfs has the function as before.

        Its configuration space then reads as FFFFh. Without a call it has none.

        :raises OSError: no such function.
        """
        place = os.path.join(self.root, functions.DEVICES, str(address))
        with open(os.path.join(place, "vendor"), encoding="ascii") as file:
            vendor = int(file.read(), 16) if on else 0xFFFF
        with open(os.path.join(place, "config"), "wb") as file:
            file.write(vendor.to_bytes(2, "little"))

    def hold(
        self,
        address: Address,
        pid: int = 4711,
        command: str = "qemu-system-x86",
        *,
        iommufd: bool = False,
    ) -> None:
        """Let a process hold a function open, as a guest's QEMU does.

        Until :meth:`let_go`, a probe of its group finds it busy and an unbind
        from vfio-pci blocks.

        :param address: of a function, or the UUID of a mediated device.
        :param iommufd: through iommufd, as always on a kernel with iommufd alone.
        :raises OSError: ENODEV: VFIO does not offer it; EPERM: its group is not
            viable.
        """
        function = str(address)
        with self._tree.transaction() as tree:
            if not mdevs.exists(tree, function):
                drivers.check_open(tree, function)
            alone = not vfio.has_groups(tree)
            holders.hold(tree, function, pid, command, iommufd=iommufd or alone)

    def let_go(self, address: Address) -> None:
        """Let the process that holds a function close it.

        Writes that wait for it go on and end.
        """
        with self._tree.transaction() as tree:
            holders.let_go(tree, str(address))
            tree.notes.extend(record(write) for write in resume_pending(tree))

    def chown(self, address: Address, *, back: bool = False) -> None:
        """Let probes of a function's group fail with EACCES, held or not.

        Root without capabilities gets this error after libvirt has given
        the node to QEMU's user; ``back`` gives it to root again.

        :raises OSError: ENOENT: it is in no group.
        """
        with self._tree.transaction() as tree:
            group = functions.group_of(tree, str(address))
            if group is None:
                raise refuse(errno.ENOENT, str(address))
            holders.chown(tree, group, back=back)

    def hot_plug(self, function: FunctionSpec) -> None:
        """Plug in a function, and bind it to its host driver.

        :raises OSError: EEXIST: the address is taken.
        """
        with self._tree.transaction() as tree:
            if tree.exists(f"{functions.DEVICES}/{function.address}"):
                raise refuse(errno.EEXIST, function.address)
            boot.hot_plug(tree, function)

    def hot_unplug(self, address: Address) -> FunctionSpec:
        """Pull out a function with its VFs and the functions below it.

        While a process holds any of them, the removal only begins: it is
        listed without driver until :meth:`let_go`.

        :returns: the specification, for :meth:`hot_plug`.
        :raises OSError: ENODEV: no such function; EINVAL: it is a VF.
        """
        with self._tree.transaction() as tree:
            function = functions.spec(tree, str(address))
            try:
                boot.unplug(tree, str(address))
            except holders.Blocked:
                target = WriteTarget(HOT_UNPLUG, str(address))
                add_pending(tree, Pending(target, "1"))
            return function

    def swap(
        self,
        address: Address,
        ids: Ids,
        *,
        subsystem: Ids | None = None,
        revision: int | None = None,
    ) -> None:
        """Replace the card at an address by one with other ids.

        :param ids: vendor and product; all else stays the same unless given.
        :raises OSError: as :meth:`hot_unplug`; EBUSY: a process holds it.
        """
        with self._tree.transaction() as tree:
            if boot.is_held(tree, str(address)):
                raise refuse(errno.EBUSY, str(address))
            old = boot.unplug(tree, str(address))
            same = (old.subsystem_vendor, old.subsystem_product)
            vendor, product = subsystem or same
            new = dataclasses.replace(
                old,
                vendor=ids[0],
                product=ids[1],
                subsystem_vendor=vendor,
                subsystem_product=product,
                revision=old.revision if revision is None else revision,
            )
            boot.hot_plug(tree, new)

    def reboot(self, moved: Mapping[str, str] = MappingProxyType({})) -> None:
        """Boot again: another boot id, host drivers, no overrides, no VFs.

        :param moved: functions that a new card has renumbered, with their new addresses
            by the former ones. An NVMe drive takes its data along.
        :raises OSError: EEXIST: two functions would have one address.
        """
        with self._tree.transaction() as tree:
            forget_pending(tree)
            boot.reboot(tree, moved)

    # -- observed by tests -----------------------------------------------------

    def writes(self, since: int = 0) -> list[Write]:
        """Return the writes that reached the kernel, oldest first.

        :param since: number of the oldest to omit.
        """
        # Within a transaction, so that a noted write has also happened.
        with self._tree.transaction():
            return [revive(line) for line in self._tree.notes()[since:]]

    def import_behaviour(self) -> None:
        """Import the modules of vendors' attributes: a confined helper imports none."""
        with self._tree.transaction() as tree:
            for address in tree.list(functions.DEVICES):
                functions.spec(tree, address)

    def snapshot(self) -> Snapshot:
        """Return the state that os_acc can change, to compare before and after."""
        with self._tree.transaction() as tree:
            addresses = tree.list(functions.DEVICES)
            return tuple(_state(tree, address) for address in addresses)

    def state(self, address: Address) -> FunctionState:
        """Return one function of :meth:`snapshot`.

        :raises OSError: ENODEV: no such function.
        """
        with self._tree.transaction() as tree:
            return _state(tree, str(address))

    def drivers(self, address: Address) -> tuple[str, ...]:
        """Return every driver that a function was bound to, in order."""
        with self._tree.transaction() as tree:
            return drivers.history(tree, str(address))

    def group(self, address: Address) -> int | None:
        """Return the IOMMU group of a function."""
        with self._tree.transaction() as tree:
            return functions.group_of(tree, str(address))

    def wait_until_blocked(self, count: int = 1, timeout: float = 300.0) -> None:
        """Wait until a number of writes have been blocked since the tree was made.

        :param timeout: in seconds.
        :raises TimeoutError: fewer were blocked within that time.
        """
        deadline = time.monotonic() + timeout
        blocked = WriteOutcome.BLOCKED
        while sum(each.outcome == blocked for each in self.writes()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} blocked writes within {timeout} s")
            time.sleep(POLL)

    # -- within --------------------------------------------------------------

    def _lock_of(self, target: WriteTarget) -> str:
        # drivers_probe_store() takes no lock if the function has a driver.
        if target.attribute == "drivers_probe" and target.lock == target.address:
            with self._tree.transaction() as tree:
                there = tree.exists(f"{functions.DEVICES}/{target.address}")
                if there and drivers.owner(tree, target.address) is not None:
                    return f"probe {target.address}"
        return target.lock

    @contextlib.contextmanager
    def _programmed(self, target: WriteTarget) -> Iterator[None]:
        """Wait as cci_pci_remove() for the end of a programming of the card."""
        engine = ""
        if target.attribute == "unbind":
            with self._tree.transaction() as tree:
                engine = dfl.engine_of(tree, target.address)
        with self._tree.lock(engine) if engine else contextlib.nullcontext():
            yield

    def _carry_out(
        self, target: WriteTarget, path: str, text: str, fault: InjectedFault | None
    ) -> int | None:
        """Write; return the number of a write that is under way, None at its end.

        :raises OSError: the kernel refuses the write.
        """
        with self._tree.transaction() as tree:
            try:
                outcome, error = carry_out(
                    tree, target.address, fault, lambda: perform(tree, target, text)
                )
            except holders.Blocked:
                self._note(tree, path, text, WriteOutcome.BLOCKED.value)
                inside = os.path.relpath(path, self.root)
                write = Pending(target, text, inside, os.getpid())
                return add_pending(tree, write)
            self._note(tree, path, text, outcome)
        end(outcome, error, path)
        return None


def _state(tree: Transaction, address: str) -> FunctionState:
    path = functions.place(tree, address)
    numvfs = autoprobe = None
    if tree.exists(f"{path}/sriov_numvfs"):
        numvfs = int(tree.read(f"{path}/sriov_numvfs"))
        autoprobe = tree.read(f"{path}/sriov_drivers_autoprobe") == "1\n"
    return FunctionState(
        address=address,
        driver=drivers.bound_at(tree, path),
        driver_override=drivers.override_at(tree, path),
        numvfs=numvfs,
        autoprobe=autoprobe,
    )
