# SPDX-License-Identifier: Apache-2.0

"""Commands with which oslo.privsep starts a helper."""

from __future__ import annotations

import os

import pytest
from oslo_config import cfg
from oslo_privsep import priv_context

from os_acc.privsep import Context


def as_started(
    monkeypatch: pytest.MonkeyPatch, context: Context, *config_files: str
) -> list[str]:
    """Return the command of oslo.privsep for an ordinary user."""
    monkeypatch.setattr(priv_context, "_HELPER_COMMAND_PREFIX", [])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    conf = cfg.ConfigOpts()
    conf([], project="nothing", default_config_files=[], default_config_dirs=[])
    conf.set_override("config_file", list(config_files))
    conf.register_opts(priv_context.OPTS, group=context.cfg_section)
    monkeypatch.setattr(cfg, "CONF", conf)
    return context.helper_command("/tmp/tmpq2_x/privsep.sock")
