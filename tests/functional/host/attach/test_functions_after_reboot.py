# SPDX-License-Identifier: Apache-2.0

"""After a reboot of the host, each guest has the function that it had before."""

from __future__ import annotations

import pytest
from acme_accelerator import hardware

from os_acc import exception
from os_acc.testing import TestHost, instance
from tests.expected_errors import raises
from tests.unit import acme_card
from tests.unit.acme_card import (
    PCI_A,
    PCI_B,
    PF,
    by_trait,
    leave,
    plug_groups,
    published,
)
from tests.unit.fpga import CRYPTO, GZIP, POWER_ON, is_unknown


@pytest.fixture
def region(two_functions: TestHost) -> TestHost:
    """Return a host whose one image has both functions, by their ids and names."""
    return acme_card.with_one_image(two_functions)


@pytest.mark.parametrize(
    ("after", "order"),
    [((POWER_ON,), (1, 2)), ((CRYPTO, GZIP), (2, 1))],
)
def test_a_reboot_brings_each_function_back_where_it_was(region, after, order):
    entries = {
        number: region.plug(number, PF, function_id=function)
        for number, function in enumerate((GZIP, CRYPTO), start=1)
    }
    region.kernel.reboot()
    acme_card.hold(region, *after)
    region.restart()
    assert published(region) == set()
    for number in order:
        assert region.manager.plug(instance(number), None, None) == entries[number]
        assert acme_card.held_functions(region) == (GZIP, CRYPTO)
    assert published(region) == set()


@pytest.mark.parametrize("after", [(CRYPTO, GZIP), (GZIP, POWER_ON)])
def test_a_reboot_brings_both_functions_of_one_guest_back(region, programmed, after):
    leave(region)
    assert plug_groups(region, CRYPTO, GZIP) == [PCI_B, PCI_A]
    region.kernel.reboot()
    acme_card.hold(region, *after)
    region.restart()
    entries = region.manager.plug(instance(1), None, None)
    assert [each["function_id"] for each in entries] == [CRYPTO, GZIP]
    assert acme_card.held_functions(region) == (GZIP, CRYPTO)
    # Both are restored by one programming.
    assert len(programmed) == 2


@pytest.mark.parametrize(
    ("after", "written"),
    [
        ((POWER_ON,), (GZIP, POWER_ON)),
        # One function was still there before the card was programmed.
        ((GZIP, POWER_ON), (POWER_ON, CRYPTO)),
    ],
)
def test_each_function_of_one_guest_is_checked_after_a_reboot(
    region, monkeypatch, after, written
):
    plug_groups(region, GZIP, CRYPTO)
    region.kernel.reboot()
    acme_card.hold(region, *after)
    region.restart()
    write = hardware.write_functions

    def other(node, functions, data, seconds_left):
        write(node, written, data, seconds_left)

    monkeypatch.setattr(hardware, "write_functions", other)
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=POWER_ON):
        region.manager.plug(instance(1), None, None)
    assert is_unknown(region)


def test_a_function_that_its_flavor_requires_is_not_replaced_by_the_other(region):
    """Without an image on record nothing can bring the function back."""
    acme_card.hold(region, GZIP, CRYPTO)
    entries = by_trait(region, 1, CRYPTO)
    region.kernel.reboot()
    acme_card.hold(region, GZIP, CRYPTO)
    region.restart()
    assert region.manager.plug(instance(1), None, None) == entries
    region.kernel.reboot()
    acme_card.hold(region, CRYPTO, GZIP)
    region.restart()
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=CRYPTO):
        region.manager.plug(instance(1), None, None)
