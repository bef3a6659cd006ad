# SPDX-License-Identifier: Apache-2.0

"""Run vendors' programs from privileged code, in a worker's child.

A program gets no shell, no capability and no means to gain one, an empty standard
input, and its own environment. It inherits only the file that it reads and the
locks of its devices: even if the worker dies, no other call gets a device that a
program may still be writing to. It is never signalled.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from oslo_privsep import capabilities

from os_acc.bitstreams import shared_options
from os_acc.privsep import kernel, rootconf, worker
from os_acc.privsep.outcome import CallRefused, Outcome

#: Limits of a program's output: bytes kept, and lines reported.
_KEPT = 16384
_LINES, _WIDTH = 8, 240
# include/uapi/linux/prctl.h
_PR_SET_NO_NEW_PRIVS = 38
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

# Resolved here: a worker's child must not load anything.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class ToolExit(NamedTuple):
    """The exit of a program.

    :ivar status: exit status as in a shell; negative: a signal.
    :ivar output: the last lines of its output.
    """

    status: int
    output: str


class Tools:
    """The directory of the programs.

    :param directory: None: the directory of the configuration.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory

    def directory(self) -> str:
        """Return the directory.

        :raises CallRefused: the configuration has no absolute path.
        """
        if self._directory is not None:
            return self._directory
        option, group = shared_options.XRT_TOOLS, shared_options.XRT_GROUP
        return rootconf.absolute_path(rootconf.last_read().tools, option, group, "tool")


current = Tools()


def find(*names: str) -> str:
    """Return the path of a program, by the first of its names that exists.

    :raises CallRefused: it does not exist, or users other than root could change it.
    """
    directory = current.directory()
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


def run(path: str, arguments: Sequence[str], file: int) -> ToolExit:
    """Run a program until it exits; only in a worker's child.

    :param file: a descriptor that the program can read under ``/proc/self/fd``.
    """
    readable, writable = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(path, arguments, file, writable)
    os.close(writable)
    output = _listen(readable)
    os.close(readable)
    _, status = os.waitpid(pid, 0)
    return ToolExit(os.waitstatus_to_exitcode(status), output)


def _become(path: str, arguments: Sequence[str], file: int, output: int) -> NoReturn:
    try:
        for fd in (file, *_locks()):
            os.set_inheritable(fd, True)
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        # Duplicated first: any of them may have the number of another's target.
        source = [_above(fd) for fd in (nothing, output, output)]
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


def _above(fd: int) -> int:
    """Duplicate a descriptor above the numbers of the standard streams."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)


def _environment(path: str) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/",
        "LC_ALL": "C",
        "XILINX_XRT": os.path.dirname(os.path.dirname(path)),
    }


def _locks() -> list[int]:
    """Return this process' descriptors of device locks."""
    directory = os.path.realpath(kernel.current.path(worker.LOCKS))
    held: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # The descriptor of the listing itself.
            continue
        if os.path.dirname(target) == directory:
            held.append(int(name))
    return held


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
