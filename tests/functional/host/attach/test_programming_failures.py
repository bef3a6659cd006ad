# SPDX-License-Identifier: Apache-2.0

"""A region that is not programmed as requested goes to no guest; the error says why."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from os_acc import exception
from os_acc.bitstreams.library import Library
from os_acc.helper.client import Helper
from os_acc.objects.bitstream import Bitstream
from os_acc.objects.request_group import PLACEMENT_NAME
from os_acc.testing import image_directory
from os_acc.testing.dfl import payload
from tests.expected_errors import raises
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    INTERFACE,
    POWER_ON,
    VF,
    function_trait,
    held,
    is_unknown,
    traits,
    upload,
)


def test_a_region_that_was_not_programmed_goes_to_no_guest(fpgas):
    """Cyborg treats a failed programming as a success: item 1 of its defects."""
    upload(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC, match="reconfig CRC error") as caught:
        fpgas.plug(1, function_id=GZIP)
    assert caught.value.errors == ("reconfig CRC error",)
    assert fpgas.manager.store.leases() == ()
    assert fpgas.drivers(CARD) == ["dfl-pci"]
    assert is_unknown(fpgas)
    assert function_trait(POWER_ON) not in traits(fpgas)
    with raises(exception.RegionReason.UNKNOWN):
        fpgas.plug(2)
    # A request for a bitstream has the region programmed anew.
    fpgas.restart()
    fpgas.plug(3, function_id=GZIP)
    assert held(fpgas) == GZIP
    assert not is_unknown(fpgas)


def test_a_programming_without_effect_is_found_out(fpgas):
    upload(fpgas)
    fpgas.kernel.ignore(CARD, "program")
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=GZIP):
        fpgas.plug(1, function_id=GZIP)
    assert is_unknown(fpgas)
    assert fpgas.manager.store.leases() == ()


def test_an_image_for_another_region_never_reaches_the_driver(fpgas):
    upload(fpgas, interface=CRYPTO)
    with raises(exception.ImageReason.MISMATCH):
        fpgas.plug(1, bitstream_name="gzip")
    assert fpgas.programmings() == []
    assert not is_unknown(fpgas)
    assert fpgas.manager.store.leases() == ()


def test_who_has_the_card_open_keeps_it_as_it_is(fpgas):
    upload(fpgas)
    fpgas.kernel.open_node("dfl-fme.0")
    with pytest.raises(exception.DeviceInUse):
        fpgas.plug(1, function_id=GZIP)
    assert fpgas.programmings() == []
    assert not is_unknown(fpgas)
    fpgas.kernel.close_node("dfl-fme.0")
    fpgas.plug(2)


def test_a_card_that_another_client_programs_is_not_selected_again(ports):
    upload(ports)
    ports.kernel.fail(CARD, "program", errno.EBUSY)
    with pytest.raises(exception.DeviceInUse):
        ports.plug(1, VF, function_id=GZIP)
    assert ports.programmings() == ["EBUSY"]
    assert not ports.manager.store.leases()


@pytest.mark.parametrize(
    "error",
    [
        exception.HelperUnavailable("sudo says no"),
        exception.DeviceGone("it has gone"),
        exception.DeviceChanged("it is another one"),
        exception.DeviceStuck("no time is left"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_was_never_begun_leaves_a_region_what_it_was(fpgas, monkeypatch, error):
    upload(fpgas)
    monkeypatch.setattr(Helper, "program", mock.Mock(side_effect=error))
    with pytest.raises(type(error)):
        fpgas.plug(1, function_id=GZIP)
    assert not is_unknown(fpgas)
    assert function_trait(POWER_ON) in traits(fpgas)
    fpgas.plug(2)


@pytest.mark.parametrize(
    ("error", "has_written"),
    [
        (exception.DeviceStuck("the write does not return"), True),
        (exception.HelperUnavailable("the vendor's helper has ended"), True),
        (exception.LockTimeout("the vendor's lock is held"), True),
        (exception.HostStepFailed("the write failed", address=CARD), True),
        (exception.ImageUnusable("not for this card"), False),
        (exception.DeviceInUse("acmed has it", address=CARD), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_plugins_own_error_leaves_a_region_verified_if_the_contract_says_so(
    fpgas, monkeypatch, error, has_written
):
    """A plugin may raise the library's errors in the middle of its own write."""
    upload(fpgas)
    plugin = fpgas.manager.plugins.get("dfl")
    monkeypatch.setattr(type(plugin), "program", mock.Mock(side_effect=error))
    with pytest.raises(type(error)):
        fpgas.plug(1, function_id=GZIP)
    assert is_unknown(fpgas) == has_written


def test_a_second_step_that_does_not_begin_leaves_what_the_first_has_written(
    fpgas, monkeypatch
):
    upload(fpgas)

    def program(self, region, bitstream, steps):
        steps.program_dfl_port(region, bitstream)
        never = mock.Mock(side_effect=exception.HelperUnavailable("sudo says no"))
        monkeypatch.setattr(Helper, "program", never)
        steps.program_dfl_port(region, bitstream)

    plugin = fpgas.manager.plugins.get("dfl")
    monkeypatch.setattr(type(plugin), "program", program)
    with pytest.raises(exception.HelperUnavailable):
        fpgas.plug(1, function_id=GZIP)
    assert is_unknown(fpgas)


def test_what_was_never_begun_does_not_make_up_for_a_failure(fpgas, monkeypatch):
    upload(fpgas)
    fpgas.kernel.fail_programming(CARD, "reconfig CRC error")
    with pytest.raises(exception.ProgrammingFailed):
        fpgas.plug(1, function_id=GZIP)
    never = mock.Mock(side_effect=exception.HelperUnavailable("sudo says no"))
    monkeypatch.setattr(Helper, "program", never)
    with pytest.raises(exception.HelperUnavailable):
        fpgas.plug(1, function_id=GZIP)
    assert is_unknown(fpgas)


def test_another_shell_that_is_put_into_the_card_meanwhile_is_seen(fpgas, monkeypatch):
    """The image's shell is compared again once no other program has the card."""
    upload(fpgas)
    card = pathlib.Path(fpgas.root, "sys/bus/pci/devices", CARD)
    shown = [
        pathlib.Path(place, "compat_id")
        for place, _folders, files in os.walk(card)
        if "compat_id" in files
    ]
    fetched = Library.fetched

    @contextlib.contextmanager
    def slowly(*arguments: Any, **more: Any) -> Iterator[Bitstream]:
        with fetched(*arguments, **more) as bitstream:
            for file in shown:
                file.write_text(CRYPTO.replace("-", "") + "\n")
            yield bitstream

    monkeypatch.setattr(Library, "fetched", slowly)
    with pytest.raises(exception.DeviceChanged, match=CRYPTO):
        fpgas.plug(1, function_id=GZIP)
    assert shown
    assert fpgas.programmings() == []


def test_a_bitstream_of_two_functions_has_to_show_one_of_them(fpgas):
    metadata = image_directory.gbs_metadata(INTERFACE, GZIP, CRYPTO)
    image = fpgas.images.put(
        "both", image_directory.gbs_of(metadata, payload(POWER_ON))
    )
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=POWER_ON):
        fpgas.plug(1, bitstream_id=image)
    assert is_unknown(fpgas)


def test_of_two_functions_a_region_with_one_has_to_show_the_one_that_is_meant(fpgas):
    metadata = image_directory.gbs_metadata(INTERFACE, GZIP, CRYPTO)
    reported = {"accel:function_id": GZIP, "function_uuid": CRYPTO}
    fpgas.images.put(
        "both", image_directory.gbs_of(metadata, payload(GZIP)), **reported
    )
    with raises(exception.ProgrammingReason.WRONG_FUNCTION, match=GZIP):
        fpgas.plug(1, function_id=CRYPTO)


def test_a_newer_build_of_a_function_is_programmed_where_it_is_named(ports):
    upload(ports)
    ports.plug(1, VF, function_id=GZIP)
    ports.unplug(1)
    newer = image_directory.gbs(INTERFACE, GZIP, payload(GZIP, 8192))
    image = ports.images.put("newer", newer)
    for number in (2, 3):
        ports.plug(number, VF, bitstream_id=image)
        ports.unplug(number)
    assert ports.programmings() == ["done"] * 2


def test_an_altered_file_in_the_cache_is_fetched_anew(fpgas, tmp_path):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP)
    fpgas.unplug(1)
    upload(fpgas, "crypto", CRYPTO)
    fpgas.plug(1, function_id=CRYPTO)
    fpgas.unplug(1)
    for file in (tmp_path / "state" / "bitstreams").iterdir():
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(content)
    fpgas.plug(2, function_id=GZIP)
    assert held(fpgas) == GZIP
    assert fpgas.programmings() == ["done"] * 3


def test_an_altered_file_that_cannot_be_fetched_anew_leaves_the_region_verified(
    fpgas, tmp_path, monkeypatch
):
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP)
    fpgas.unplug(1)
    upload(fpgas, "crypto", CRYPTO)
    plugin = fpgas.manager.plugins.get("dfl")
    altered = exception.ImageUnusable("altered", reason=exception.ImageReason.INVALID)
    monkeypatch.setattr(type(plugin), "program", mock.Mock(side_effect=altered))
    silent = exception.ServiceUnavailable(
        "no answer", service=exception.ServiceType.IMAGE
    )
    refetch = mock.Mock(side_effect=silent)

    def forget_and_lose_the_service(self, *args):
        monkeypatch.setattr(Library, "fetched", refetch)
        return True

    monkeypatch.setattr(Library, "forget", forget_and_lose_the_service)
    with pytest.raises(exception.ServiceUnavailable):
        fpgas.plug(1, function_id=CRYPTO)
    assert refetch.called
    assert not is_unknown(fpgas)


def test_a_programming_that_never_ends_keeps_the_region(fpgas):
    """The programming continues after the time-out, and is reconciled: item 7."""
    upload(fpgas)
    fpgas.kernel.hang(CARD, "program")
    with fpgas.short_timeout(), pytest.raises(exception.DeviceStuck):
        fpgas.plug(1, function_id=GZIP)
    assert fpgas.plugged(1) == [CARD]
    with fpgas.short_timeout(), pytest.raises(exception.OsAccError):
        fpgas.plug(2, function_id=GZIP)
    fpgas.let_go()
    assert fpgas.unplug(1) == 1
    fpgas.plug(2, function_id=GZIP)
    assert held(fpgas) == GZIP


def test_an_image_whose_properties_do_not_tell_is_read_at_its_head(fpgas):
    """A missing property is no dead end: item 3."""
    image = upload(fpgas, **{"accel:function_id": None})
    fpgas.plug(1, bitstream_id=image)
    assert held(fpgas) == GZIP


@pytest.mark.parametrize(
    ("uploads", "error"),
    [
        ((), exception.ImageNotFound),
        (("gzip", "gzip2"), exception.ImageReason.AMBIGUOUS),
    ],
)
def test_none_or_two_images_are_told_at_once(fpgas, uploads, error):
    """The other dead ends of item 3 leave nothing half begun."""
    before = fpgas.kernel.snapshot()
    for name in uploads:
        upload(fpgas, name)
    with raises(error, match=GZIP):
        fpgas.plug(1, function_id=GZIP)
    assert fpgas.manager.store.leases() == ()
    assert fpgas.kernel.snapshot() == before
    fpgas.plug(1)


def test_functions_make_traits_that_placement_takes(fpgas):
    """Every canonical UUID has hyphens: item 4."""
    upload(fpgas)
    fpgas.plug(1, function_id=GZIP, attach_target="none")
    found = traits(fpgas)
    assert all(PLACEMENT_NAME.fullmatch(trait) for trait in found)
    assert function_trait(GZIP) in found


def test_a_bitstream_is_programmed_whatever_the_resource_class(make_fpgas):
    """Cyborg silently ignores the bitstream unless the class is FPGA: item 6."""
    named = '{"address": "*:*:*.*", "resource_class": "CUSTOM_FAST_CARD"}'
    bench = make_fpgas(device_spec=[named])
    upload(bench)
    assert bench.provider(CARD).device.resource_class == "CUSTOM_FAST_CARD"
    bench.plug(1, function_id=GZIP)
    assert held(bench) == GZIP
