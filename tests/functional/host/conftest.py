# SPDX-License-Identifier: Apache-2.0

"""The simulated hosts of the unit tests, for tests of the whole library."""

from tests.unit.cmd.conftest import console, images
from tests.unit.conftest import (
    _example_plugin,
    _nothing_continues,
    _own_root_configuration,
    api,
    bench,
    fake,
    fpgas,
    glance,
    install_plugins,
    let_a_device_see,
    make_bench,
    make_fpgas,
    manager,
    ports,
    programmed,
    pytest_configure,
    two_functions,
)

__all__ = [
    "_example_plugin",
    "_nothing_continues",
    "_own_root_configuration",
    "api",
    "bench",
    "console",
    "fake",
    "fpgas",
    "glance",
    "images",
    "install_plugins",
    "let_a_device_see",
    "make_bench",
    "make_fpgas",
    "manager",
    "ports",
    "programmed",
    "pytest_configure",
    "two_functions",
]
