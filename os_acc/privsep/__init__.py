# SPDX-License-Identifier: Apache-2.0

"""The only code that runs as root.

Policy is on the unprivileged side; a privileged call performs one step. Entry
points take numbers, build every path themselves, and return plain tuples.
See ``doc/source/admin/privileges.rst`` for how the helper is started.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, TypeVarTuple

from oslo_config import cfg
from oslo_privsep import capabilities, daemon, priv_context

from os_acc import deadlines
from os_acc.privsep import root_process as root_process
from os_acc.privsep.step import HealthReading as HealthReading
from os_acc.privsep.step import Parameters
from os_acc.privsep.step import Step as Step
from os_acc.privsep.step import StepTarget as StepTarget

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_THREADS = 64
HELPER: Final = "privsep-helper"
_contexts: list[Context] = []

#: Called with each context that is made; :mod:`os_acc.testing` selects its process.
on_creation: Callable[[Context], None] | None = None


class Context(priv_context.PrivContext):
    """A privilege context whose helper root can start without sudo.

    A vendor's package creates its own context for its privileged calls:
    oslo.privsep ties entry points to the prefix of their module.

    :param pypath: dotted path of the module attribute that holds the context.
    :param cfg_section: its group in the configuration.
    :param keep: the Linux capabilities to keep (capabilities(7)).
    :param preload: dotted names of the modules to import before the helper drops
        its privileges: the modules of the entry points, and all modules that
        these import at call time. A running helper imports nothing.
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
        # Calls mostly wait for their child. With one thread per processor, a few
        # stuck devices would block all other calls.
        cfg.CONF.set_default("thread_pool_size", _THREADS, group=cfg_section)
        #: Guards replacement of the channel.
        self.guard = threading.Lock()
        deadlines.reset_after_fork(self)
        _contexts.append(self)
        if on_creation is not None:
            on_creation(self)

    def step(self, function: Callable[[StepTarget, *_Ts], _T]) -> Step[_T, *_Ts]:
        """Make a function a privileged step; a decorator.

        A plugin runs it with ``steps.run()`` of
        :class:`os_acc.plugins.base.PrivilegedSteps`. The library passes a
        :class:`StepTarget` before the arguments, and runs the function in a child
        process of the helper: under the lock of the device, with the epoch of the
        lease, until the deadline of the operation. The function neither imports nor
        logs, reads its writes back, and may be repeated.

        Arguments and result are plain: None, bool, int, str, bytes, and tuples of
        these. Every parameter has such a type as annotation. An OSError of the function
        fails the step with its error number; any other exception is a defect of the
        vendor's.

        :raises TypeError: a parameter has no plain type.
        """
        return self._step(function, of_parent=False)

    def parent_step(self, function: Callable[[StepTarget, *_Ts], _T]) -> Step[_T, *_Ts]:
        """Make a function a step that uses the parent of its device; a decorator.

        It is a step as of :meth:`step`. In addition no two of these steps run at once
        whose devices have the same :attr:`StepTarget.parent`, also of other leases,
        plugins and processes. A step waits for the others until its deadline.

        :raises TypeError: a parameter has no plain type.
        """
        return self._step(function, of_parent=True)

    def _step(
        self, function: Callable[[StepTarget, *_Ts], _T], *, of_parent: bool
    ) -> Step[_T, *_Ts]:
        # steps needs the contexts below, and a call of the helper may import nothing.
        from os_acc.privsep import vendor_steps

        parameters = Parameters.of(function)
        entry = vendor_steps.entry_point(self, function, parameters, of_parent)
        return Step(self, function, parameters, entry)

    def health_step(
        self, function: Callable[[StepTarget, *_Ts], HealthReading]
    ) -> Step[HealthReading, *_Ts]:
        """Make a function the health step of a plugin; a decorator.

        The plugin names it in :attr:`os_acc.plugins.base.PluginBase.health_step`, with
        :meth:`.Step.with_arguments` if it has parameters behind its target. It
        only reads: it is called without a lease, for one function, and returns the
        fault, which is a phrase for the operator or '', and readings for
        ``os-acc metrics``, each a name in snake case and an integer. An OSError states
        that the health is unknown. In all else it is a step as of :meth:`step`.

        :raises TypeError: a parameter has no plain type.
        """
        from os_acc.privsep import vendor_steps

        parameters = Parameters.of(function)
        entry = vendor_steps.health_entry_point(self, function, parameters)
        return Step(self, function, parameters, entry, is_health=True)

    def is_entrypoint(self, func: Callable[..., Any]) -> bool:
        """Return whether a helper of this context may call a function or a step."""
        if isinstance(func, Step):
            return func.context is self
        return super().is_entrypoint(func)

    def forget_parent(self) -> None:
        """Drop the parent's helper in a forked child."""
        if self.channel is not None:
            # Closes only this end: shutdown(2) would affect the parent. Left open,
            # it would keep the helper alive after the parent is killed.
            self.channel.writer.writesock.close()
        self.channel = None
        self.start_lock = threading.Lock()
        self.guard = threading.Lock()

    def connect(self) -> daemon.RootwrapClientChannel:
        """Start a helper, even if one is already running.

        :raises OSError, FailedToDropPrivileges: the helper does not start.
        """
        return daemon.RootwrapClientChannel(context=self)

    def helper_command(self, sockpath: str) -> list[str]:
        command = super().helper_command(sockpath)
        for_all = None
        with contextlib.suppress(cfg.NoSuchGroupError, cfg.NoSuchOptError):
            for_all = cfg.CONF.os_acc.helper_command
        if for_all and not self.conf.helper_command:
            return [*shlex.split(for_all), *command[-4:]]
        # Root needs no sudo, which may not be installed. Filters of rootwrap know the
        # helper by its plain name.
        prefix = [] if os.geteuid() == 0 else ["sudo"]
        is_plain = not prefix or command[:2] == ["sudo", HELPER]
        if self.conf.helper_command or not is_plain:
            return command
        return [*prefix, helper_program(), *command[command.index(HELPER) + 1 :]]


def helper_program() -> str:
    """Return the program of the helpers: the one beside the running Python, if any."""
    beside = os.path.join(os.path.dirname(sys.executable), HELPER)
    return beside if os.access(beside, os.X_OK) else HELPER


def contexts() -> tuple[Context, ...]:
    """Return all contexts of this process: those of os_acc, then those of vendors."""
    return tuple(_contexts)


#: Binds, unbinds, creates VFs and mediated devices, resets: uid 0 owns the files, so
#: that no capability is needed (drivers/pci/pci-sysfs.c checks none for these).
base = Context(
    "os_acc.privsep.base",
    "os_acc_base",
    [],
    preload=[
        "os_acc.privsep.binding",
        "os_acc.privsep.fpga",
        "os_acc.privsep.mdev",
        "os_acc.privsep.qat",
        "os_acc.privsep.sriov",
        "os_acc.privsep.vgpu",
    ],
)

#: Finds the holders of a device: reads other users' /proc/<pid>/fd (ptrace(2),
#: access mode checks) and opens VFIO nodes that libvirt gave to QEMU's user.
inspect = Context(
    "os_acc.privsep.inspect",
    "os_acc_inspect",
    [capabilities.CAP_SYS_PTRACE, capabilities.CAP_DAC_READ_SEARCH],
    preload=["os_acc.privsep.holders"],
)

#: Programs FPGAs: reads the cached bitstream, which belongs to the service's
#: user, possibly on a file system that restricts root. The FPGA's nodes and
#: sysfs files belong to uid 0; drivers/fpga checks no capability.
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
