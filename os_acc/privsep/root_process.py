# SPDX-License-Identifier: Apache-2.0

"""The root process of a context: it loads its modules, confines itself, and serves.

User 0 regains all capabilities of its bounding set with each execve(2), and
oslo.privsep imports any module that a client names. Both are irrevocably disabled
before the first call is served (prctl(2), capabilities(7)).
:mod:`os_acc.helper.connection` starts the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from oslo_log import log
from oslo_privsep import capabilities, comm, daemon, priv_context

from os_acc import privsep

LOG = log.getLogger(__name__)

# include/uapi/linux/prctl.h
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# include/uapi/linux/securebits.h: NOROOT, NO_SETUID_FIXUP and
# NO_CAP_AMBIENT_RAISE are set, KEEP_CAPS is not; all four are locked.
_SECUREBITS = 0b1110_1111
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = frozenset({"LANG", "LANGUAGE", "TZ"})
# Python imports these lazily, to format errors or to decode names; not every
# version has all of them.
_ON_DEMAND = (
    *("_colorize", "ast", "linecache", "tokenize", "traceback", "unicodedata"),
    *("encodings.ascii", "encodings.idna", "encodings.latin_1", "stringprep"),
    *("concurrent.futures.thread", "multiprocessing.process"),
)

_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _LoadedOnly(MetaPathFinder):
    """Reject imports of modules that are not loaded yet."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Reject an import; Python does not call this for loaded modules.

        :raises ImportError: always.
        """
        raise ImportError(
            f"{fullname} is not loaded, and a privileged helper that serves imports "
            "nothing: name it in the preload of its os_acc.privsep.Context",
            name=fullname,
        )


class Daemon(daemon.Daemon):
    """The daemon of a context; it confines itself unless the context is another's."""

    def __init__(
        self, channel: comm.ServerChannel, context: priv_context.PrivContext
    ) -> None:
        super().__init__(channel, context)
        self._keep = frozenset(self.caps)
        self._unknown = self._keep - capabilities.CAPS_BYVALUE.keys()
        if isinstance(context, privsep.Context):
            # The configuration may remove capabilities, never add any.
            self._keep &= context.keep
            self.caps = set(self._keep)
            if may_lock():
                # Needed until the bounding set is reduced.
                self.caps.add(capabilities.CAP_SETPCAP)

    def run(self) -> None:
        if isinstance(self.context, privsep.Context):
            if self._unknown:
                raise daemon.FailedToDropPrivileges(
                    f"there are no capabilities {sorted(self._unknown)}"
                )
            clean_environment()
            # A service that ignores it leaves no child a status.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            preload(self.context.preload)
            # The keys of a terminal stop or end all processes of its session.
            if os.getsid(0) != os.getpid():
                os.setsid()
        super().run()

    def loop(self) -> None:
        if isinstance(self.context, privsep.Context):
            lock(self._keep)
            sys.meta_path.insert(0, _LoadedOnly())
        super().loop()


# oslo.privsep instantiates its own class and offers no hook for another one.
# Contexts of other projects are served as before.
daemon.Daemon = Daemon  # type: ignore[misc]


def preload(modules: Iterable[str]) -> None:
    """Import all modules that calls need, while imports are still possible.

    :raises ImportError: one of the modules cannot be imported.
    """
    for name in _ON_DEMAND:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in modules:
        importlib.import_module(name)


def clean_environment() -> None:
    """Keep the language and the time zone; set PATH and HOME; remove the rest."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith("LC_")
    }
    os.environ.clear()
    os.environ.update(kept, PATH=_PATH, HOME="/")


def may_lock() -> bool:
    """Return whether this thread may change its bounding set and securebits."""
    return capabilities.CAP_SETPCAP in capabilities.get_caps()[0]


def lock(keep: Iterable[int]) -> None:
    """Drop all capabilities except ``keep``, and the means to regain them.

    :param keep: capabilities to keep; a subset of this thread's.
    :raises OSError: the kernel refused a step.
    :raises RuntimeError: another thread runs, which would not be confined.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("a helper has to be confined before it starts threads")
    kept = frozenset(keep)
    _call(_PR_SET_NO_NEW_PRIVS, 1)
    _call(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if may_lock():
        for number in _bounding_set() - kept:
            _call(_PR_CAPBSET_DROP, number)
        _call(_PR_SET_SECUREBITS, _SECUREBITS)
    elif os.geteuid() == 0:
        LOG.warning(
            "Without CAP_SETPCAP the bounding set and the securebits of this helper "
            "stay as they are; no_new_privs is set"
        )
    capabilities.drop_all_caps_except(kept, kept, [])


def _bounding_set() -> frozenset[int]:
    # CapBnd of proc(5) has 64 bits; EINVAL: the kernel has no more capabilities.
    return frozenset(
        number for number in range(64) if _prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1
    )


def _call(option: int, argument: int) -> None:
    if _prctl(option, argument, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")
