# SPDX-License-Identifier: Apache-2.0

"""A privileged helper, as oslo.privsep starts it, on a fake kernel.

It replaces ``sudo privsep-helper``::

    [os_acc_base]
    helper_command = python -m os_acc.testing.helper --fake-root <tree>

so that an ordinary user gets a process of its own for the privileged code,
with its forks, deadlines and crashes, and no privileges.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from oslo_config import cfg
from oslo_privsep import daemon
from oslo_utils import importutils

from os_acc.privsep import kernel
from os_acc.testing.kernel import FakeKernel


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


if __name__ == "__main__":
    main()
