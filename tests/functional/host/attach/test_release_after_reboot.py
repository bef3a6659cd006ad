# SPDX-License-Identifier: Apache-2.0

"""A release after a reboot, which has given the device back already."""

from __future__ import annotations

from os_acc.privsep import record
from tests.unit import acme

CARD = "0000:5e:00.0"


def test_it_ends_the_helpers_copy_of_the_record(make_bench, install_plugins):
    install_plugins(acme="tests.unit.acme:Marks")
    host = make_bench()
    host.plug(1, CARD)
    host.kernel.reboot()
    host.restart()
    assert host.unplug(1) == 1
    assert acme.marked(host.root) == []
    assert not record.claimed()
    host.restart()
    host.plug(2, CARD)
