# SPDX-License-Identifier: Apache-2.0

"""Nova replaces the addresses of functions one after the other."""

from __future__ import annotations

import pytest
from lxml import etree
from nova import exception
from nova.virt.libvirt import migration

from os_acc.nova import live_migration

FIRST, SECOND, THIRD, FOURTH = (f"0000:3b:00.{number}" for number in range(1, 5))


def moved(pairs: dict[str, str]) -> list[str]:
    """Return the addresses of a guest with these functions, after the move."""
    devices = "".join(
        "<hostdev type='pci'><source><address domain='0x0000' bus='0x3b' "
        f"slot='0x00' function='0x{each[-1]}'/></source></hostdev>"
        for each in sorted(pairs)
    )
    definition = etree.fromstring(f"<domain><devices>{devices}</devices></domain>")
    migration._update_pci_dev_xml(definition, live_migration._ordered(pairs))
    found = definition.findall("devices/hostdev/source/address")
    return [f"0000:3b:00.{int(each.get('function'), 16)}" for each in found]


@pytest.mark.parametrize(
    "pairs",
    [
        {FIRST: SECOND, SECOND: THIRD},
        {FIRST: SECOND, SECOND: THIRD, THIRD: FOURTH},
        {FIRST: FIRST, SECOND: THIRD},
    ],
)
def test_each_device_of_the_guest_gets_its_own(pairs):
    assert moved(pairs) == [pairs[each] for each in sorted(pairs)]


def test_addresses_that_are_exchanged_refuse_the_target():
    with pytest.raises(exception.MigrationPreCheckError, match="are exchanged"):
        moved({FIRST: SECOND, SECOND: FIRST})
