# SPDX-License-Identifier: Apache-2.0

"""The simulated hosts of the unit tests, for tests of the whole library."""

from tests.unit.cmd.conftest import console, images  # noqa: F401 - fixtures
from tests.unit.conftest import (  # noqa: F401 - fixtures
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
