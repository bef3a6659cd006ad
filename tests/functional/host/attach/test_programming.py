# SPDX-License-Identifier: Apache-2.0

"""A guest gets a region with the function that its flavor requests, or an error."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.placement.device_traits import PROGRAMMABLE
from os_acc.testing import HostSpec, TestHost, hosts, instance, request, uuid_of
from tests.expected_errors import raises
from tests.functional.host.attach.test_rebuild import vm_image
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    INTERFACE,
    OTHER_CARD,
    POWER_ON,
    VF,
    cyborgs_trait,
    function_trait,
    held,
    region_trait,
    traits,
    upload,
)

# -- requests of a flavor ------------------------------------------------------


@pytest.mark.parametrize(
    "requested",
    [
        pytest.param({"bitstream_id": "<id>"}, id="bitstream by id"),
        pytest.param({"bitstream_name": "gzip"}, id="bitstream by name"),
        pytest.param({"function_id": GZIP}, id="function by id"),
        pytest.param({"function_name": "gzip"}, id="function by name"),
    ],
)
def test_a_region_is_programmed_before_a_guest_has_it(fpgas, requested):
    before = fpgas.kernel.snapshot()
    image = upload(fpgas)
    upload(fpgas, "crypto", CRYPTO)
    requested = {
        name: value.replace("<id>", image) for name, value in requested.items()
    }
    (entry,) = fpgas.plug(1, **requested)
    assert entry["pci_id"] == CARD
    assert fpgas.programmings() == ["done"]
    assert held(fpgas) == GZIP
    assert held(fpgas, OTHER_CARD) == POWER_ON
    assert fpgas.drivers(CARD) == ["vfio-pci"]
    assert fpgas.unplug(1) == 1
    assert fpgas.kernel.snapshot() == before
    assert held(fpgas) == GZIP


def test_the_same_function_is_not_programmed_again(ports):
    upload(ports)
    for number in (1, 2):
        ports.plug(number, VF, function_id=GZIP)
        ports.unplug(number)
    assert ports.programmings() == ["done"]
    upload(ports, "crypto", CRYPTO)
    ports.plug(3, VF, function_name="crypto")
    assert ports.kernel.held_by_hardware(CARD)[0] == CRYPTO


def test_the_same_request_again_confirms(fpgas):
    upload(fpgas)
    first = fpgas.plug(1, function_id=GZIP)
    assert fpgas.plug(1, function_id=GZIP.upper()) == first
    assert fpgas.programmings() == ["done"]


def test_two_cards_are_programmed_for_one_guest(fpgas):
    upload(fpgas)
    upload(fpgas, "crypto", CRYPTO)
    selected, specs = request(fpgas.provider(CARD), fpgas.provider(OTHER_CARD))
    specs |= {"accel1:function_name": "gzip", "accel2:function_name": "crypto"}
    assert len(fpgas.manager.plug(instance(1), selected, specs)) == 2
    assert (held(fpgas, CARD), held(fpgas, OTHER_CARD)) == (GZIP, CRYPTO)


# -- requests in the specification's words ------------------------------------


def plug_unnumbered(bench: TestHost, **specs: str):
    """Plug the card for a flavor with the unnumbered group alone."""
    found = bench.provider(CARD)
    amount = {found.device.resource_class: 1}
    selected = {"allocations": {found.uuid: {"resources": amount}}}
    flavor = {f"resources:{name}": "1" for name in amount} | specs
    return bench.manager.plug(instance(1), selected, flavor)


@pytest.mark.parametrize("key", ["accel:function_id", "os_acc:function_id", "function"])
def test_a_string_names_a_function(fpgas, key):
    """A function is "usually represented as a string or UUID"."""
    upload(fpgas, **{"accel:function_id": "matmul"})
    upload(fpgas, "crypto", CRYPTO, **{"accel:function_id": "aes"})
    spec = {"function:matmul": "required"} if key == "function" else {key: "matmul"}
    plug_unnumbered(fpgas, **spec)
    assert held(fpgas) == GZIP
    assert fpgas.manager.plug(instance(1), None, None)
    assert fpgas.programmings() == ["done"]


def test_a_region_trait_and_a_bitstream_key_are_met_together(fpgas):
    """The flavor has CUSTOM_FPGA_<vendor>_REGION_<uuid> and bitstream:<uuid>."""
    image = upload(fpgas)
    plug_unnumbered(
        fpgas,
        **{
            f"trait:{region_trait(INTERFACE)}": "required",
            f"bitstream:{image}": "required",
        },
    )
    assert held(fpgas) == GZIP


def test_a_function_trait_and_a_function_key_are_met_together(fpgas):
    """The flavor has CUSTOM_FPGA_<vendor>_FUNCTION_<uuid> and the function's UUID."""
    upload(fpgas)
    fpgas.plug(2, function_id=GZIP)
    fpgas.unplug(2)
    plug_unnumbered(
        fpgas,
        **{
            f"trait:{function_trait(GZIP)}": "required",
            f"function:{GZIP}": "required",
        },
    )
    assert held(fpgas) == GZIP


# -- requests of the guest's own image -----------------------------------------


def boot(bench: TestHost, image: str, key: str = "image_id", **requested: str):
    selected, specs = request(bench.provider(CARD))
    specs |= {f"accel1:{name}": value for name, value in requested.items()}
    instance_info = instance(1) | {key: image}
    return bench.manager.plug(instance_info, selected, specs)


@pytest.mark.parametrize("key", ["image_id", "image_ref", "image_uuid"])
def test_the_image_of_the_guest_may_name_the_function(fpgas, key):
    upload(fpgas)
    boot(fpgas, vm_image(fpgas, "vm", **{"accel:function_id": GZIP}), key)
    assert held(fpgas) == GZIP


def test_an_image_by_its_id_has_to_be_what_the_image_of_the_guest_needs(fpgas):
    bitstream = upload(fpgas)
    needs_it = vm_image(fpgas, "vm", **{"accel:function_id": GZIP})
    with pytest.raises(exception.InvalidExtraSpec, match=CRYPTO):
        boot(
            fpgas,
            vm_image(fpgas, "vm", **{"accel:function_id": CRYPTO}),
            bitstream_id=bitstream,
        )
    assert held(fpgas) == POWER_ON
    boot(fpgas, needs_it, bitstream_id=bitstream)
    assert held(fpgas) == GZIP


def test_an_image_that_is_not_seen_may_be_an_error(fpgas):
    """A service with only a member's credentials does not see a tenant's image."""
    unseen = "11111111-2222-4333-8444-555555555555"
    config = fpgas.config()
    config.set_override("instance_images", "required", group=options.GROUP.name)
    selected, specs = request(fpgas.provider(CARD))
    strict = fpgas.start(config)
    with pytest.raises(exception.ImageNotFound, match=uuid_of(1)):
        strict.plug(instance(1) | {"image_id": unseen}, selected, specs)
    assert fpgas.manager.store.leases() == ()


def test_a_host_without_a_source_of_images_asks_nobody(fpgas):
    """A host that never programs anything need not configure Glance."""
    fpgas.groups["os_acc_bitstreams"]["source"] = "glance"
    fpgas.restart()
    boot(fpgas, "11111111-2222-4333-8444-555555555555")
    assert fpgas.programmings() == []
    with raises(exception.ConfigurationReason.NOT_CONFIGURED, match="auth_type"):
        fpgas.plug(2, OTHER_CARD, function_id=GZIP)


# -- published traits ----------------------------------------------------------


def test_traits_tell_what_a_region_holds_and_takes(fpgas):
    assert {
        function_trait(POWER_ON),
        PROGRAMMABLE,
        "CUSTOM_FPGA_INTEL",
        region_trait(INTERFACE),
        f"CUSTOM_FPGA_REGION_INTEL_{INTERFACE.upper().replace('-', '')}",
        cyborgs_trait(POWER_ON),
    } < traits(fpgas)


def test_traits_follow_what_the_region_holds(ports):
    upload(ports)
    before = ports.provider(VF)
    ports.plug(1, VF, function_id=GZIP)
    held = traits(ports, VF)
    assert function_trait(GZIP) in held
    assert function_trait(POWER_ON) not in held
    assert PROGRAMMABLE not in held
    assert ports.provider(VF).uuid == before.uuid
    ports.unplug(1)
    assert {PROGRAMMABLE, function_trait(GZIP)} < traits(ports, VF)


def test_a_card_that_does_not_say_what_it_takes_is_not_offered(make_fpgas):
    bench = make_fpgas(HostSpec((hosts.dfl("0000:3b", interface_id=""),)))
    assert "compat_id" in bench.rejected(CARD).detail


def test_a_card_without_reconfiguration_is_one_region_as_it_is(make_fpgas):
    bench = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    upload(bench)
    assert function_trait(POWER_ON) in traits(bench)
    assert "CUSTOM_PROGRAMMABLE" not in traits(bench)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE, match=CARD):
        bench.plug(1, function_id=GZIP)
    (entry,) = bench.plug(1)
    assert entry["pci_id"] == CARD


def test_a_card_without_reconfiguration_may_be_what_is_asked_for(make_fpgas):
    bench = make_fpgas(HostSpec((hosts.dfl("0000:3b", reconfigurable=False),)))
    (entry,) = bench.plug(1, function_id=POWER_ON.upper())
    assert entry["pci_id"] == CARD
    assert bench.programmings() == []
    (lease,) = bench.manager.store.leases(uuid_of(1))
    assert lease.programming.function_id == POWER_ON


def test_what_is_no_fpga_is_not_programmed(make_fpgas):
    bench = make_fpgas(hosts.two_socket_host())
    upload(bench)
    with raises(exception.RegionReason.NOT_PROGRAMMABLE):
        bench.plug(1, "0000:17:00.0", function_id=GZIP)
    assert bench.manager.store.leases() == ()
