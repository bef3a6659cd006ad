# SPDX-License-Identifier: Apache-2.0

"""A download yields the whole image or an error after each kind of failure."""

import contextlib
import hashlib
import itertools
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.bitstreams import download
from os_acc.objects.bitstream import Image
from tests.expected_errors import raises
from tests.unit.bitstreams.fake_source import PIECE, Faults, Place, image_of

CONTENT = bytes(range(256)) * 10_000
MUCH = 1 << 30

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arriving"


def fetched(
    path: Path,
    place: Place,
    image: Image | None = None,
    *,
    most: int = MUCH,
    seconds: float = 60.0,
    progress: download.Progress | None = None,
) -> bytes:
    """Return the content of the file after the download."""
    deadline = time.monotonic() + seconds
    with open(path, "w+b", buffering=0) as file:
        image = image or place.only
        size = download.download(place, image, file.fileno(), most, deadline, progress)
    content = path.read_bytes()
    assert len(content) == size
    return content


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE])
def test_an_image_arrives_as_it_is(path, size):
    content = os.urandom(size)
    assert fetched(path, Place(content)) == content


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "blake2b", "sha3_512"])
def test_it_is_proved_by_its_own_algorithm(path, algorithm):
    place = Place(CONTENT)
    value = hashlib.new(algorithm, CONTENT).hexdigest()
    changes = {"hash_algo": algorithm, "hash_value": value}
    assert fetched(path, place, image_of(CONTENT, **changes)) == CONTENT
    changes["hash_value"] = value[::-1]
    with raises(exception.ImageReason.INVALID, match="do not match its hash"):
        fetched(path, place, image_of(CONTENT, **changes))


def test_without_a_hash_nothing_is_asked_for(path):
    place = Place(CONTENT)
    with raises(exception.ImageReason.INVALID, match="no hash"):
        fetched(path, place, image_of(CONTENT, hash_value=""))
    assert place.begun == []


def test_one_bit_makes_another_image(path):
    place = Place(CONTENT)
    image = place.only
    place.contents[image.id] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with raises(exception.ImageReason.INVALID, match=f"{image.id}.*{image.hash_value}"):
        fetched(path, place)


def test_a_dropped_connection_goes_on_where_it_stopped(path):
    place = Place(CONTENT)
    place.faults.drops = [PIECE + 7, PIECE + 7, 2 * PIECE]
    assert fetched(path, place) == CONTENT
    assert place.begun == [0, PIECE + 7, PIECE + 7, 2 * PIECE]


def test_a_source_that_cannot_do_that_begins_anew(path):
    place = Place(CONTENT, resumes=False)
    place.faults.drops = [PIECE + 7, 2 * PIECE]
    assert fetched(path, place) == CONTENT
    assert place.begun == [0, 0, 0]


@pytest.mark.parametrize("drops", [[], [PIECE] * 100_000])
def test_a_source_that_does_not_is_given_up_at_the_deadline(path, drops):
    place = Place(CONTENT)
    place.faults = Faults(drops, refusals=0 if drops else 100_000)
    with raises(exception.ServiceType.IMAGE, match="not downloaded in time"):
        fetched(path, place, seconds=0.05)


@pytest.mark.parametrize(
    ("faults", "done"), [(Faults(refusals=1), 0), (Faults(drops=[PIECE]), PIECE)]
)
def test_what_there_is_no_time_left_to_wait_for_is_given_up_at_once(
    path, monkeypatch, faults, done
):
    monkeypatch.setattr(download, "FIRST_PAUSE", 1_000)
    monkeypatch.setattr(download, "LONGEST_PAUSE", 1_000)
    place = Place(CONTENT)
    place.faults = faults
    with raises(
        exception.ServiceType.IMAGE, match=f"{done} of {len(CONTENT)} bytes"
    ) as late:
        fetched(path, place)
    assert isinstance(late.value.__cause__, exception.ServiceUnavailable)


def test_a_source_that_never_ends_is_given_up_at_the_deadline(path):
    class Endless:
        offset = 0

        def __iter__(self) -> Iterator[bytes]:
            return itertools.repeat(b".")

    place = Place(CONTENT)
    place.data = lambda *_: contextlib.nullcontext(Endless())  # type: ignore
    with raises(exception.ServiceType.IMAGE, match="not downloaded in time"):
        fetched(path, place, image_of(CONTENT, size=1 << 60), seconds=0.05)


@pytest.mark.parametrize("at", [PIECE, len(CONTENT) - 1])
def test_an_end_that_comes_early_is_tried_again(path, at):
    place = Place(CONTENT)
    place.faults.ends = [at]
    assert fetched(path, place) == CONTENT
    assert place.begun == [0, at]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_file_that_is_shorter_than_it_should_be_is_refused(path, resumes):
    place = Place(CONTENT, resumes=resumes)
    image = image_of(CONTENT, size=len(CONTENT) + 1)
    message = f"sends {len(CONTENT)} of {len(CONTENT) + 1} bytes"
    with raises(exception.ImageReason.INVALID, match=message):
        fetched(path, place, image)


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("at", [0, PIECE + 7])
def test_a_store_that_has_no_more_of_it_is_not_waited_for(path, resumes, at):
    place = Place(CONTENT, resumes=resumes)
    place.faults.cuts = [at] * 100_000
    message = f"sends {at} of {len(CONTENT)} bytes"
    with raises(exception.ImageReason.INVALID, match=message) as short:
        fetched(path, place)
    assert not short.value.retryable
    assert len(place.begun) == 4


def test_answers_that_are_cut_short_at_other_bytes_are_tried_again(path):
    place = Place(CONTENT, piece=1000)
    place.faults.cuts = list(range(1000, 21_000, 1000))
    assert fetched(path, place) == CONTENT
    assert len(place.begun) == 21


def test_a_server_that_is_away_after_it_was_stopped_is_waited_for(path):
    place = Place(CONTENT)
    place.faults = Faults(cuts=[PIECE], refusals=50)
    assert fetched(path, place) == CONTENT
    place = Place(CONTENT)
    place.faults.drops = [PIECE] * 50
    assert fetched(path, place) == CONTENT


def test_a_file_that_is_longer_is_refused_before_it_is_read(path):
    seen: list[int] = []
    image = image_of(CONTENT, size=PIECE)
    with raises(exception.ImageReason.INVALID, match=f"more than {PIECE} bytes"):
        fetched(
            path, Place(CONTENT), image, progress=lambda done, _of: seen.append(done)
        )
    assert seen == [PIECE]
    assert path.stat().st_size == PIECE


def test_without_a_size_there_is_a_limit_all_the_same(path):
    image = image_of(CONTENT, size=None)
    assert fetched(path, Place(CONTENT), image, most=len(CONTENT)) == CONTENT
    with raises(exception.ImageReason.INVALID, match=f"more than {PIECE} bytes"):
        fetched(path, Place(CONTENT), image, most=PIECE)


def test_an_answer_to_another_question_is_not_used(path):
    class Odd(Place):
        def data(self, image: Image, offset: int, deadline: float) -> object:
            return super().data(image, max(0, offset - 1), deadline)

    place = Odd(CONTENT)
    place.faults.drops = [PIECE]
    assert fetched(path, place) == CONTENT
    # Data that begin one byte too early were not taken for the rest.
    assert place.begun == [0, PIECE - 1, 0]


def test_an_image_that_is_deleted_on_the_way_is_not_found(path):
    class Deleted(Place):
        def data(self, image: Image, offset: int, deadline: float) -> object:
            if offset:
                raise exception.ImageNotFound("it was deleted")
            return super().data(image, offset, deadline)

    place = Deleted(CONTENT)
    place.faults.drops = [PIECE]
    with pytest.raises(exception.ImageNotFound, match="deleted"):
        fetched(path, place)


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_progress_is_told_piece_by_piece(path, size):
    reported: list[tuple[int, int | None]] = []
    fetched(
        path,
        Place(CONTENT),
        image_of(CONTENT, size=size),
        progress=lambda *each: reported.append(each),
    )
    assert reported == [(PIECE, size), (2 * PIECE, size), (len(CONTENT), size)]


def test_a_disk_that_is_full_is_told_by_the_write_that_it_refuses():
    # Each write to /dev/full fails in this way, for every user (full(4)).
    fd, deadline = os.open("/dev/full", os.O_WRONLY), time.monotonic() + 60
    try:
        with pytest.raises(OSError, match="No space left"):
            download.download(Place(CONTENT), image_of(CONTENT), fd, MUCH, deadline)
    finally:
        os.close(fd)


def test_one_piece_is_in_memory_at_a_time(path):
    pieces = 16

    class Long:
        def __len__(self) -> int:
            return pieces * PIECE

        def __getitem__(self, part: slice) -> bytes:
            return bytes(part.stop - part.start)

    value = hashlib.sha512(bytes(pieces * PIECE)).hexdigest()
    image = image_of(b"", size=pieces * PIECE, hash_value=value)
    place = Place(b"")
    place.contents[image.id] = Long()  # type: ignore[assignment]
    tracemalloc.start()
    try:
        with open(path, "w+b", buffering=0) as file:
            deadline = time.monotonic() + 60
            size = download.download(place, image, file.fileno(), MUCH, deadline)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == pieces * PIECE
    assert most < 4 * PIECE


@pytest.fixture(scope="module")
def anywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("arriving") / "file"


@settings(deadline=None, max_examples=50)
@given(
    resumes=st.booleans(),
    size=st.integers(0, 3 * PIECE),
    drops=st.lists(st.integers(0, 3 * PIECE), max_size=4),
    refusals=st.integers(0, 3),
)
def test_whatever_is_dropped_what_arrives_is_whole(
    anywhere, resumes, size, drops, refusals
):
    content = CONTENT[:1000] * (size // 1000) + CONTENT[: size % 1000]
    place = Place(content, resumes=resumes)
    place.faults = Faults(drops=drops, refusals=refusals)
    assert fetched(anywhere, place) == content
