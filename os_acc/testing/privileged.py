# SPDX-License-Identifier: Apache-2.0

"""Select the process in which privileged code runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from oslo_config import cfg

from os_acc import privsep

CONTEXTS: Final = (privsep.base, privsep.inspect, privsep.image)


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
        :func:`os_acc.testing.helper.command`.
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
