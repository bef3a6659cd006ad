# SPDX-License-Identifier: Apache-2.0

"""A rebuild gives a guest another image, which may request another function.

Specification: "With that precondition, accelerator resources are left attached to the
instance during the rebuild." The contents of their regions follow the image, or the
plug fails: a region with another function is never confirmed.
"""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach import verification
from os_acc.attach.lifecycle import Lifecycle
from os_acc.objects.api import AcceleratorEntry
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import (
    HostSpec,
    TestHost,
    hosts,
    image_directory,
    instance,
    request,
    uuid_of,
)
from os_acc.testing.dfl import payload
from os_acc.testing.nova import FakeProviderTree
from tests.expected_errors import Expected, raises
from tests.unit import acme_card
from tests.unit.acme_card import PCI_A, PCI_B
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    OTHER_CARD,
    POWER_ON,
    VF,
    function_trait,
    held,
    is_unknown,
    upload,
)

Entries = list[AcceleratorEntry]


def vm_image(bench: TestHost, name: str, **properties: str) -> str:
    """Add an image of a guest; return its id."""
    unsaid = {"accel:function_id": None, "accel:function_name": None}
    return upload(bench, name, tags=None, **unsaid | properties)


@pytest.fixture
def images(fpgas: TestHost) -> dict[str, str]:
    """Add bitstreams, and an image of a guest that requests each of them."""
    return images_of(fpgas)


def images_of(bench: TestHost) -> dict[str, str]:
    upload(bench)
    upload(bench, "crypto", CRYPTO)
    return vm_images(bench)


def vm_images(bench: TestHost) -> dict[str, str]:
    """Add an image of a guest for each function."""
    return {
        function: vm_image(bench, f"vm-{function}", function_id=function)
        for function in (GZIP, CRYPTO, POWER_ON)
    }


def plug(
    bench: TestHost, image: str, *addresses: str, trait: str = "", **requested: str
) -> Entries:
    """Plug regions for a guest that boots an image."""
    found = [bench.provider(address) for address in addresses or (CARD,)]
    selected, specs = request(*found)
    specs |= {f"accel1:{name}": value for name, value in requested.items()}
    if trait:
        specs[f"trait1:{trait}"] = "required"
    return bench.manager.plug(instance(1) | {"image_id": image}, selected, specs)


def start(bench: TestHost, image: str = "") -> Entries:
    """Prepare what is recorded, as for a server that starts after its rebuild."""
    return bench.manager.plug(instance(1) | {"image_id": image}, None, None)


def reaching(function: str, entries: Entries) -> Entries:
    """Return the entries of the same devices, with another function."""
    return [{**entry, "function_id": function} for entry in entries]


def leases(bench: TestHost) -> tuple[Lease, ...]:
    return bench.manager.store.leases(uuid_of(1))


def refuse(bench: TestHost, error: Expected, image: str, **flavor: Any) -> Any:
    """Check that a rebuild fails, and that it changes neither host nor leases."""
    before = bench.kernel.snapshot(), leases(bench), bench.programmings()
    with raises(error) as caught:
        plug(bench, image, **flavor) if flavor else start(bench, image)
    assert (bench.kernel.snapshot(), leases(bench), bench.programmings()) == before
    return caught.value


# -- another function -----------------------------------------------------------


@pytest.mark.parametrize("rebuild", [plug, start])
def test_a_rebuild_with_an_image_that_names_another_function_is_reprogrammed(
    fpgas, images, rebuild
):
    before = fpgas.kernel.snapshot()
    first = plug(fpgas, images[GZIP])
    assert rebuild(fpgas, images[CRYPTO]) == reaching(CRYPTO, first)
    assert held(fpgas) == CRYPTO
    assert fpgas.drivers(CARD) == ["vfio-pci"]
    assert fpgas.lease_state() is LeaseState.HELD
    # It is decided now, for each call that follows.
    for image in (images[CRYPTO], ""):
        assert rebuild(fpgas, image) == reaching(CRYPTO, first)
    fpgas.restart()
    assert start(fpgas, images[CRYPTO]) == reaching(CRYPTO, first)
    assert fpgas.programmings() == ["done"] * 2
    fpgas.unplug(1)
    assert fpgas.kernel.snapshot() == before


def test_a_rebuild_of_a_guest_with_a_port_is_reprogrammed(ports):
    images = images_of(ports)
    first = plug(ports, images[GZIP], VF)
    assert plug(ports, images[CRYPTO], VF) == reaching(CRYPTO, first)
    assert ports.kernel.held_by_hardware(CARD)[0] == CRYPTO
    assert ports.drivers(VF) == ["vfio-pci"]
    # Placement gets the function of the region without another scan.
    tree = FakeProviderTree()
    tree.new_root("node1", uuid_of(99))
    ports.manager.update_provider_tree(tree, "node1")
    (lease,) = leases(ports)
    assert function_trait(CRYPTO) in tree.data(lease.provider).traits
    assert function_trait(GZIP) not in tree.data(lease.provider).traits


def test_a_rebuild_reprograms_a_card_that_stays_with_the_host(fpgas, images):
    first = plug(fpgas, images[GZIP], attach_target="host")
    assert plug(fpgas, images[CRYPTO], attach_target="host") == reaching(CRYPTO, first)
    assert held(fpgas) == CRYPTO
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    fpgas.unplug(1)
    assert fpgas.drivers(CARD) == ["dfl-pci"]


def test_each_region_of_a_guest_follows_its_image(fpgas, images):
    first = plug(fpgas, images[GZIP], CARD, OTHER_CARD)
    assert start(fpgas, images[CRYPTO]) == reaching(CRYPTO, first)
    assert (held(fpgas), held(fpgas, OTHER_CARD)) == (CRYPTO, CRYPTO)


def test_a_function_that_the_guest_has_written_itself_is_programmed(fpgas, images):
    plug(fpgas, images[GZIP])
    fpgas.kernel.program_as_guest(CARD, CRYPTO)
    start(fpgas, images[CRYPTO])
    assert fpgas.programmings() == ["done"] * 2


def test_another_bitstream_with_the_same_function_is_programmed_by_its_name(fpgas):
    upload(fpgas)
    content = image_directory.gbs(hosts.DFL_INTERFACE, GZIP, payload(GZIP) * 2)
    fpgas.images.put("better", content, **{"accel:function_id": GZIP})
    by_name = [
        vm_image(fpgas, f"vm-{name}", bitstream_name=name)
        for name in ("gzip", "better")
    ]
    for image in by_name:
        plug(fpgas, image)
    assert fpgas.programmings() == ["done"] * 2


# -- no other function ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accel:function_id", GZIP),
        ("bitstream_name", "gzip"),
    ],
)
def test_a_rebuild_with_an_image_that_names_the_same_function_is_confirmed(
    fpgas, images, name, value
):
    first = plug(fpgas, images[GZIP])
    writes = fpgas.kernel.writes()
    assert start(fpgas, vm_image(fpgas, "vm-again", **{name: value})) == first
    assert fpgas.kernel.writes() == writes
    # The image is compared once only.
    state = leases(fpgas)
    assert start(fpgas, state[0].guest.image_id) == first
    assert leases(fpgas) == state


def test_a_rebuild_with_an_image_without_a_request_keeps_the_contents(fpgas, images):
    first = plug(fpgas, images[GZIP])
    assert start(fpgas, vm_image(fpgas, "plain")) == first
    assert plug(fpgas, "") == first
    assert held(fpgas) == GZIP
    assert fpgas.programmings() == ["done"]


def test_the_bitstream_of_the_flavor_is_not_selected_again_for_a_plain_image(fpgas):
    upload(fpgas)
    first = fpgas.plug(1, bitstream_name="gzip")
    # Another image has this name by now.
    upload(fpgas, "gzip", CRYPTO)
    assert plug(fpgas, vm_image(fpgas, "plain"), bitstream_name="gzip") == first
    assert held(fpgas) == GZIP


def test_a_guest_without_a_region_has_its_image_not_read(bench):
    bench.plug(1, "0000:17:00.0")
    state = leases(bench)
    start(bench, "11111111-2222-4333-8444-555555555555")
    assert leases(bench) == state


def test_an_image_that_is_not_visible_requests_nothing(fpgas, images):
    first = plug(fpgas, images[GZIP])
    assert start(fpgas, "11111111-2222-4333-8444-555555555555") == first
    assert held(fpgas) == GZIP


def test_a_function_that_the_region_holds_already_is_confirmed(two_functions):
    """The host shows the contents of this region while guests use it."""
    image = vm_image(two_functions, "vm", function_id=GZIP)
    two_functions.plug(2, PCI_B, function_id=GZIP)
    first = two_functions.plug(1, PCI_A)
    assert start(two_functions, image) == reaching(GZIP, first)
    assert acme_card.held(two_functions) == GZIP


# -- refused, with nothing changed ----------------------------------------------


@pytest.mark.parametrize("flavor", ["function_id", "bitstream_id"])
def test_a_rebuild_that_contradicts_the_flavor_fails_and_changes_nothing(
    fpgas, images, flavor
):
    bitstream = json.loads((fpgas.images.path / "gzip.json").read_text())["id"]
    requested = {flavor: GZIP if flavor == "function_id" else bitstream}
    plug(fpgas, images[GZIP], **requested)
    refuse(fpgas, exception.InvalidExtraSpec, images[CRYPTO], **requested)
    # Without the flavor: it is recorded.
    refuse(fpgas, exception.InvalidExtraSpec, images[CRYPTO])


def test_a_rebuild_that_contradicts_a_trait_of_the_flavor_fails_and_changes_nothing(
    fpgas, images
):
    plug(fpgas, "", trait=function_trait(POWER_ON))
    refuse(fpgas, exception.InvalidExtraSpec, images[GZIP])
    assert held(fpgas) == POWER_ON


def test_a_rebuild_that_names_the_other_function_than_a_trait_changes_nothing(
    two_functions,
):
    acme_card.leave(acme_card.with_one_image(two_functions))
    images = vm_images(two_functions)
    plug(two_functions, images[GZIP], PCI_A, trait=acme_card.trait_of(GZIP))
    refuse(two_functions, exception.InvalidExtraSpec, images[CRYPTO])


def test_all_regions_of_a_guest_are_decided_before_the_first_is_changed(fpgas, images):
    plug(fpgas, "", CARD, OTHER_CARD, function_id=GZIP)
    refuse(fpgas, exception.InvalidExtraSpec, images[CRYPTO])
    assert (held(fpgas), held(fpgas, OTHER_CARD)) == (GZIP, POWER_ON)


def test_a_function_without_a_bitstream_fails_and_changes_nothing(fpgas, images):
    plug(fpgas, images[GZIP])
    refuse(fpgas, exception.ImageNotFound, images[POWER_ON])


def test_a_device_that_the_guest_still_holds_is_not_reprogrammed(fpgas, images):
    """Specification: "all device access must be quiesced" before a rebuild."""
    first = plug(fpgas, images[GZIP])
    fpgas.kernel.hold(CARD)
    refuse(fpgas, exception.DeviceInUse, images[CRYPTO])
    # The same function needs no quiesced device.
    start(fpgas, vm_image(fpgas, "vm-again", function_name="gzip"))
    fpgas.kernel.let_go(CARD)
    assert start(fpgas, images[CRYPTO]) == reaching(CRYPTO, first)
    assert held(fpgas) == CRYPTO


def test_a_rebuild_beside_another_guest_of_the_region_is_refused(two_functions):
    images = vm_images(two_functions)
    first = plug(two_functions, images[GZIP], PCI_A)
    two_functions.plug(2, PCI_A, function_id=GZIP)
    error = refuse(two_functions, exception.RegionReason.IN_USE, images[CRYPTO])
    assert uuid_of(2) in str(error)
    two_functions.unplug(2)
    assert start(two_functions, images[CRYPTO]) == reaching(CRYPTO, first)
    assert acme_card.held(two_functions) == CRYPTO


@pytest.mark.parametrize("first", [GZIP, ""])
def test_a_function_behind_another_pci_function_is_not_confirmed(two_functions, first):
    """A rebuild changes no device; PCI A reaches GZIP, and PCI B reaches CRYPTO."""
    images = vm_images(acme_card.with_one_image(two_functions))
    (entry,) = plug(two_functions, images.get(first, ""), PCI_A)
    assert entry["pci_id"] == PCI_A
    error = refuse(two_functions, exception.RegionReason.MISMATCH, images[CRYPTO])
    assert "unplug" in error.hint
    two_functions.unplug(1)
    (entry,) = plug(two_functions, images[CRYPTO], PCI_A)
    assert entry["pci_id"] == PCI_B


def test_a_card_that_cannot_be_programmed_has_its_function_or_none(make_fpgas):
    fixed = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    images = images_of(fixed)
    first = fixed.plug(1)
    assert start(fixed, images[POWER_ON]) == first
    refuse(fixed, exception.RegionReason.NOT_PROGRAMMABLE, images[CRYPTO])
    fixed.unplug(1)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        plug(fixed, images[CRYPTO])


# -- interrupted ----------------------------------------------------------------


die = mock.Mock(side_effect=KeyboardInterrupt)


def kill(host: TestHost, image: str) -> None:
    """End a rebuild once the contents are recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lifecycle, "reestablish", die)
        with pytest.raises(KeyboardInterrupt):
            start(host, image)


@pytest.fixture(params=["decided", "unbound", "programming", "programmed"])
def killed(fpgas, images, request) -> Entries:
    """Interrupt a rebuild at one of its steps; return the entries of the guest."""
    first = plug(fpgas, images[GZIP])
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "decided":
            patch.setattr(Lifecycle, "reestablish", die)
        elif request.param == "programmed":
            patch.setattr(verification, "check_viable", die)
        elif request.param == "programming":
            fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
        else:
            fpgas.kernel.fail(CARD, "drivers_probe")
        with pytest.raises((KeyboardInterrupt, exception.OsAccError)):
            start(fpgas, images[CRYPTO])
    fpgas.restart()
    assert fpgas.plugged(1) == [CARD]
    return first


@pytest.mark.parametrize("image", ["", CRYPTO])
@pytest.mark.share(4)
def test_a_killed_rebuild_is_finished_by_the_next_plug_after_a_reboot(
    fpgas, images, killed, image
):
    fpgas.kernel.reboot()
    fpgas.restart()
    assert start(fpgas, images.get(image, "")) == reaching(CRYPTO, killed)
    assert held(fpgas) == CRYPTO
    assert fpgas.drivers(CARD) == ["vfio-pci"]
    assert not is_unknown(fpgas)
    count = len(fpgas.programmings())
    assert plug(fpgas, images[CRYPTO]) == reaching(CRYPTO, killed)
    assert len(fpgas.programmings()) == count


@pytest.mark.share(4)
def test_after_a_killed_rebuild_the_device_goes_back_to_the_host(fpgas, killed):
    assert fpgas.unplug(1) == 1
    assert fpgas.drivers(CARD) == ["dfl-pci"]


# -- a reboot of the host -------------------------------------------------------


def test_a_rebuild_after_a_reboot_programs_what_its_image_names(fpgas, images):
    first = plug(fpgas, images[GZIP])
    fpgas.kernel.reboot()
    fpgas.restart()
    assert start(fpgas, images[CRYPTO]) == reaching(CRYPTO, first)
    assert held(fpgas) == CRYPTO
    assert fpgas.programmings() == ["done"] * 2


def test_a_function_that_the_flavor_found_is_restored_once_an_image_names_it(fpgas):
    """A function without a recorded image cannot be restored after a reboot."""
    upload(fpgas)
    fpgas.plug(2, function_id=GZIP, attach_target="none")
    fpgas.unplug(2)
    first = plug(fpgas, "", trait=function_trait(GZIP))
    start(fpgas, vm_image(fpgas, "vm", function_id=GZIP))
    fpgas.kernel.reboot()
    fpgas.restart()
    assert start(fpgas) == first
    assert held(fpgas) == GZIP
