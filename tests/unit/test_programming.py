# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A guest finds in its region what its flavor asks for, or is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from stevedore import ExtensionManager

from os_acc import exception, plugins
from os_acc.host import dfl
from os_acc.objects.pci import PciAddress
from os_acc.objects.request import PLACEMENT_NAME
from os_acc.testing import HostSpec, hosts
from tests.unit import acme_fpga
from tests.unit.acme_fpga import PCI_A, PCI_B
from tests.unit.bench import instance, privileged_here, request, uuid_of
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    INTERFACE,
    OTHER_CARD,
    POWER_ON,
    FpgaBench,
    two_cards,
)


@pytest.fixture
def make_fpgas(tmp_path: Path) -> Iterator[Callable[..., FpgaBench]]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(privileged_here())

        def make(spec: HostSpec | None = None, **options: object) -> FpgaBench:
            bench = FpgaBench(tmp_path, spec or two_cards(), **options)
            stack.enter_context(bench.installed())
            stack.callback(bench.end)
            return bench

        yield make


@pytest.fixture
def fpgas(make_fpgas) -> FpgaBench:
    return make_fpgas()


def traits(bench: FpgaBench, address: str = CARD) -> frozenset[str]:
    return bench.provider(address).device.traits


def function_trait(function: str) -> str:
    return f"CUSTOM_FPGA_INTEL_FUNCTION_{function.upper().replace('-', '_')}"


# -- what a flavor can ask for -------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param({"bitstream_id": "<id>"}, id="bitstream by id"),
        pytest.param({"bitstream_name": "gzip"}, id="bitstream by name"),
        pytest.param({"function_id": GZIP}, id="function by id"),
        pytest.param({"function_name": "gzip"}, id="function by name"),
    ],
)
def test_a_region_is_programmed_before_a_guest_has_it(fpgas, wish):
    before = fpgas.kernel.snapshot()
    image = fpgas.upload()
    fpgas.upload("crypto", CRYPTO)
    wish = {name: value.replace("<id>", image) for name, value in wish.items()}
    (entry,) = fpgas.ask(1, **wish)
    assert entry["pci_id"] == CARD
    assert fpgas.programmings() == ["done"]
    assert fpgas.held() == GZIP
    assert fpgas.held(OTHER_CARD) == POWER_ON
    assert fpgas.drivers(CARD) == ["vfio-pci"]
    assert fpgas.unplug(1) == 1
    assert fpgas.kernel.snapshot() == before
    assert fpgas.held() == GZIP


def test_the_same_function_is_not_programmed_again(fpgas):
    fpgas.upload()
    for number in (1, 2):
        fpgas.ask(number, function_id=GZIP)
        fpgas.unplug(number)
    assert fpgas.programmings() == ["done"]
    fpgas.upload("crypto", CRYPTO)
    fpgas.ask(3, function_name="crypto")
    assert fpgas.held() == CRYPTO


def test_a_guest_may_take_a_region_as_it_is(fpgas):
    fpgas.ask(1)
    assert fpgas.programmings() == []
    (lease,) = fpgas.manager.store.leases(uuid_of(1))
    assert lease.programming.function_id == POWER_ON


def test_the_same_request_again_confirms(fpgas):
    fpgas.upload()
    first = fpgas.ask(1, function_id=GZIP)
    assert fpgas.ask(1, function_id=GZIP.upper()) == first
    assert fpgas.programmings() == ["done"]


def test_another_bitstream_is_another_request(fpgas):
    fpgas.upload()
    fpgas.ask(1, function_id=GZIP)
    with pytest.raises(exception.ConsumerConflict):
        fpgas.ask(1, function_id=CRYPTO)


def test_two_cards_are_programmed_for_one_guest(fpgas):
    fpgas.upload()
    fpgas.upload("crypto", CRYPTO)
    found = fpgas.provider(CARD), fpgas.provider(OTHER_CARD)
    selected, specs = request(*found)
    specs |= {"accel1:function_name": "gzip", "accel2:function_name": "crypto"}
    assert len(fpgas.manager.plug(instance(1), selected, specs)) == 2
    assert (fpgas.held(CARD), fpgas.held(OTHER_CARD)) == (GZIP, CRYPTO)


# -- what the guest's own image can ask for ------------------------------------


def boot(bench: FpgaBench, image: str, **wish: str):
    selected, specs = request(bench.provider(CARD))
    specs |= {f"accel1:{name}": value for name, value in wish.items()}
    told = instance(1) | {"image_id": image}
    return bench.manager.plug(told, selected, specs)


def vm_image(bench: FpgaBench, **properties: str) -> str:
    unsaid = {"accel:function_id": None, "accel:function_name": None}
    return bench.upload("vm", tags=None, **unsaid | properties)


def test_the_image_of_the_guest_may_name_the_function(fpgas):
    fpgas.upload()
    boot(fpgas, vm_image(fpgas, **{"accel:function_id": GZIP}))
    assert fpgas.held() == GZIP


def test_the_flavor_wins(fpgas):
    fpgas.upload()
    boot(fpgas, vm_image(fpgas, **{"accel:function_id": GZIP}), function_id=GZIP)
    assert fpgas.held() == GZIP


def test_a_contradiction_is_an_error(fpgas):
    fpgas.upload()
    image = vm_image(fpgas, **{"accel:function_id": CRYPTO})
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO):
        boot(fpgas, image, function_id=GZIP)
    assert fpgas.held() == POWER_ON
    assert fpgas.manager.store.leases() == ()


def test_an_image_by_its_id_has_to_be_what_the_image_of_the_guest_needs(fpgas):
    bitstream = fpgas.upload()
    needs_it = vm_image(fpgas, **{"accel:function_id": GZIP})
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO):
        boot(
            fpgas,
            vm_image(fpgas, **{"accel:function_id": CRYPTO}),
            bitstream_id=bitstream,
        )
    assert fpgas.held() == POWER_ON
    boot(fpgas, needs_it, bitstream_id=bitstream)
    assert fpgas.held() == GZIP


def test_an_image_that_nobody_knows_asks_for_nothing(fpgas):
    boot(fpgas, "11111111-2222-4333-8444-555555555555")
    assert fpgas.programmings() == []


def test_a_host_without_a_source_of_images_asks_nobody(fpgas):
    """Whoever never programs anything need not configure Glance."""
    fpgas.source = "glance"
    fpgas.restart()
    boot(fpgas, "11111111-2222-4333-8444-555555555555")
    assert fpgas.programmings() == []
    with pytest.raises(exception.ImageServiceNotConfigured, match="auth_type"):
        fpgas.ask(2, OTHER_CARD, function_id=GZIP)


# -- what Placement is told ----------------------------------------------------


def test_traits_follow_what_the_region_holds(fpgas):
    fpgas.upload()
    programmable = "CUSTOM_PROGRAMMABLE"
    assert {
        function_trait(POWER_ON),
        programmable,
        "CUSTOM_FPGA_INTEL",
        f"CUSTOM_FPGA_INTEL_REGION_{INTERFACE.upper().replace('-', '_')}",
        f"CUSTOM_FPGA_REGION_INTEL_{INTERFACE.upper().replace('-', '')}",
        f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{POWER_ON.upper().replace('-', '')}",
    } < traits(fpgas)
    before = fpgas.provider(CARD)
    fpgas.ask(1, function_id=GZIP)
    held = traits(fpgas)
    assert function_trait(GZIP) in held
    assert function_trait(POWER_ON) not in held
    assert programmable not in held
    assert fpgas.provider(CARD).uuid == before.uuid
    fpgas.unplug(1)
    assert programmable in traits(fpgas)
    assert function_trait(GZIP) in traits(fpgas)


def test_a_card_that_does_not_say_what_it_takes_is_not_offered(make_fpgas):
    bench = make_fpgas(HostSpec((hosts.dfl("0000:3b", interface_id=""),)))
    assert "compat_id" in bench.refused(CARD).detail


def test_a_card_without_reconfiguration_is_one_region_as_it_is(make_fpgas):
    bench = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    bench.upload()
    assert function_trait(POWER_ON) in traits(bench)
    assert "CUSTOM_PROGRAMMABLE" not in traits(bench)
    with pytest.raises(exception.NotProgrammable, match=CARD):
        bench.ask(1, function_id=GZIP)
    (entry,) = bench.ask(1)
    assert entry["pci_id"] == CARD


def test_what_is_no_fpga_is_not_programmed(make_fpgas):
    bench = make_fpgas(hosts.two_socket_host())
    bench.upload()
    with pytest.raises(exception.NotProgrammable):
        bench.ask(1, "0000:17:00.0", function_id=GZIP)
    assert bench.manager.store.leases() == ()


# -- ports as VFs --------------------------------------------------------------

VFS = '{"address": "*:*:*.*", "num_vfs": 2}'
VF, OTHER_VF = "0000:3b:00.1", "0000:3b:00.2"


@pytest.fixture
def ports(make_fpgas) -> FpgaBench:
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    return make_fpgas(HostSpec((card,)), device_spec=[VFS])


def test_each_port_of_a_card_is_a_region_for_a_guest(ports):
    ports.upload()
    assert function_trait(POWER_ON) in traits(ports, VF)
    assert function_trait(CRYPTO) in traits(ports, OTHER_VF)
    ports.ask(1, OTHER_VF)
    (entry,) = ports.ask(2, VF, function_id=GZIP)
    assert entry["pci_id"] == VF
    assert ports.kernel.held_by_hardware(CARD) == (GZIP, CRYPTO)
    for number in (1, 2):
        assert ports.unplug(number) == 1
    assert function_trait(GZIP) in traits(ports, VF)
    assert function_trait(CRYPTO) in traits(ports, OTHER_VF)


def test_the_host_has_its_ports_back_where_no_vfs_can_be_made(make_fpgas):
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO), vfs=2)
    bench = make_fpgas(HostSpec((card,)), device_spec=[VFS])
    bench.kernel.fail(CARD, "sriov_numvfs")
    assert bench.manager.providers() == ()
    card_now = dfl.read_card(bench.root, PciAddress.parse(CARD))
    assert [port.number for port in card_now.ports] == [0, 1]
    bench.restart()
    assert len(bench.manager.providers()) == 2


def test_a_card_of_several_ports_is_not_given_away_as_one(make_fpgas):
    card = hosts.dfl("0000:3b", functions=(POWER_ON, CRYPTO))
    bench = make_fpgas(HostSpec((card,)))
    assert "2" in bench.refused(CARD).detail


# -- one region, two functions -------------------------------------------------


@pytest.fixture
def two_functions(make_fpgas, monkeypatch) -> FpgaBench:
    found = {"acme": "tests.unit.acme_fpga:TwoFunctions"}
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        plugins.NAMESPACE,
        [EntryPoint(name, at, plugins.NAMESPACE) for name, at in found.items()],
    )
    monkeypatch.setattr(acme_fpga.TwoFunctions, "holds", POWER_ON)
    monkeypatch.setattr(acme_fpga.TwoFunctions, "programmed", [], raising=False)
    bench = make_fpgas(acme_fpga.host())
    bench.upload()
    bench.upload("crypto", CRYPTO)
    return bench


def test_each_function_of_a_region_goes_to_a_guest_of_its_own(two_functions):
    for number, address in enumerate((PCI_A, PCI_B), 1):
        (entry,) = two_functions.ask(number, PCI_A, function_id=GZIP)
        assert entry["pci_id"] == address
    assert acme_fpga.TwoFunctions.programmed == [GZIP]


def test_a_region_is_not_reprogrammed_while_a_guest_has_one_of_its_functions(
    two_functions,
):
    """Reprogramming under a running VM: item 2 of what is wrong in Cyborg."""
    two_functions.ask(1, PCI_A, function_id=GZIP)
    with pytest.raises(exception.RegionInUse, match=uuid_of(1)):
        two_functions.ask(2, PCI_A, function_id=CRYPTO)
    assert acme_fpga.TwoFunctions.programmed == [GZIP]
    assert two_functions.plugged(2) == []
    two_functions.unplug(1)
    two_functions.ask(2, PCI_A, function_id=CRYPTO)
    assert acme_fpga.TwoFunctions.programmed == [GZIP, CRYPTO]


def test_no_other_plugin_takes_what_is_leased(make_fpgas, monkeypatch):
    """One that chooses sooner is not told of regions that are none of its own."""
    found = {
        "dfl": "os_acc.plugins.dfl:DflPlugin",
        "later": "tests.unit.acme_fpga:TwoFunctions",
    }
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        plugins.NAMESPACE,
        [EntryPoint(name, at, plugins.NAMESPACE) for name, at in found.items()],
    )
    bench = make_fpgas(acme_fpga.host())
    bench.ask(1, PCI_A)
    assert bench.provider(PCI_A).device.plugin == "later"


def test_a_guest_that_took_the_region_as_it_was_keeps_that(two_functions):
    two_functions.ask(1, PCI_A)
    with pytest.raises(exception.RegionInUse):
        two_functions.ask(2, PCI_A, function_id=GZIP)
    two_functions.ask(2, PCI_A)
    assert acme_fpga.TwoFunctions.programmed == []


def test_a_region_is_programmed_once_for_a_guest_that_has_all_of_it(two_functions):
    selected, specs = request(two_functions.provider(PCI_A), amount=2)
    specs["accel1:function_id"] = GZIP
    entries = two_functions.manager.plug(instance(1), selected, specs)
    assert {entry["pci_id"] for entry in entries} == {PCI_A, PCI_B}
    assert acme_fpga.TwoFunctions.programmed == [GZIP]
    leases = two_functions.manager.store.leases(uuid_of(1))
    assert [lease.programming.function_id for lease in leases] == [GZIP, GZIP]


def test_a_region_holds_one_bitstream_at_a_time(two_functions):
    provider = two_functions.provider(PCI_A)
    resource = provider.device.resource_class
    selected = {
        "allocations": {provider.uuid: {"resources": {resource: 2}}},
        "mappings": {"1": [provider.uuid], "2": [provider.uuid]},
    }
    specs = {
        f"resources1:{resource}": "1",
        f"resources2:{resource}": "1",
        "group_policy": "none",
        "accel1:function_id": GZIP,
        "accel2:function_id": CRYPTO,
    }
    with pytest.raises(exception.RegionInUse, match="cannot hold"):
        two_functions.manager.plug(instance(1), selected, specs)
    assert acme_fpga.TwoFunctions.programmed == []
    assert two_functions.manager.store.leases() == ()


def test_of_guests_that_want_different_functions_at_once_one_gets_its_own(
    two_functions,
):
    asked = {1: GZIP, 2: CRYPTO}

    def plug(number: int) -> str:
        try:
            two_functions.ask(number, PCI_A, function_id=asked[number])
        except exception.RegionInUse:
            return ""
        return asked[number]

    with futures.ThreadPoolExecutor(2) as pool:
        (got,) = [each for each in pool.map(plug, asked) if each]
    assert acme_fpga.TwoFunctions.programmed == [got]


# -- what goes wrong -----------------------------------------------------------


def is_unknown(bench: FpgaBench) -> bool:
    return bool(bench.manager.store.standing().unknown_regions)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("reconfig operation error", exception.ProgrammingOperationError),
        ("reconfig CRC error", exception.ProgrammingCrcError),
        ("reconfig incompatible image", exception.ProgrammingIncompatible),
        ("reconfig IP protocol error", exception.ProgrammingProtocolError),
        ("reconfig fifo overflow error", exception.ProgrammingFifoOverflow),
    ],
)
def test_a_region_that_was_not_programmed_goes_to_no_guest(fpgas, told, error):
    """A failed programming treated as success: item 1 of what is wrong in Cyborg."""
    fpgas.upload()
    fpgas.kernel.fail_programming(CARD, told)
    with pytest.raises(error, match=told) as caught:
        fpgas.ask(1, function_id=GZIP)
    assert caught.value.errors == (told,)
    assert fpgas.manager.store.leases() == ()
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    assert is_unknown(fpgas)
    assert function_trait(POWER_ON) not in traits(fpgas)
    with pytest.raises(exception.RegionUnknown):
        fpgas.ask(2)
    # Whoever asks for a bitstream has it programmed anew.
    fpgas.restart()
    fpgas.ask(3, function_id=GZIP)
    assert fpgas.held() == GZIP
    assert not is_unknown(fpgas)


def test_a_programming_without_effect_is_found_out(fpgas):
    fpgas.upload()
    fpgas.kernel.ignore(CARD, "program")
    with pytest.raises(exception.FunctionMismatch, match=GZIP):
        fpgas.ask(1, function_id=GZIP)
    assert is_unknown(fpgas)
    assert fpgas.manager.store.leases() == ()


def test_an_image_that_is_something_else_is_found_out(fpgas):
    fpgas.upload("liar", CRYPTO, says=GZIP)
    with pytest.raises(exception.FunctionMismatch, match=CRYPTO):
        fpgas.ask(1, function_id=GZIP)
    assert is_unknown(fpgas)


def test_an_image_for_another_region_never_reaches_the_driver(fpgas):
    fpgas.upload(interface=CRYPTO)
    with pytest.raises(exception.ImageMismatch):
        fpgas.ask(1, bitstream_name="gzip")
    assert fpgas.programmings() == []
    assert not is_unknown(fpgas)
    assert fpgas.manager.store.leases() == ()


def test_who_has_the_card_open_keeps_it_as_it_is(fpgas):
    fpgas.upload()
    fpgas.kernel.open_node("dfl-fme.0")
    with pytest.raises(exception.DeviceInUse):
        fpgas.ask(1, function_id=GZIP)
    assert fpgas.programmings() == []
    assert not is_unknown(fpgas)
    fpgas.kernel.close_node("dfl-fme.0")
    fpgas.ask(2)


def test_an_altered_file_in_the_cache_is_fetched_anew(fpgas, tmp_path):
    fpgas.upload()
    fpgas.ask(1, function_id=GZIP)
    fpgas.unplug(1)
    fpgas.upload("crypto", CRYPTO)
    fpgas.ask(1, function_id=CRYPTO)
    fpgas.unplug(1)
    for file in (tmp_path / "state" / "bitstreams").iterdir():
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(content)
    fpgas.ask(2, function_id=GZIP)
    assert fpgas.held() == GZIP
    assert fpgas.programmings() == ["done"] * 3


def test_a_programming_that_never_ends_keeps_the_region(fpgas):
    """It goes on after the time-out, and is reconciled: item 7."""
    fpgas.upload()
    fpgas.kernel.hang(CARD, "program")
    with fpgas.impatient(), pytest.raises(exception.DeviceStuck):
        fpgas.ask(1, function_id=GZIP)
    assert fpgas.plugged(1) == [CARD]
    with fpgas.impatient(), pytest.raises(exception.OsAccError):
        fpgas.ask(2, function_id=GZIP)
    fpgas.end()
    assert fpgas.unplug(1) == 1
    fpgas.ask(2, function_id=GZIP)
    assert fpgas.held() == GZIP


def test_an_image_whose_properties_do_not_tell_is_read_at_its_head(fpgas):
    """A missing property ends in no dead end: item 3."""
    image = fpgas.upload(**{"accel:function_id": None})
    fpgas.ask(1, bitstream_id=image)
    assert fpgas.held() == GZIP


@pytest.mark.parametrize(
    ("uploads", "error"),
    [
        ((), exception.ImageNotFound),
        (("gzip", "gzip2"), exception.ImageAmbiguous),
    ],
)
def test_none_or_two_images_are_told_at_once(fpgas, uploads, error):
    """The other dead ends of item 3: nothing is left half begun."""
    before = fpgas.kernel.snapshot()
    for name in uploads:
        fpgas.upload(name)
    with pytest.raises(error, match=GZIP):
        fpgas.ask(1, function_id=GZIP)
    assert fpgas.manager.store.leases() == ()
    assert fpgas.kernel.snapshot() == before
    fpgas.ask(1)


def test_functions_make_traits_that_placement_takes(fpgas):
    """Every canonical UUID has hyphens: item 4."""
    fpgas.upload()
    fpgas.ask(1, function_id=GZIP)
    found = traits(fpgas)
    assert all(PLACEMENT_NAME.fullmatch(trait) for trait in found)
    assert function_trait(GZIP) in found


def test_a_bitstream_is_programmed_whatever_the_resource_class(make_fpgas):
    """Cyborg ignores it silently unless the class is FPGA: item 6."""
    named = '{"address": "*:*:*.*", "resource_class": "CUSTOM_FAST_CARD"}'
    bench = make_fpgas(device_spec=[named])
    bench.upload()
    assert bench.provider(CARD).device.resource_class == "CUSTOM_FAST_CARD"
    bench.ask(1, function_id=GZIP)
    assert bench.held() == GZIP


# -- after a reboot ------------------------------------------------------------


def test_a_reboot_takes_the_function_and_the_lease_brings_it_back(fpgas):
    """What is recorded of a region is never believed: item 9."""
    fpgas.upload()
    first = fpgas.ask(1, function_id=GZIP)
    fpgas.kernel.reboot()
    assert fpgas.held() == POWER_ON
    fpgas.restart()
    assert fpgas.manager.plug(instance(1), None, None) == first
    assert fpgas.held() == GZIP
    assert fpgas.programmings()[-1] == "done"


def test_a_service_killed_while_it_brings_the_function_back_does_it_again(fpgas):
    """It had taken the card from the driver that shows its region."""
    fpgas.upload()
    fpgas.ask(1, function_id=GZIP)
    fpgas.kernel.reboot()
    fpgas.restart()
    fpgas.kernel.fail(CARD, "drivers_probe")
    with pytest.raises(exception.HostError):
        fpgas.manager.plug(instance(1), None, None)
    assert fpgas.drivers(CARD) == [None]
    fpgas.restart()
    (entry,) = fpgas.manager.plug(instance(1), None, None)
    assert entry["pci_id"] == CARD
    assert fpgas.held() == GZIP


def test_what_a_reboot_has_left_is_not_programmed_again(fpgas):
    first = fpgas.ask(1)
    fpgas.kernel.reboot()
    fpgas.restart()
    assert fpgas.manager.plug(instance(1), None, None) == first
    assert fpgas.programmings() == []


def test_a_guest_does_not_start_with_another_function_than_it_had(fpgas):
    fpgas.upload()
    fpgas.ask(1, function_id=GZIP)
    fpgas.unplug(1)
    fpgas.ask(2)
    fpgas.kernel.reboot()
    fpgas.restart()
    with pytest.raises(exception.FunctionMismatch, match=GZIP):
        fpgas.manager.plug(instance(2), None, None)
    assert fpgas.plugged(2) == [CARD]


def test_after_a_power_cut_nobody_need_answer_for_what_is_in_the_cache(fpgas):
    image = fpgas.upload()
    fpgas.ask(1, bitstream_id=image)
    fpgas.kernel.reboot()
    for file in fpgas.shelf.iterdir():
        file.unlink()
    fpgas.restart()
    assert len(fpgas.manager.plug(instance(1), None, None)) == 1
    assert fpgas.held() == GZIP


def test_what_is_nowhere_any_more_is_told(fpgas, tmp_path):
    image = fpgas.upload()
    fpgas.ask(1, bitstream_id=image)
    fpgas.kernel.reboot()
    for file in (*fpgas.shelf.iterdir(), *(tmp_path / "state/bitstreams").iterdir()):
        file.unlink()
    fpgas.restart()
    with pytest.raises(exception.ImageNotFound, match=image):
        fpgas.manager.plug(instance(1), None, None)
    assert fpgas.plugged(1) == [CARD]


def test_another_file_under_the_same_id_is_another_bitstream(fpgas):
    image = fpgas.upload()
    fpgas.ask(1, bitstream_id=image)
    fpgas.kernel.reboot()
    fpgas.upload("gzip", CRYPTO, says=CRYPTO, id=image)
    fpgas.restart()
    with pytest.raises(exception.ImageInvalid):
        fpgas.manager.plug(instance(1), None, None)
    assert fpgas.held() == POWER_ON
