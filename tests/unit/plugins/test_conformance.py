# SPDX-License-Identifier: Apache-2.0

"""Each plugin of os_acc keeps the rules of the contract.

Kills and refused writes are a share here; the stress lane has all of them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from os_acc.testing import conformance
from os_acc.testing.conformance import failures
from tests.shares import Share
from tests.unit.plugins.conforming_hosts import HOSTS

#: The share of the unit lane, and the divisor: one or two trials of each device.
_SHARE, _DIVISOR = Share(3), 20
_LONG = (failures.crashes_lose_nothing, failures.refused_writes_lose_nothing)


def _short(check: conformance.Check) -> conformance.Check:
    if check not in _LONG:
        return check
    select = functools.partial(_SHARE.select, divisor=_DIVISOR)
    return functools.partial(check, select=select)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
@pytest.mark.parametrize("case", HOSTS)
def test_the_plugin_conforms(
    case: str, check: conformance.Check, tmp_path: Path
) -> None:
    plugin, make = HOSTS[case]
    with make(tmp_path) as host:
        _short(check)(host, plugin)
