# SPDX-License-Identifier: Apache-2.0

"""Load xclbins into AMD/Xilinx cards, by XRT's own tools.

``xbmgmt program --device <management function> --user <file>`` writes the user
partition: never the card's flash (``--base``), never a partition of its shell
(``--shell``); XRT, src/runtime_src/doc/toc/xbmgmt.rst. xclmgmt does not show the loaded
xclbin. So ``xbutil program`` (``xrt-smi`` since XRT 2024.2) makes xocl load the same
file: it first asks xclmgmt and adopts the xclbin that is already loaded
(__icap_peer_xclbin_download() in icap.c). xocl then shows its UUID, which is read back.

The tools need root, but no known capability: their nodes and sysfs files belong to
uid 0, and xclmgmt checks none for this (mgmt-ioctl.c). A tool runs in the worker's
child: it gets no shell, no capability and no means to gain one, an empty standard
input, and its own environment. It inherits only the file that it reads and the
locks of its devices: even if the worker dies, no other call gets a device that a
tool may still be writing to. It is never signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from oslo_privsep import capabilities

from os_acc import privsep
from os_acc.bitstreams import options
from os_acc.objects.drivers import (
    XRT_MANAGEMENT_DRIVER,
    XRT_USER_DRIVER,
    xrt_interface_id,
    xrt_xclbin_id,
)
from os_acc.objects.pci import PciAddress
from os_acc.privsep import images, pci_functions, privileged_conf, request, worker
from os_acc.privsep.images import Sealed
from os_acc.privsep.outcome import (
    CallRefused,
    CallResult,
    Outcome,
    after_programming,
)
from os_acc.privsep.privileged_conf import RootConf

# struct axlf in src/runtime_src/core/include/xclbin.h.
_MAGIC = b"xclbin2\0"
_UUID_OFFSET, _UUID_SIZE = 416, 16
# The newer name (XRT 2024.2) first: there the older one prints a warning.
_XBUTIL = ("xrt-smi", "xbutil")
#: Limits of a tool's output: bytes kept, and lines reported.
_KEPT = 16384
_LINES, _WIDTH = 8, 240
# include/uapi/linux/prctl.h
_PR_SET_NO_NEW_PRIVS = 38
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

# Resolved here: a worker's child must not load anything.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


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

    :returns: on success, ``observed`` is the canonical UUID of the xclbin. The step of
        a refusal is ``digest`` or ``image`` if the image is not the expected one, or no
        xclbin; ``signature`` if root trusts no signer of it; ``programming`` if a tool
        has begun: the card may hold anything, and ``observed`` has the tool's output.
        With any other step nothing was begun.
    """
    # Read no image for a card that is missing, or that root's configuration denies.
    pci_functions.check_exists(call.card, call.user)
    root = privileged_conf.current()
    root.check_allows(call.card, call.user)
    return images.program(call, root, partial(_program, call, root), [call.user])


def _program(call: XrtRequest, root: RootConf, image: Sealed) -> CallResult:
    xclbin_id = _xclbin_id(image)
    _check(call)
    root.check_allows(call.card, call.user)
    found = xrt_interface_id(pci_functions.read(call.card, "interface_uuids"))
    if found != call.interface_id:
        raise CallRefused(Outcome.CHANGED, 0, "interface_uuids", found or "")
    xbmgmt, xbutil = find_tool("xbmgmt"), find_tool(*_XBUTIL)
    for tool, function in ((xbmgmt, call.card), (xbutil, call.user)):
        _run(tool, function, image)
    # Another card may be present by now.
    with after_programming():
        _check(call)
    return _read_back(call.user, xclbin_id)


def _run(tool: str, function: PciAddress, image: Sealed) -> None:
    path = f"/proc/self/fd/{image.fd}"
    arguments = ("program", "--device", str(function), "--user", path)
    readable, writable = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(tool, arguments, writable)
    os.close(writable)
    output = _listen(readable)
    os.close(readable)
    # As in a shell; negative: a signal.
    if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        text = output or f"{os.path.basename(tool)} ended with status {status}"
        raise CallRefused(Outcome.REFUSED, 0, "programming", text)


def _read_back(user: PciAddress, xclbin_id: str) -> CallResult:
    found: str | None = None
    with contextlib.suppress(OSError):
        found = xrt_xclbin_id(pci_functions.read(user, "xclbinuuid"))
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
    pci_functions.check_identity(call.card, call.identity)
    for function, expected in (
        (call.card, XRT_MANAGEMENT_DRIVER),
        (call.user, XRT_USER_DRIVER),
    ):
        driver = pci_functions.driver(function)
        if driver != expected:
            raise CallRefused(Outcome.CHANGED, 0, "driver", driver)


def tools_directory() -> str:
    """Return the directory of the tools; CallRefused: it is no absolute path."""
    option, group = options.XRT_TOOLS, options.XRT_GROUP
    configured = privileged_conf.last_read().tools
    return privileged_conf.absolute_path(configured, option, group, "tool")


def find_tool(*names: str) -> str:
    """Return the path of a program, by the first of its names that exists.

    :raises CallRefused: it does not exist, or users other than root could change it.
    """
    directory = tools_directory()
    paths = [os.path.join(directory, name) for name in names]
    path = next((path for path in paths if os.path.lexists(path)), paths[-1])
    for part in (directory, path):
        try:
            found = os.stat(part)
        except OSError as error:
            raise _refused(error.errno or errno.EIO, part) from error
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & _OTHERS_MAY_WRITE:
            raise _refused(errno.EPERM, part)
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IXUSR:
        raise _refused(errno.EACCES, path)
    return path


def _refused(number: int, path: str) -> CallRefused:
    return CallRefused(Outcome.REFUSED, number, "tool", path)


def _become(path: str, arguments: Sequence[str], output: int) -> NoReturn:
    try:
        for fd in worker.kept():
            os.set_inheritable(fd, True)
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        # Duplicated first: any of them may have the number of another's target.
        source = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
            for fd in (nothing, output, output)
        ]
        for target, fd in enumerate(source):
            os.dup2(fd, target)
        os.chdir("/")
        os.umask(0o022)
        if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        capabilities.drop_all_caps_except((), (), ())
        os.execve(path, (path, *arguments), _environment(path))
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        os.write(2, f"{path}: {error}\n".encode())
    finally:
        os._exit(127)


def _environment(path: str) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/",
        "LC_ALL": "C",
        "XILINX_XRT": os.path.dirname(os.path.dirname(path)),
    }


def _listen(fd: int) -> str:
    """Read a program's output to its end; return the last lines for operators."""
    data = b""
    while chunk := os.read(fd, 65536):
        data = (data + chunk)[-_KEPT:]
    lines = data.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    shown = (
        "".join(letter for letter in line if letter.isprintable()).strip()
        for line in lines
    )
    return "\n".join([line[:_WIDTH] for line in shown if line][-_LINES:])
