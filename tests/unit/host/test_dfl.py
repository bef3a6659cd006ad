# SPDX-License-Identifier: Apache-2.0

import os
from pathlib import Path

import pytest

from os_acc.exception import HostStepFailed, StepReason
from os_acc.host import dfl
from os_acc.host.dfl import DflCard, DflPort, read_card
from tests.expected_errors import raises
from tests.unit.host.tree import PLAIN, Sysfs, address

INTERFACE = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"
FUNCTION = "d8424dc4-a4a3-c413-f89e-433683f9040b"
OTHER = "10000000-2000-3000-4000-500000000000"
VF = "0000:3b:02.0"


class Card:
    """A card as Linux 6.1 shows it, with the numbers that the kernel assigns."""

    def __init__(self, sysfs: Sysfs, directory: Path, region: int = 0) -> None:
        self.sysfs = sysfs
        self.place = directory / f"fpga_region/region{region}"
        self.put("compat_id_of_the_container_is_missing", "")

    def put(self, path: str, text: str) -> Path:
        file = self.place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def fme(self, ports: int = 1) -> None:
        self.put("dfl-fme.0/ports_num", str(ports))

    def manager(self, state: str = "unknown") -> None:
        self.put("dfl-fme.0/dfl-fme-mgr.0/fpga_manager/fpga3/state", state)
        # The kernel's own files beside it are no devices.
        self.put("dfl-fme.0/dfl-fme-mgr.0/driver_override", "(null)")
        self.put("dfl-fme.0/dfl-fme-bridge.4.auto/fpga_bridge/br0/state", "enabled")

    def region(self, compat_id: str | None, number: int = 4) -> None:
        region = f"dfl-fme.0/dfl-fme-region.{number}/fpga_region/region{number + 1}"
        self.put(f"{region}/uevent", "")
        if compat_id is not None:
            self.put(f"{region}/compat_id", compat_id.replace("-", ""))

    def port(self, number: int, name: str, afu_id: str | None = FUNCTION) -> None:
        self.put(f"{name}/id", str(number))
        if afu_id is not None:
            self.put(f"{name}/afu_id", afu_id.replace("-", ""))


def seen(sysfs: Sysfs) -> DflCard:
    found = read_card(sysfs.root, address())
    assert found is not None
    return found


@pytest.fixture
def card(sysfs: Sysfs) -> Card:
    card = Card(sysfs, sysfs.function(driver="dfl-pci"))
    card.fme()
    return card


def test_a_card_with_one_port_is_read_whole(sysfs, card):
    card.manager("operating")
    card.region(INTERFACE)
    card.port(0, "dfl-port.7")
    assert read_card(sysfs.root, address()) == DflCard(
        address=address(),
        ports_num=1,
        ports=(DflPort(0, address(), FUNCTION),),
        manager="fpga3",
        interface_id=INTERFACE,
    )


def test_ports_are_known_by_their_id_and_not_by_their_name(sysfs, card):
    card.fme(2)
    card.port(1, "dfl-port.2", OTHER)
    card.port(0, "dfl-port.10")
    found = seen(sysfs)
    assert [port.number for port in found.ports] == [0, 1]
    assert found.port(1) == DflPort(1, address(), OTHER)
    assert found.port(2) is None


def test_a_card_without_partial_reconfiguration_has_no_manager(sysfs, card):
    card.port(0, "dfl-port.0")
    found = seen(sysfs)
    assert (found.manager, found.interface_id) == (None, None)
    assert found.ports[0].function_id == FUNCTION


@pytest.mark.parametrize(
    "ids", [[None], ["0" * 32], ["f" * 32], [INTERFACE, OTHER]], ids=str
)
def test_an_interface_is_none_if_missing_unset_or_ambiguous(sysfs, card, ids):
    card.manager()
    for number, compat_id in enumerate(ids, 4):
        card.region(compat_id, number)
    card.port(0, "dfl-port.0", ids[0])
    found = seen(sysfs)
    assert (found.manager, found.interface_id) == ("fpga3", None)
    expected = INTERFACE if ids[0] == INTERFACE else None
    assert found.ports[0].function_id == expected


def test_of_a_port_in_reset_nothing_is_known(sysfs, card, monkeypatch):
    card.port(0, "dfl-port.0")

    def read_text(path: str) -> str | None:
        if path.endswith("afu_id"):
            raise HostStepFailed("cannot read it", errno=16, reason=StepReason.REFUSED)
        return Path(path).read_text().strip() if os.path.exists(path) else None

    monkeypatch.setattr(dfl, "read_text", read_text)
    found = seen(sysfs)
    assert found.ports == (DflPort(0, address(), None),)


def test_a_port_that_was_given_to_a_vf_is_found_there(sysfs, card):
    card.fme(2)
    card.port(0, "dfl-port.0")
    given = Card(sysfs, sysfs.vf(PLAIN, 0, VF), region=9)
    given.port(1, "dfl-port.4", OTHER)
    found = seen(sysfs)
    assert found.port(1) == DflPort(1, address(VF), OTHER)


def test_a_port_whose_vf_has_another_driver_is_not_seen(sysfs, card):
    sysfs.vf(PLAIN, 0, VF)
    found = seen(sysfs)
    assert found.ports_num == 1
    assert found.ports == ()


def test_what_has_no_management_engine_is_no_card(sysfs):
    sysfs.function(driver="vfio-pci")
    vf = Card(sysfs, sysfs.vf(PLAIN, 0, VF))
    vf.port(0, "dfl-port.0")
    assert read_card(sysfs.root, address()) is None
    assert read_card(sysfs.root, address(VF)) is None
    assert read_card(sysfs.root, address("0000:99:00.0")) is None


def test_a_card_that_goes_while_it_is_read_is_none(sysfs, card):
    (card.place / "dfl-fme.0/ports_num").unlink()
    assert read_card(sysfs.root, address()) is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("dfl-port.0/afu_id", "not an id"),
        ("dfl-port.0/afu_id", FUNCTION),
        ("dfl-port.0/id", "zero"),
        ("dfl-fme.0/ports_num", ""),
    ],
)
def test_what_nobody_understands_is_an_error_with_the_address(sysfs, card, path, text):
    card.port(0, "dfl-port.0")
    card.put(path, text)
    with raises(StepReason.REFUSED, match=PLAIN) as caught:
        read_card(sysfs.root, address())
    assert caught.value.address == PLAIN
