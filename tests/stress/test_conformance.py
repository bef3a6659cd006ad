# SPDX-License-Identifier: Apache-2.0

"""The checks of conformance, in full, for each plugin of os_acc."""

import functools

import pytest

from os_acc.testing import conformance
from tests.unit.plugins.conforming_hosts import HOSTS

#: The kills and the refused writes of each device are divided among so many shares.
SHARES = 24


@pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
@pytest.mark.parametrize("case", HOSTS)
def test_the_plugin_conforms(case, check, tmp_path, share):
    plugin, make = HOSTS[case]
    if check in conformance.KILLS:
        select = functools.partial(share.select, divisor=SHARES)
        check = functools.partial(check, select=select)
    with make(tmp_path) as host:
        check(host, plugin)
