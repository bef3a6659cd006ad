# SPDX-License-Identifier: Apache-2.0

"""Load xclbins into AMD/Xilinx cards, by XRT's own tools.

``xbmgmt program --device <management function> --user <file>`` writes the user
partition: never the card's flash (``--base``), never a partition of its shell
(``--shell``); XRT, src/runtime_src/doc/toc/xbmgmt.rst. xclmgmt does not show the
loaded xclbin. So ``xbutil program`` (``xrt-smi`` since XRT 2024.2) makes xocl load
the same file: it first asks xclmgmt and adopts the xclbin that is already loaded
(__icap_peer_xclbin_download() in icap.c). xocl then shows its UUID, which is read
back.

The tools need root, but no known capability: their nodes and sysfs files belong to
uid 0, and xclmgmt checks none for this (mgmt-ioctl.c). They run without
capabilities, and without the means to gain any.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
import uuid
from typing import NamedTuple

from os_acc import privsep
from os_acc.objects import xrt
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, images, rootconf, tools, worker
from os_acc.privsep.images import Sealed
from os_acc.privsep.outcome import (
    CallRefused,
    CallResult,
    ImageUnfit,
    Outcome,
    after_programming,
)
from os_acc.privsep.rootconf import RootConf

# struct axlf in src/runtime_src/core/include/xclbin.h.
_MAGIC = b"xclbin2\0"
_UUID_OFFSET, _UUID_SIZE = 416, 16
# The newer name (XRT 2024.2) first: there the older one prints a warning.
_XBUTIL = ("xrt-smi", "xbutil")


class _XrtTask(NamedTuple):
    card: PciAddress
    user: PciAddress
    identity: tuple[int, ...]
    interface_id: str


@privsep.image.entrypoint
def program(
    parts: tuple[int, ...],
    identity: tuple[int, ...],
    number: int,
    interface_id: str,
    algorithm: str,
    digest: str,
    epoch: int,
    milliseconds: int,
    signature: tuple[str, str, str, str],
) -> tuple[str, int, str, str]:
    """Load a cached xclbin into a card.

    :param parts: address of the management function.
    :param number: function number of the user function in the same slot.
    :param interface_id: canonical UUID that the card must name as the interface
        of compatible xclbins.
    :param algorithm, digest: digest of the xclbin, by which it is found.
    :param signature: see :func:`.signatures.check`.
    :returns: on success, ``observed`` is the canonical UUID of the xclbin. The
        step of a refusal is ``digest`` or ``image`` if the image is not the
        expected one, or no xclbin; ``signature`` if root trusts no signer of
        it; ``programming`` if a tool has begun: the card may hold anything, and
        ``observed`` has the tool's output. With any other step nothing was
        begun.
    """
    card = functions.parse_address(parts)
    named = functions.parse_digest(algorithm, digest)
    if (
        card is None
        or named is None
        or not functions.is_identity(identity)
        or not functions.is_number(number, 7)
        or number == card.function
        or not functions.is_uuid(interface_id)
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
        or not images.is_signature(signature)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    user = dataclasses.replace(card, function=number)
    task = _XrtTask(card, user, tuple(identity), interface_id)
    deadline = time.monotonic() + milliseconds / 1000
    root = rootconf.current()
    # Read no image for a card that is missing, or that root's configuration denies.
    if not functions.exists(card) or not functions.exists(user):
        return CallResult(Outcome.GONE, errno.ENODEV, "identity")
    if not root.allows(card, user):
        return rootconf.denied()
    try:
        with images.current.sealed(named, deadline) as image:
            images.check_signature(image, signature, root, deadline)

            def job(index: int) -> CallResult:
                return CallResult(Outcome.OK) if index else _guarded(task, image, root)

            seconds = max(0.0, deadline - time.monotonic())
            return worker.run([card, user], epoch, seconds, job, [image.fd])[0]
    except ImageUnfit as error:
        return CallResult(Outcome.REFUSED, error.errno, error.step, error.observed)


def _guarded(task: _XrtTask, image: Sealed, root: RootConf) -> CallResult:
    try:
        return _program(task, image, root)
    except CallRefused as refusal:
        return refusal.result
    except tools.ToolMissing as error:
        return CallResult(Outcome.REFUSED, error.errno, "tool", error.path)
    except OSError as error:
        return CallResult(
            Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
        )


def _program(task: _XrtTask, image: Sealed, root: RootConf) -> CallResult:
    xclbin_id = _xclbin_id(image)
    _check(task)
    if not root.allows(task.card, task.user):
        return rootconf.denied()
    found = xrt.interface_id(functions.read(task.card, "interface_uuids"))
    if found != task.interface_id:
        raise CallRefused(
            CallResult(Outcome.CHANGED, 0, "interface_uuids", found or "")
        )
    xbmgmt, xbutil = tools.find("xbmgmt"), tools.find(*_XBUTIL)
    for tool, function in ((xbmgmt, task.card), (xbutil, task.user)):
        _run(tool, function, image)
    # Another card may be present by now.
    with after_programming():
        _check(task)
    return _read_back(task.user, xclbin_id)


def _run(tool: str, function: PciAddress, image: Sealed) -> None:
    path = f"/proc/self/fd/{image.fd}"
    arguments = ("program", "--device", str(function), "--user", path)
    ended = tools.run(tool, arguments, image.fd)
    if ended.status:
        name = os.path.basename(tool)
        output = ended.output or f"{name} ended with status {ended.status}"
        raise CallRefused(CallResult(Outcome.REFUSED, 0, "programming", output))


def _read_back(user: PciAddress, xclbin_id: str) -> CallResult:
    found: str | None = None
    with contextlib.suppress(OSError):
        found = xrt.xclbin_id(functions.read(user, "xclbinuuid"))
    if found != xclbin_id:
        detail = f"{found or 'an unknown xclbin'} is loaded, not {xclbin_id}"
        return CallResult(Outcome.NO_EFFECT, 0, "programming", detail)
    return CallResult(Outcome.OK, 0, "", xclbin_id)


def _xclbin_id(image: Sealed) -> str:
    if os.pread(image.fd, len(_MAGIC), 0) != _MAGIC:
        raise CallRefused(CallResult(Outcome.REFUSED, errno.ENOEXEC, "image"))
    found = os.pread(image.fd, _UUID_SIZE, _UUID_OFFSET)
    if len(found) != _UUID_SIZE or not any(found):
        # Without a UUID, loading cannot be verified.
        raise CallRefused(CallResult(Outcome.REFUSED, errno.ENOEXEC, "image"))
    return str(uuid.UUID(bytes=found))


def _check(task: _XrtTask) -> None:
    if found := functions.changed(task.card, task.identity):
        raise CallRefused(found)
    for function, expected in (
        (task.card, xrt.MANAGEMENT_DRIVER),
        (task.user, xrt.USER_DRIVER),
    ):
        driver = functions.driver(function)
        if driver != expected:
            raise CallRefused(CallResult(Outcome.CHANGED, 0, "driver", driver))
