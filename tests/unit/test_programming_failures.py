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

"""What is not programmed as it should be goes to nobody, and says why."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.objects.request import PLACEMENT_NAME
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    POWER_ON,
    FpgaBench,
    function_trait,
    traits,
)


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
