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
import uuid
from functools import partial

from os_acc import privsep
from os_acc.objects import xrt
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, images, request, rootconf, tools
from os_acc.privsep.images import Sealed
from os_acc.privsep.outcome import (
    CallRefused,
    CallResult,
    Outcome,
    after_programming,
)
from os_acc.privsep.rootconf import RootConf

# struct axlf in src/runtime_src/core/include/xclbin.h.
_MAGIC = b"xclbin2\0"
_UUID_OFFSET, _UUID_SIZE = 416, 16
# The newer name (XRT 2024.2) first: there the older one prints a warning.
_XBUTIL = ("xrt-smi", "xbutil")


class XrtRequest(images.ImageRequest):
    """An xclbin for a card, whose management function programs it."""

    __slots__ = ()

    @property
    def user(self) -> PciAddress:
        """The user function."""
        return dataclasses.replace(self.card, function=self.number)

    def validate(self) -> None:
        """Check that the user function is another one."""
        request.require(self.number != self.card.function)


@request.entrypoint(privsep.image, XrtRequest)
def program(call: XrtRequest) -> CallResult:
    """Load a cached xclbin into a card.

    :returns: on success, ``observed`` is the canonical UUID of the xclbin. The
        step of a refusal is ``digest`` or ``image`` if the image is not the
        expected one, or no xclbin; ``signature`` if root trusts no signer of
        it; ``programming`` if a tool has begun: the card may hold anything, and
        ``observed`` has the tool's output. With any other step nothing was
        begun.
    """
    # Read no image for a card that is missing, or that root's configuration denies.
    functions.check_exists(call.card, call.user)
    root = rootconf.current()
    root.check_allows(call.card, call.user)
    return images.program(call, root, partial(_program, call, root), [call.user])


def _program(call: XrtRequest, root: RootConf, image: Sealed) -> CallResult:
    xclbin_id = _xclbin_id(image)
    _check(call)
    root.check_allows(call.card, call.user)
    found = xrt.interface_id(functions.read(call.card, "interface_uuids"))
    if found != call.interface_id:
        raise CallRefused(Outcome.CHANGED, 0, "interface_uuids", found or "")
    xbmgmt, xbutil = tools.find("xbmgmt"), tools.find(*_XBUTIL)
    for tool, function in ((xbmgmt, call.card), (xbutil, call.user)):
        _run(tool, function, image)
    # Another card may be present by now.
    with after_programming():
        _check(call)
    return _read_back(call.user, xclbin_id)


def _run(tool: str, function: PciAddress, image: Sealed) -> None:
    path = f"/proc/self/fd/{image.fd}"
    arguments = ("program", "--device", str(function), "--user", path)
    ended = tools.run(tool, arguments, image.fd)
    if ended.status:
        name = os.path.basename(tool)
        output = ended.output or f"{name} ended with status {ended.status}"
        raise CallRefused(Outcome.REFUSED, 0, "programming", output)


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
        raise CallRefused(Outcome.REFUSED, errno.ENOEXEC, "image")
    found = os.pread(image.fd, _UUID_SIZE, _UUID_OFFSET)
    if len(found) != _UUID_SIZE or not any(found):
        # Without a UUID, loading cannot be verified.
        raise CallRefused(Outcome.REFUSED, errno.ENOEXEC, "image")
    return str(uuid.UUID(bytes=found))


def _check(call: XrtRequest) -> None:
    functions.check_identity(call.card, call.identity)
    for function, expected in (
        (call.card, xrt.MANAGEMENT_DRIVER),
        (call.user, xrt.USER_DRIVER),
    ):
        driver = functions.driver(function)
        if driver != expected:
            raise CallRefused(Outcome.CHANGED, 0, "driver", driver)
