# SPDX-License-Identifier: Apache-2.0

"""Select the process in which privileged code runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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
    """Run privileged code in this process; its writes in forked children."""
    with _client_mode(CONTEXTS, False):
        yield


@contextlib.contextmanager
def privileged_by(
    command: str, contexts: Sequence[privsep.Context] = CONTEXTS
) -> Iterator[None]:
    """Run privileged code in helper processes, and end them.

    :param command: the value of ``helper_command``; see
        :func:`os_acc.testing.helper.command`.
    :param contexts: each has a helper of its own, started by its first call.
    """
    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    for context in contexts:
        cfg.CONF.set_override("helper_command", command, context.cfg_section)
    try:
        with _client_mode(contexts, True):
            yield
    finally:
        for context in contexts:
            context.stop()
            cfg.CONF.clear_override("helper_command", context.cfg_section)


@contextlib.contextmanager
def _client_mode(contexts: Sequence[privsep.Context], mode: bool) -> Iterator[None]:
    before = [context.client_mode for context in contexts]
    for context in contexts:
        context.set_client_mode(mode)
    try:
        yield
    finally:
        for context, old in zip(contexts, before, strict=True):
            context.set_client_mode(old)
