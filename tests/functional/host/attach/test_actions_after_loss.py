# SPDX-License-Identifier: Apache-2.0

"""A plugin releases a device that was adopted after its lease was lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, uuid_of
from tests.unit import acme
from tests.unit.store import store_files

CARD = "0000:5e:00.0"


@pytest.fixture
def host(make_bench, install_plugins) -> TestHost:
    """Return a host whose card has a guest, and a mark of its plugin."""
    install_plugins(acme="tests.unit.acme:Marks")
    host: TestHost = make_bench()
    host.plug(1, CARD)
    return host


@pytest.fixture
def lose_lease(host: TestHost) -> Callable[[str], None]:
    """Return a function that loses the store, or damages the record of the lease."""

    def lose(how: str) -> None:
        if how == "store":
            for file in Path(host.state_path).glob("os_acc.sqlite*"):
                file.unlink()
        else:
            file = store_files.file_in(host.state_path)
            store_files.execute(file, "UPDATE leases SET digest = ''")
        host.restart()

    return lose


@pytest.mark.parametrize("how", ["store", "record"])
def test_the_plugin_releases_the_adopted_card(host, lose_lease, how):
    lose_lease(how)
    card = PciAddress.parse(CARD)
    if how == "record":
        operations.release_device(host.manager, card, None)
    adopted = operations.adopt_device(host.manager, card, uuid_of(1), None)
    assert adopted.needs_release
    assert acme.marked(host.root) == [CARD]
    assert host.unplug(1) == 1
    assert acme.marked(host.root) == []


def test_the_adopted_card_waits_for_its_plugin(host, lose_lease, install_plugins):
    lose_lease("store")
    operations.adopt_device(host.manager, PciAddress.parse(CARD), uuid_of(1), None)
    install_plugins()
    host.restart()
    with pytest.raises(exception.DevicesUnreleased):
        host.unplug(1)
    assert host.lease_state() is LeaseState.QUARANTINED
    assert acme.marked(host.root) == [CARD]
