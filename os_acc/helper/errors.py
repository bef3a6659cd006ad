# SPDX-License-Identifier: Apache-2.0

"""Translation of the privileged helper's answers to typed errors."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence
from typing import Any

from os_acc import exception
from os_acc.objects.bitstream import Bitstream, Image
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.region import Region
from os_acc.privsep import locks, pci_functions
from os_acc.privsep.outcome import FILES, NO_ROOM, CallResult, Outcome

# The texts of status_show() in drivers/fpga/fpga-mgr.c.
_REPORTED = {
    "reconfig operation error": exception.ProgrammingReason.OPERATION,
    "reconfig CRC error": exception.ProgrammingReason.CRC,
    "reconfig incompatible image": exception.ProgrammingReason.INCOMPATIBLE,
    "reconfig IP protocol error": exception.ProgrammingReason.PROTOCOL,
    "reconfig fifo overflow error": exception.ProgrammingReason.FIFO_OVERFLOW,
}

#: Hint for each step that root's configuration denies.
DENIED_HINT = (
    "name the device in device_spec of /etc/os-acc/privileged.conf, as in the "
    "service's own configuration, and see 'os-acc check' if the file is invalid"
)

# drivers/pci/iov.c: the PF has no driver, or one without sriov_configure.
_WITHOUT_VFS = ("sriov_numvfs", errno.ENOENT)
# The same file: no bus numbers, or no memory of the bridges, are left for the VFs.
_WITHOUT_ROOM = ("sriov_numvfs", errno.ENOMEM)
# The kernel shows no user of such a disk.
_DISK_HINT = (
    "unmount it, or remove it from its volume, array or swap space; it may also be the "
    "journal of a file system, or a disk of ZFS, bcachefs, DRBD or an LIO target; "
    "then retry"
)
_NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV})


def refusal(
    region: Region, bitstream: Bitstream, result: CallResult
) -> exception.OsAccError | None:
    """Return the error specific to programming; None for a general error."""
    image = bitstream.image
    if result.outcome == Outcome.DENIED:
        return exception.RegionUnusable(
            f"root's configuration denies programming {region}",
            hint=DENIED_HINT,
            reason=exception.RegionReason.NOT_PROGRAMMABLE,
        )
    if result.errno in exception.EXHAUSTED and result.step != "programming":
        return None
    match result.step:
        case "digest":
            return exception.ImageUnusable(
                f"the cached file of image {image} has changed since it was verified",
                hint="find the process that changes files below [os_acc] state_path",
                reason=exception.ImageReason.INVALID,
            )
        case "image":
            return exception.ImageUnusable(
                f"cannot program the cached file of image {image}: {reason(result)}",
                hint="fetch it again; helper and service must have the same "
                "state_path: see [os_acc_image] helper_command",
                reason=exception.ImageReason.INVALID,
            )
        case "signature":
            return exception.ImageRefused(
                f"root's configuration rejects image {image}: {result.observed}",
                hint="see [os_acc_bitstreams] certificates in "
                "/etc/os-acc/privileged.conf",
            )
        case "compat_id" | "interface_uuids" if result.outcome == Outcome.CHANGED:
            return exception.ImageUnusable(
                f"image {image} is built for the interface {region.interface_id}, but "
                f"{region} has {result.observed}",
                reason=exception.ImageReason.MISMATCH,
            )
        case "tool":
            return exception.HostStepFailed(
                f"cannot run {result.observed} as root: {reason(result)}",
                address=str(region.card),
                errno=result.errno,
                hint="see [os_acc_xrt] tools; only root may have write access",
            )
        case "compat_id" | "fme" | "port" if result.errno in _NOT_THERE:
            return exception.RegionUnusable(
                f"cannot program {region}: it has no {result.step}",
                reason=exception.RegionReason.NOT_PROGRAMMABLE,
            )
        case "programming":
            return _programming_error(region, image, result)
    return None


def _programming_error(
    region: Region, image: Image, result: CallResult
) -> exception.ProgrammingFailed:
    errors = tuple(result.observed.splitlines())
    reported = (_REPORTED[error] for error in errors if error in _REPORTED)
    why = next(reported, exception.ProgrammingReason.FAILED)
    if result.errno == errno.ETIMEDOUT:
        why = exception.ProgrammingReason.TIMEOUT
    detail = ", ".join(errors) or reason(result)
    return exception.ProgrammingFailed(
        f"cannot program {region} with image {image}: {detail}",
        address=str(region.card),
        errno=result.errno,
        reason=why,
        errors=errors,
    )


def reason(result: CallResult) -> str:
    """Return the reason of a refusal, for operators."""
    if result.errno:
        return f"{errno.errorcode.get(result.errno, '?')}, {os.strerror(result.errno)}"
    return f"{result.outcome}, found {result.observed or 'nothing'}"


class EpochRefused(exception.OsAccError):
    """The helper does not accept the epoch of this operation on the device.

    It has seen a later operation, or the epoch lies far ahead of the clock.

    :ivar address: the PCI address of the device.
    :ivar accepted: the epochs that it accepts.
    """

    retryable = True

    def __init__(self, message: str, address: str, accepted: AcceptedEpochs) -> None:
        super().__init__(message)
        self.address = address
        self.accepted = accepted


class DeviceClaimed(exception.NoDeviceAvailable):
    """The helper's own record claims a function for another lease.

    :ivar lease: uuid of that lease; 'unreadable' if the record is damaged.
    """

    default_hint = (
        "the store has no such lease: it was lost or replaced. Find the guest that has "
        "the device, then run 'os-acc device adopt' or 'os-acc device release'"
    )

    def __init__(self, message: str, lease: str) -> None:
        super().__init__(message)
        self.lease = lease


class DeviceInParts(exception.DeviceInUse):
    """A function has parts that would end if a guest got all of it.

    They were made after the scan of the host, which excludes such functions.
    """

    retryable = False
    default_hint = (
        "remove its VFs, mediated devices or MIG instances, then retry; or offer these "
        "instead: see num_vfs and mdev_types of [os_acc] device_spec"
    )


def of_answer(address: str, result: CallResult) -> exception.OsAccError:
    """Return the error for an answer about a device."""
    number = result.errno
    failed = functools.partial(exception.HostStepFailed, address=address, errno=number)
    match result.outcome:
        case Outcome.GONE if result.step == locks.TYPES:
            return exception.DeviceGone(
                f"{address}: its parent offers this type no more, but "
                f"{result.observed or 'none'}"
            )
        case Outcome.GONE:
            return exception.DeviceGone(f"{address} has vanished from the host")
        case Outcome.CHANGED:
            return exception.DeviceChanged(
                f"{address}: {result.step} is now {result.observed}",
                hint="another device has taken its address: 'os-acc device list' "
                "shows it",
            )
        case Outcome.REFUSED if number == errno.ENOTUNIQ:
            return exception.DeviceChanged(
                f"{address} and {result.observed} show one serial number, so that they "
                "cannot be told apart",
                hint="remove or disable the one that has no data of an instance, then "
                "retry; two ports of one drive count as two as well",
            )
        case Outcome.STALE | Outcome.AHEAD:
            why = (
                "a later operation came first"
                if result.outcome == Outcome.STALE
                else "the epoch of this operation is far ahead of the host's clock, "
                "which was set back"
            )
            seen, limit = map(int, result.observed.split())
            return EpochRefused(
                f"{address}: {why}", address, AcceptedEpochs(seen, limit)
            )
        case Outcome.CLAIMED:
            return DeviceClaimed(
                f"{result.step} is claimed by lease {result.observed} in the "
                "privileged helper's record",
                result.observed,
            )
        case Outcome.IN_PARTS:
            return DeviceInParts(
                f"{result.step} cannot be given to a guest: it has {result.observed}",
                address=result.step,
                errno=number,
            )
        case Outcome.DENIED:
            return failed(
                f"{address}: root's configuration does not allow this step",
                hint=DENIED_HINT,
                reason=exception.StepReason.DENIED,
            )
        case Outcome.IN_USE | Outcome.UNSURE if result.step == pci_functions.DISK:
            why = "" if result.outcome == Outcome.IN_USE else f": {reason(result)}"
            return exception.DeviceInUse(
                f"{address}: the host uses {result.observed}{why}",
                address=address,
                errno=number,
                hint=_DISK_HINT,
            )
        case Outcome.IN_USE | Outcome.UNSURE:
            return exception.DeviceInUse(
                f"{address} is in use", address=address, errno=number
            )
        case Outcome.STUCK:
            return exception.DeviceStuck(
                f"{address}: the kernel has not returned from a write",
                address=address,
                errno=number,
            )
        case Outcome.BUSY:
            earlier = f"step for {result.observed}" if result.observed else "write"
            return exception.DeviceStuck(
                f"{address}: an earlier {earlier} has not ended",
                address=address,
                errno=number,
            )
        case Outcome.NO_EFFECT if result.step == "child":
            # The step may have been interrupted anywhere. The locks are free, so a
            # retry or a rollback is possible.
            return exception.HelperLost(
                f"{address}: the privileged helper's worker was killed",
                address=address,
            )
        case Outcome.FAILED:
            return failed(
                f"{address}: the privileged helper's worker raised {result.observed}",
                hint="this is a defect of os_acc: report it",
            )
        case Outcome.NO_EFFECT if result.step == "driver":
            return failed(
                f"{address} is bound to {result.observed or 'no driver'} after the "
                "probe",
                hint="the driver rejected the device; the kernel's log has the reason",
                reason=exception.StepReason.BIND,
            )
        case Outcome.REFUSED if result.step == "virtualization":
            return failed(
                f"{address}: cannot give its VFs queues and interrupts: "
                f"{result.observed}",
                hint="lower num_vfs, or distribute them with 'nvme virt-mgmt'",
            )
        case Outcome.REFUSED if (result.step, result.errno) == _WITHOUT_VFS:
            driver = result.observed
            return failed(
                f"{address}: its driver {driver} cannot create VFs"
                if driver
                else f"{address}: no driver is bound to it, which could create VFs",
                hint="bind the driver of the PF that creates VFs",
            )
        case Outcome.REFUSED if (result.step, result.errno) == _WITHOUT_ROOM:
            return exception.HostStepFailed(
                f"{address}: {result.step}: {reason(result)}",
                address=address,
                hint="the firmware has to reserve addresses for the VFs: enable SR-IOV "
                "and 'Above 4G Decoding', or lower num_vfs; see the kernel's log",
            )
        case Outcome.REFUSED if _lacks_room(result):
            error = failed(
                f"{address}: cannot write {FILES}: {reason(result)}",
                hint="make room on the file systems of /run/os_acc and "
                "/var/lib/os-acc-privileged, or mount them writable; then retry",
            )
            error.retryable = True
            return error
    error = failed(f"{address}: {result.step or 'the step'}: {reason(result)}")
    if result.step == "worker":
        # The child could not be forked, or ran out of memory.
        error.set_exhausted()
    return error


def _lacks_room(result: CallResult) -> bool:
    """Return whether root's own files, not the device, have caused a refusal."""
    return result.step in (FILES, "lock") and result.errno in NO_ROOM


def of_step(name: str, address: str, result: CallResult) -> exception.OsAccError:
    """Return the error for an answer about a plugin's step on a device.

    :param name: of the step.
    """
    failed = functools.partial(exception.HostStepFailed, address=address)
    title = f"the privileged step {name}"
    match result.outcome:
        case Outcome.FAILED:
            return failed(
                f"{address}: {title} {result.observed}",
                hint="this is a defect of the plugin: report it to its vendor",
            )
        case Outcome.REFUSED if result.errno == errno.ESTALE:
            return exception.DeviceChanged(
                f"{address} {result.observed}",
                hint="move the drive back to its former slot, or unplug the instance",
            )
        case Outcome.REFUSED if result.errno == errno.EOPNOTSUPP:
            return failed(
                f"{address}: {result.observed or reason(result)}",
                errno=result.errno,
                reason=exception.StepReason.UNSUITABLE,
            )
        case Outcome.REFUSED if (
            result.step != "worker"
            and result.errno != errno.ENOTUNIQ
            and not _lacks_room(result)
        ):
            detail = f": {result.observed}" if result.observed else ""
            return failed(
                f"{address}: {title} failed at {result.step or 'a call'}: "
                f"{reason(result)}{detail}",
                errno=result.errno,
            )
        case Outcome.DENIED:
            # Without an error number: a plugin would take it for that of its step.
            return failed(
                f"{address}: root's configuration does not allow {title}",
                hint=DENIED_HINT,
                reason=exception.StepReason.DENIED,
            )
    return of_answer(address, result)


def check_holders(address: str, answer: Sequence[Any]) -> None:
    """Check an answer about the holders of a device.

    :raises DeviceInUse: a process holds it, or even root cannot determine it.
    :raises HostStepFailed: memory or descriptors ran out.
    """
    outcome, number, *_, found = answer
    if outcome == Outcome.OK:
        return
    if number in exception.EXHAUSTED:
        raise exception.HostStepFailed(
            f"cannot determine which process holds {address}: {os.strerror(number)}",
            address=address,
            errno=number,
        )
    names = ", ".join(f"{command} (pid {pid})" for pid, command in found)
    raise exception.DeviceInUse(
        f"{address} is held by {names or 'an unidentified process'}",
        address=address,
        errno=number,
        holders=tuple((pid, command) for pid, command in found),
    )


def check(devices: Sequence[object], answers: Sequence[Sequence[Any]]) -> None:
    """Check that a step succeeded for each device.

    :raises HostError: it did not; the error is about the first one that failed.
    :raises HelperLost: the number of answers is wrong.
    """
    results = [CallResult(*answer) for answer in answers]
    for device, result in zip(devices, results, strict=False):
        # A step that was not attempted does not explain the failure.
        if result.outcome not in (Outcome.OK, Outcome.UNREACHED):
            raise of_answer(str(device), result)
    done = [result for result in results if result.outcome == Outcome.OK]
    if len(done) != len(devices):
        raise exception.HelperLost("the privileged helper sent an unexpected answer")
