# SPDX-License-Identifier: Apache-2.0

"""The only code that runs as root.

The unprivileged side decides; a privileged call does one thing. Entry
points take numbers, build every path themselves, and return plain tuples.
See ``doc/source/admin/privileges.rst`` for how the helper is started.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable

from oslo_config import cfg
from oslo_privsep import capabilities, comm, daemon, priv_context

from os_acc.privsep import confinement

_THREADS = 64
_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _forget_parent() -> None:
    for context in _contexts:
        context.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)


class Context(priv_context.PrivContext):
    """A privilege context whose helper root can start without sudo.

    A vendor's package makes one of its own for its own privileged steps:
    oslo.privsep ties entry points to the prefix of their module.

    :param pypath: dotted path of the module attribute that holds it.
    :param cfg_section: its group in the configuration.
    :param keep: the Linux capabilities it keeps (capabilities(7)).
    :param preload: dotted names of the modules that its helper imports before
        it drops its privileges: the modules of the entry points, and all that
        these import when they are called. A helper that serves imports nothing.
    """

    def __init__(
        self,
        pypath: str,
        cfg_section: str,
        keep: Iterable[int],
        preload: Iterable[str] = (),
    ) -> None:
        self.keep = frozenset(keep)
        self.preload = tuple(preload)
        super().__init__(
            pypath.rpartition(".")[0],
            cfg_section=cfg_section,
            pypath=pypath,
            capabilities=sorted(self.keep),
        )
        # A call waits for its child, seldom for a processor: with a thread
        # for each processor, as many stuck devices would stop all others.
        cfg.CONF.set_default("thread_pool_size", _THREADS, group=cfg_section)
        #: For whoever puts another channel in place of the one that is used.
        self.guard = threading.Lock()
        _contexts.add(self)

    def forget_parent(self) -> None:
        """In a forked child: the helper is the parent's, and stays that."""
        if self.channel is not None:
            # Only this end of it: to shut it down would do so for the parent.
            # Left open, the helper would outlive a parent that is killed.
            self.channel.writer.writesock.close()
        self.channel = None
        self.start_lock = threading.Lock()
        self.guard = threading.Lock()

    def connect(self) -> daemon.RootwrapClientChannel:
        """Start a helper, whether there is one or not.

        :raises OSError, FailedToDropPrivileges: it does not start.
        """
        return daemon.RootwrapClientChannel(context=self)

    def helper_command(self, sockpath: str) -> list[str]:
        command = super().helper_command(sockpath)
        if os.geteuid() != 0 or self.conf.helper_command:
            return command
        # Root needs nobody's leave, and may well have no sudo at all.
        own = command[command.index("privsep-helper") + 1 :]
        beside = os.path.join(os.path.dirname(sys.executable), "privsep-helper")
        program = beside if os.access(beside, os.X_OK) else "privsep-helper"
        return [program, *own]


class Daemon(daemon.Daemon):
    """Serves a context; confines itself first if that is one of :class:`Context`."""

    def __init__(
        self, channel: comm.ServerChannel, context: priv_context.PrivContext
    ) -> None:
        super().__init__(channel, context)
        self._keep = frozenset(self.caps)
        self._unknown = self._keep - capabilities.CAPS_BYVALUE.keys()
        if isinstance(context, Context):
            # A configuration file may take some away. It gives none.
            self._keep &= context.keep
            self.caps = set(self._keep)
            if confinement.may_lock():
                # Until the bounding set is reduced.
                self.caps.add(capabilities.CAP_SETPCAP)

    def run(self) -> None:
        if isinstance(self.context, Context):
            if self._unknown:
                raise daemon.FailedToDropPrivileges(
                    f"there are no capabilities {sorted(self._unknown)}"
                )
            confinement.clean_environment()
            confinement.preload(self.context.preload)
        super().run()

    def loop(self) -> None:
        if isinstance(self.context, Context):
            confinement.lock(self._keep)
            confinement.load_no_more()
        super().loop()


# oslo.privsep makes its own class and asks no context for another. Contexts of
# others are served as before.
daemon.Daemon = Daemon  # type: ignore[misc]

#: Binds, unbinds, makes VFs, resets: uid 0 owns the files, so that no
#: capability is needed (drivers/pci/pci-sysfs.c checks none for these).
base = Context(
    "os_acc.privsep.base",
    "os_acc_base",
    [],
    preload=["os_acc.privsep.binding", "os_acc.privsep.fpga", "os_acc.privsep.sriov"],
)

#: Looks who holds a device: other users' /proc/<pid>/fd (ptrace(2), access
#: mode checks) and a VFIO node that libvirt has given to QEMU's user.
inspect = Context(
    "os_acc.privsep.inspect",
    "os_acc_inspect",
    [capabilities.CAP_SYS_PTRACE, capabilities.CAP_DAC_READ_SEARCH],
    preload=["os_acc.privsep.holders"],
)

#: Programs FPGAs: reads the cached bitstream, which belongs to the service's
#: user, and may be on a file system that does not let root in for nothing.
#: The FPGA's nodes and sysfs files are uid 0's; drivers/fpga checks no
#: capability.
image = Context(
    "os_acc.privsep.image",
    "os_acc_image",
    [capabilities.CAP_DAC_READ_SEARCH],
    preload=[
        "os_acc.privsep.fpga",
        "os_acc.privsep.signatures",
        "os_acc.privsep.xrt",
    ],
)
