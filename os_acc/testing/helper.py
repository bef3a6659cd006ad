# SPDX-License-Identifier: Apache-2.0

"""A privileged helper, as oslo.privsep starts it, on a fake kernel.

It replaces ``sudo privsep-helper``::

    [os_acc_base]
    helper_command = python -m os_acc.testing.helper --fake-root <tree>

so that an ordinary user gets a process of its own for the privileged code,
with its forks, deadlines and crashes, and no privileges. Functions select the
process in which privileged code runs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from oslo_config import cfg
from oslo_privsep import daemon
from oslo_utils import importutils

from os_acc import privsep
from os_acc.privsep import kernel
from os_acc.testing.kernel import FakeKernel

CONTEXTS: Final = (privsep.base, privsep.inspect, privsep.image)


def command(root: str | os.PathLike[str], *config_files: str) -> str:
    """Return the value of a context's option ``helper_command``.

    :param root: a tree that :meth:`FakeKernel.build` made.
    :param config_files: the helper's; the context ``image`` finds the
        cache of bitstreams by ``[os_acc] state_path``.
    """
    words = [sys.executable, "-m", __name__, "--fake-root", os.fspath(root)]
    for config_file in config_files:
        words += ["--config-file", config_file]
    return shlex.join(words)


def main(argv: Sequence[str] | None = None) -> None:
    """Install the fake kernel, then run ``privsep-helper``."""
    parser = argparse.ArgumentParser(
        prog="python -m os_acc.testing.helper", allow_abbrev=False
    )
    parser.add_argument("--fake-root", required=True, metavar="TREE")
    parser.add_argument("--privsep_context", required=True, metavar="NAME")
    own, others = parser.parse_known_args(argv)
    if not os.path.isdir(own.fake_root):
        parser.error(f"{own.fake_root} is not a directory")
    _keep_no_capabilities(own.privsep_context)
    # privsep reads the arguments of the process itself.
    sys.argv[1:] = ["--privsep_context", own.privsep_context, *others]
    # Never restored: when this thread ends, a call may still run in another,
    # and must never find the real kernel.
    kernel.current = fake = FakeKernel(own.fake_root)
    fake.import_behaviour()
    daemon.helper_main()


def _keep_no_capabilities(name: str) -> None:
    # capset(2) grants an ordinary user no capability that it lacks, and a
    # directory tree needs none.
    context = importutils.import_class(name)
    cfg.CONF.set_default("capabilities", [], group=context.cfg_section)


def read_config(path: str) -> None:
    """Let ``cfg.CONF`` read one configuration file, and none of the real host."""
    cfg.CONF(
        ["--config-file", path],
        project="os-acc",
        default_config_files=[],
        default_config_dirs=[],
        use_env=False,
    )


def privileged_here() -> contextlib.AbstractContextManager[None]:
    """Run privileged code in this process; its writes in forked children.

    It applies to all contexts, and to those that vendors' plugins bring along later.
    """
    return _changed(None, functools.partial(_set_client_mode, False))


@contextlib.contextmanager
def privileged_by(
    command: str, contexts: Sequence[privsep.Context] | None = None
) -> Iterator[None]:
    """Run privileged code in helper processes, and end them.

    :param command: the value of ``helper_command``; see :func:`command`.
    :param contexts: each has a helper of its own, started by its first call; None: all,
        with those that vendors' plugins bring along later.
    """
    cfg.CONF([], default_config_files=[], default_config_dirs=[])

    def start(context: privsep.Context, undo: contextlib.ExitStack) -> None:
        undo.callback(context.stop)
        _set_command(command, context, undo)
        _set_client_mode(True, context, undo)

    with _changed(contexts, start):
        yield


def helpers_started_by(command: str) -> contextlib.AbstractContextManager[None]:
    """Start the helpers of all contexts with a command, also those of plugins.

    Whether a context uses a helper stays as it is.

    :param command: see :func:`privileged_by`.
    """
    return _changed(None, functools.partial(_set_command, command))


def _set_client_mode(
    mode: bool, context: privsep.Context, undo: contextlib.ExitStack
) -> None:
    undo.callback(context.set_client_mode, context.client_mode)
    context.set_client_mode(mode)


def _set_command(
    command: str, context: privsep.Context, undo: contextlib.ExitStack
) -> None:
    group = context.cfg_section
    undo.callback(cfg.CONF.clear_override, "helper_command", group)
    cfg.CONF.set_override("helper_command", command, group)


@contextlib.contextmanager
def _changed(
    contexts: Sequence[privsep.Context] | None,
    change: Callable[[privsep.Context, contextlib.ExitStack], None],
) -> Iterator[None]:
    """Change contexts in a block.

    :param contexts: None: all, and those that are made in the block.
    :param change: changes a context, and registers what restores it.
    """
    before = privsep.on_creation
    with contextlib.ExitStack() as undo:

        def change_new(context: privsep.Context) -> None:
            if before is not None:
                before(context)
            change(context, undo)

        if contexts is None:
            undo.callback(setattr, privsep, "on_creation", before)
            privsep.on_creation = change_new
        for context in privsep.contexts() if contexts is None else contexts:
            change(context, undo)
        yield


if __name__ == "__main__":
    main()
