# SPDX-License-Identifier: Apache-2.0

"""A bitstream request leads to a verified file that may be programmed."""

import dataclasses
import errno
import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import library, signature
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.library import Library
from os_acc.bitstreams.source import has
from os_acc.objects.bitstream import BitstreamRequest, Image, ImageFormat
from os_acc.testing import image_directory
from tests.expected_errors import raises
from tests.unit.bitstreams.cache_images import patiently
from tests.unit.bitstreams.fake_source import PIECE, Place, id_of, image_of
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OPERATOR,
    OTHER_FUNCTION_ID,
    OTHER_REGION_ID,
    REGION,
    REGION_ID,
    RULES,
    TENANT,
)

LOOPBACK = image_directory.gbs(REGION_ID, FUNCTION_ID, bytes(2 * PIECE))
COMPRESSION = image_directory.gbs(REGION_ID, OTHER_FUNCTION_ID)
ELSEWHERE = image_directory.gbs(OTHER_REGION_ID, FUNCTION_ID)

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def place() -> Place:
    """Build a source with images 1 and 2 for the region, and 3 for another one."""
    place = Place(LOOPBACK, COMPRESSION, ELSEWHERE)
    change(place, 1, {"accel:function_id": FUNCTION_ID, "function_name": "loopback"})
    change(place, 2, {"accel:function_id": OTHER_FUNCTION_ID})
    change(place, 3, {"region_uuid": OTHER_REGION_ID, "function_uuid": FUNCTION_ID})
    return place


def change(place: Place, number: int, properties: object = None, **fields: object):
    """Change an image of the place."""
    image = place.all[id_of(number)]
    if properties is not None:
        fields["properties"] = properties
    place.all[image.id] = dataclasses.replace(image, **fields)


@pytest.fixture
def made(place: Place, cache: Cache) -> Library:
    """Build a library for that place, with the default policy."""
    return Library(lambda: place, cache, RULES)


@pytest.mark.parametrize(
    ("requested", "number"),
    [
        (BitstreamRequest(bitstream_id=id_of(2)), 2),
        (BitstreamRequest(bitstream_name="loopback2"), 2),
        (BitstreamRequest(function_id=FUNCTION_ID), 1),
        (BitstreamRequest(function_name="loopback"), 1),
    ],
    ids=str,
)
def test_a_wish_becomes_a_verified_file(made, requested, number):
    image = made.image_for(requested, REGION, patiently())
    assert image.id == id_of(number)
    with made.fetched(image, patiently(), region=REGION) as bitstream:
        content = Path(bitstream.path).read_bytes()
        assert hashlib.sha512(content).hexdigest() == image.hash_value
        assert bitstream.image == image
        assert bitstream.size == len(content)
        header = bitstream.header
        assert header.format is ImageFormat.GBS
        assert header.interface_id == REGION_ID
        payload = content[header.payload_offset :][: header.payload_size]
        assert payload in (bytes(2 * PIECE), image_directory.PAYLOAD)


def test_threads_that_ask_first_together_ask_the_same_source(cache):
    together = threading.Barrier(2)
    asked: list[Place] = []

    class Told(Place):
        def image(self, image_id: str, deadline: float) -> Image:
            asked.append(self)
            return super().image(image_id, deadline)

    def make() -> Place:
        # Each thread makes one: the first waits in here for the second.
        together.wait(60.0)
        return Told(LOOPBACK)

    made = Library(make, cache, RULES)
    with futures.ThreadPoolExecutor(2) as threads:
        for _ in threads.map(lambda _: made.about(id_of(1), patiently()), range(2)):
            pass
    first, second = asked
    assert first is second


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        (BitstreamRequest(bitstream_id=id_of(9)), exception.ImageNotFound),
        (BitstreamRequest(bitstream_id=id_of(3)), exception.ImageReason.MISMATCH),
        (BitstreamRequest(function_name="nothing"), exception.ImageNotFound),
    ],
    ids=str,
)
def test_a_wish_that_cannot_be_met_is_told(made, place, requested, error):
    with raises(error):
        made.image_for(requested, REGION, patiently())
    assert place.begun == []


class Crowded(Place):
    """A source with endless images of tenants, as an administrator sees it."""

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        yield from super().images(filters, deadline)
        for number in itertools.count(100):
            image = dataclasses.replace(
                self.all[id_of(1)],
                id=str(uuid.UUID(int=number)),
                owner=TENANT,
                visibility="private",
            )
            assert time.monotonic() < deadline
            if not has(image, {k: v for k, v in filters.items() if k in PLACES}):
                return
            yield image


PLACES = ("owner", "visibility")


def test_no_number_of_tenants_images_stands_in_the_way(cache):
    """cyborg.md 5.1 item 8: a tenant cannot block a function."""
    place = Crowded(LOOPBACK)
    change(place, 1, {"function_name": "loopback", "region_uuid": REGION_ID})
    made = Library(lambda: place, cache, RULES)
    requested = BitstreamRequest(function_name="loopback")
    assert made.image_for(requested, REGION, patiently()).id == id_of(1)
    requested = BitstreamRequest(function_name="compression")
    with pytest.raises(exception.ImageNotFound) as caught:
        made.image_for(requested, REGION, patiently())
    assert "allowed_projects" in caught.value.hint


def test_any_image_can_be_asked_about(made, place):
    change(place, 1, status="deactivated", tags=frozenset())
    assert made.about(id_of(1), patiently()) == place.all[id_of(1)]
    with pytest.raises(exception.ImageNotFound):
        made.about(id_of(9), patiently())


def test_what_the_policy_refuses_is_not_even_fetched(made, place):
    change(place, 1, visibility="private", owner="tenant", status="queued")
    with (
        pytest.raises(exception.ImageRefused, match=r"queued.*'tenant'"),
        made.fetched(place.all[id_of(1)], patiently()),
    ):
        pytest.fail("it was let in")
    assert place.begun == []


def test_what_is_cached_is_refused_when_the_policy_has_changed(made, place):
    with made.fetched(place.all[id_of(1)], patiently()):
        change(place, 1, hidden=True)
    with (
        pytest.raises(exception.ImageRefused, match="hidden"),
        made.fetched(place.all[id_of(1)], patiently()),
    ):
        pytest.fail("it was let in")


def test_a_file_that_is_kept_is_refused_when_its_format_is_not_allowed_any_more(
    made, place, cache
):
    image = place.all[id_of(1)]
    with made.fetched(image, patiently()):
        pass
    with made.kept(image, REGION, patiently()) as bitstream:
        assert bitstream is not None
    rules = dataclasses.replace(RULES, file_formats=frozenset({ImageFormat.XCLBIN}))
    stricter = Library(lambda: place, cache, rules)
    with (
        pytest.raises(exception.ImageRefused, match="gbs"),
        stricter.kept(image, REGION, patiently()),
    ):
        pytest.fail("it was let in")


def test_a_file_for_another_region_is_refused(made, place):
    # The properties do not say so; the file does.
    change(place, 3, {"accel:function_id": FUNCTION_ID})
    image = place.all[id_of(3)]
    with (
        raises(exception.ImageReason.MISMATCH),
        made.fetched(image, patiently(), region=REGION),
    ):
        pytest.fail("it is built for another region")
    with made.fetched(image, patiently()) as bitstream:
        assert bitstream.header.interface_id == OTHER_REGION_ID


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (LOOPBACK[:40], exception.ImageReason.INVALID, "loopback1"),
        (b"\x7fELF" + LOOPBACK, exception.ImageReason.INVALID, "ELF"),
        (b"anything else", exception.ImageRefused, "raw"),
    ],
)
def test_a_file_that_is_no_bitstream_is_refused(cache, content, error, message):
    place = Place(content)
    made = Library(lambda: place, cache, RULES)
    with (
        raises(error, match=message),
        made.fetched(place.only, patiently()),
    ):
        pytest.fail("it was taken for a bitstream")
    # The file matches its hash: fetching it again would change nothing.
    assert place.begun == [0]


def cached(made: Library, image: Image) -> Path:
    with made.fetched(image, patiently()) as bitstream:
        return Path(bitstream.path)


def alter(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"?" + content[1:])


def test_a_cached_file_whose_head_was_altered_is_fetched_anew(cache, place):
    image = place.all[id_of(1)]
    made = Library(lambda: place, cache, RULES)
    alter(cached(made, image))
    # By its header it is now a raw file, which the policy does not allow.
    assert cached(made, image).read_bytes() == LOOPBACK
    assert place.begun == [0, 0]


def test_a_file_that_cannot_be_read_any_more_is_told(made, place, monkeypatch):
    def fail(_file: object, _size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    image = place.all[id_of(1)]
    with made.fetched(image, patiently()):
        monkeypatch.setattr(library.formats, "read_header", fail)
    for ways in (
        made.fetched(image, patiently()),
        made.kept(image, REGION, patiently()),
    ):
        with (
            pytest.raises(exception.StateUnavailable, match=f"{image.hash_value}.*err"),
            ways,
        ):
            pytest.fail("it was read")


@pytest.fixture
def signed(place: Place, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Build a library that requires signatures; the file's first byte is one."""
    rules = dataclasses.replace(RULES, signed=True)
    for number in (1, 2):
        names = ("", "_hash_method", "_key_type", "_certificate_uuid")
        change(place, number, {f"img_signature{each}": "x" for each in names})

    def verify(image: Image, file, certificates: str, deadline: float) -> None:
        assert certificates == "/trusted"
        if not file.read(1) == b"X":
            raise exception.ImageUnusable(
                f"{image} is not signed so", reason=exception.ImageReason.INVALID
            )

    monkeypatch.setattr(signature, "verify", verify)
    return Library(lambda: place, cache, rules)


def test_the_signature_is_asked_for_each_time(signed, place):
    for _ in range(2):
        with signed.fetched(place.all[id_of(1)], patiently()) as bitstream:
            assert bitstream.header.format is ImageFormat.GBS


def test_what_is_not_signed_is_not_fetched(signed, place):
    with (
        pytest.raises(exception.ImageRefused, match="not signed") as caught,
        signed.fetched(place.all[id_of(3)], patiently()),
    ):
        pytest.fail("it was let in")
    assert place.begun == []
    assert "signature = off in [os_acc_bitstreams]" in caught.value.hint


def test_an_altered_file_that_is_found_out_is_fetched_anew(signed, place):
    image = place.all[id_of(1)]
    alter(cached(signed, image))
    assert cached(signed, image).read_bytes() == LOOPBACK
    assert place.begun == [0, 0]


def test_a_bad_signature_of_a_sound_file_is_told_at_once(signed, place):
    content = b"not signed"
    made = image_of(content, 1, properties=place.all[id_of(1)].properties)
    place.all[made.id], place.contents[made.id] = made, content
    with (
        raises(exception.ImageReason.INVALID, match="not signed so"),
        signed.fetched(made, patiently()),
    ):
        pytest.fail("its signature is bad")
    assert place.begun == [0]


def test_an_image_is_found_by_id_or_name(made, place):
    change(place, 1, owner=OPERATOR)
    assert made.named(id_of(2), patiently()).id == id_of(2)
    # The owner is trusted and the image is public: it is listed twice.
    assert made.named("loopback1", patiently()).id == id_of(1)
    with pytest.raises(exception.ImageNotFound, match="'nothing'"):
        made.named("nothing", patiently())
    with pytest.raises(exception.ImageNotFound):
        made.named(id_of(9), patiently())


def test_a_name_means_the_one_bitstream_that_is_allowed(made, place):
    change(place, 2, name="loopback1", visibility="private", owner="tenant")
    change(place, 3, name="loopback1", tags=frozenset())
    assert made.named("loopback1", patiently()).id == id_of(1)
    change(place, 2, visibility="public")
    with raises(exception.ImageReason.AMBIGUOUS, match=f"{id_of(1)}, {id_of(2)}"):
        made.named("loopback1", patiently())


def test_what_is_named_and_not_allowed_is_told(made, place):
    change(place, 1, hidden=True)
    for wanted in (id_of(1), "loopback1"):
        with pytest.raises(exception.ImageRefused, match="hidden"):
            made.named(wanted, patiently())
    change(place, 1, tags=frozenset())
    with pytest.raises(exception.ImageNotFound, match="tag FPGA"):
        made.named("loopback1", patiently())


def test_a_library_that_nobody_asks_imports_no_client():
    program = (
        "import sys\n"
        "from oslo_config import cfg\n"
        "from os_acc.bitstreams import library\n"
        "from os_acc.bitstreams.glance import Glance\n"
        "conf = cfg.ConfigOpts()\n"
        "conf([], default_config_files=[], default_config_dirs=[])\n"
        "library.build(conf, '/nowhere')\n"
        "Glance(conf)\n"
        "names = ('keystoneauth1', 'cryptography',"
        " 'requests')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
