# SPDX-License-Identifier: Apache-2.0

"""Answers of a privileged programming as typed errors."""

from __future__ import annotations

import errno
import os

from os_acc import exception
from os_acc.objects.image import Bitstream, Image
from os_acc.objects.region import Region
from os_acc.privsep.outcome import CallResult, Outcome

# In the words of drivers/fpga/fpga-mgr.c, status_show().
_REPORTED: dict[str, type[exception.ProgrammingFailed]] = {
    "reconfig operation error": exception.ProgrammingOperationError,
    "reconfig CRC error": exception.ProgrammingCrcError,
    "reconfig incompatible image": exception.ProgrammingIncompatible,
    "reconfig IP protocol error": exception.ProgrammingProtocolError,
    "reconfig fifo overflow error": exception.ProgrammingFifoOverflow,
}

#: For each step that root's configuration denies.
DENIED_HINT = (
    "name the device in device_spec of /etc/os-acc/privileged.conf, as in the "
    "service's own configuration"
)

_NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV})


def refusal(
    region: Region, bitstream: Bitstream, result: CallResult
) -> exception.OsAccError | None:
    """The error of a programming; None where it is as of any other step."""
    image = bitstream.image
    if result.outcome == Outcome.DENIED:
        return exception.NotProgrammable(
            f"root's configuration does not let {region} be programmed",
            hint=DENIED_HINT,
        )
    if result.errno in exception.EXHAUSTED and result.step != "programming":
        return None
    match result.step:
        case "digest":
            return exception.ImageInvalid(
                f"the cached file of image {image} is not what was verified",
                hint="something changes files below [os_acc] state_path: find out what",
            )
        case "image":
            return exception.ImageInvalid(
                f"the cached file of image {image} cannot be programmed: "
                f"{reason(result)}",
                hint="fetch it again; the helper has to read the same state_path as "
                "the service: see [os_acc_image] helper_command",
            )
        case "signature":
            return exception.ImageRefused(
                f"root does not let image {image} be programmed: {result.observed}",
                hint="see [os_acc_bitstreams] certificates in "
                "/etc/os-acc/privileged.conf",
            )
        case "compat_id" | "interface_uuids" if result.outcome == Outcome.CHANGED:
            return exception.ImageMismatch(
                f"{region} is of {result.observed}, not of {region.interface_id} as "
                f"image {image} is meant for"
            )
        case "tool":
            return exception.HostStepFailed(
                f"{result.observed} is not run as root: {reason(result)}",
                address=str(region.card),
                errno=result.errno,
                hint="see [os_acc_xrt] tools; it has to belong to root alone",
            )
        case "compat_id" | "fme" | "port" if result.errno in _NOT_THERE:
            return exception.NotProgrammable(
                f"{region} has no {result.step}: it cannot be programmed"
            )
        case "programming":
            return _programming_error(region, image, result)
    return None


def _programming_error(
    region: Region, image: Image, result: CallResult
) -> exception.ProgrammingFailed:
    errors = tuple(result.observed.splitlines())
    kinds = [_REPORTED[error] for error in errors if error in _REPORTED]
    if result.errno == errno.ETIMEDOUT:
        kinds = [exception.ProgrammingTimedOut]
    kind = kinds[0] if kinds else exception.ProgrammingFailed
    told = ", ".join(errors) or reason(result)
    return kind(
        f"{region} has not taken image {image}: {told}",
        address=str(region.card),
        errno=result.errno,
        errors=errors,
    )


def reason(result: CallResult) -> str:
    """Why a step was refused, for people."""
    if result.errno:
        return f"{errno.errorcode.get(result.errno, '?')}, {os.strerror(result.errno)}"
    return f"{result.outcome}, found {result.observed or 'nothing'}"
