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


@contextlib.contextmanager
def privileged_here() -> Iterator[None]:
    """Run privileged code in this process; its writes in forked children.

    It applies to all contexts, and to those that vendors' plugins bring along later.
    """
    with _changed(None, lambda context: context.set_client_mode(False)):
        yield


@contextlib.contextmanager
def privileged_by(
    command: str, contexts: Sequence[privsep.Context] | None = None
) -> Iterator[None]:
    """Run privileged code in helper processes, and end them.

    :param command: the value of ``helper_command``; see
        :func:`command`.
    :param contexts: each has a helper of its own, started by its first call; None: all,
        with those that vendors' plugins bring along later.
    """
    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    started: list[privsep.Context] = []

    def start(context: privsep.Context) -> None:
        started.append(context)
        cfg.CONF.set_override("helper_command", command, context.cfg_section)
        context.set_client_mode(True)

    try:
        with _changed(contexts, start):
            yield
    finally:
        for context in started:
            context.stop()
            cfg.CONF.clear_override("helper_command", context.cfg_section)


@contextlib.contextmanager
def helpers_started_by(command: str) -> Iterator[None]:
    """Start the helpers of all contexts with a command, also those of plugins.

    Whether a context uses a helper stays as it is.

    :param command: see :func:`privileged_by`.
    """
    started: list[privsep.Context] = []
    before = privsep.on_creation

    def set_command(context: privsep.Context) -> None:
        started.append(context)
        cfg.CONF.set_override("helper_command", command, context.cfg_section)

    def on_creation(context: privsep.Context) -> None:
        if before is not None:
            before(context)
        set_command(context)

    try:
        privsep.on_creation = on_creation
        for context in privsep.contexts():
            set_command(context)
        yield
    finally:
        privsep.on_creation = before
        for context in started:
            cfg.CONF.clear_override("helper_command", context.cfg_section)


@contextlib.contextmanager
def _changed(
    contexts: Sequence[privsep.Context] | None,
    change: Callable[[privsep.Context], None],
) -> Iterator[None]:
    """Change contexts, and restore where their privileged code runs.

    :param contexts: None: all, and those that are made in the block.
    """
    modes = {each: each.client_mode for each in contexts or privsep.contexts()}

    def change_new(context: privsep.Context) -> None:
        modes[context] = context.client_mode
        change(context)

    before = privsep.on_creation
    if contexts is None:
        privsep.on_creation = change_new
    for context in tuple(modes):
        change(context)
    try:
        yield
    finally:
        privsep.on_creation = before
        for context, mode in modes.items():
            context.set_client_mode(mode)


if __name__ == "__main__":
    main()
