# SPDX-License-Identifier: Apache-2.0

"""The cache keeps verified images, and no others."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import cache as cache_module
from os_acc.objects.bitstream import Digest, Image
from tests.expected_errors import raises
from tests.unit.bitstreams.cache_images import (
    CONTENT,
    SIZE,
    file_name,
    get,
    names,
    patiently,
    soon,
    use,
)
from tests.unit.bitstreams.fake_source import Place, image_of

pytestmark = pytest.mark.usefixtures("hasty")


def test_an_image_is_fetched_once_and_stays(cache, place):
    assert [get(cache, place) for _ in range(3)] == [CONTENT] * 3
    assert place.begun == [0]


def test_it_has_the_name_of_its_digest_and_nothing_lies_beside_it(
    cache, place, directory
):
    get(cache, place)
    assert names(directory) == {file_name(place.only)}
    (entry,) = cache.survey().entries
    assert cache.path(place.only) == str(directory / file_name(place.only))
    assert entry.size == SIZE
    assert not cache.is_used(entry)


def test_a_name_and_what_has_it_survive_the_loss_of_power(
    cache, place, directory, monkeypatch
):
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        fsync(fd)
        seen.append(("synced", os.readlink(f"/proc/self/fd/{fd}")))

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        seen.append(("renamed", source))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    get(cache, place)
    (_, temporary), *_ = seen
    assert seen == [
        ("synced", temporary),
        ("renamed", temporary),
        ("synced", str(directory)),
    ]


def test_two_images_of_one_content_are_one_file(cache, place, directory):
    get(cache, place)
    get(cache, place, image_of(CONTENT, 2))
    assert place.begun == [0]
    assert len(names(directory)) == 1


def test_a_cache_that_is_not_there_is_empty(cache):
    assert cache.survey().entries == ()
    assert cache.prune(0, patiently()) == ()


def test_an_image_that_is_there_is_found_without_looking_at_the_others(
    cache, place, monkeypatch
):
    get(cache, place)
    monkeypatch.setattr(
        cache_module, "_scan", lambda _directory: pytest.fail("it looked")
    )
    assert get(cache, place) == CONTENT


def test_a_new_image_looks_at_the_others_once(cache, place, directory, monkeypatch):
    directory.mkdir(parents=True)
    for number in range(3):
        (directory / f"sha256-{number:064x}").touch()
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda at: looked.append(at) or scandir(at))
    get(cache, place)
    assert looked == [str(directory)]


def test_it_is_in_use_for_as_long_as_the_context_lasts(cache, place, in_child):
    with cache.fetched(place, place.only, patiently()) as file:
        (entry,) = cache.survey().entries
        assert cache.is_used(entry)
        assert in_child(lambda: (file.close(), cache.is_used(entry))[1]) == "True"
    assert not cache.is_used(entry)


# -- images that are not kept --------------------------------------------------


def faulty(place: Place, what: str) -> Image:
    """Return the image, with one fault in it or in its source."""
    image = place.only
    if what == "altered":
        place.contents[image.id] = CONTENT[:-1] + b"!"
    elif what == "truncated":
        place.contents[image.id] = CONTENT[:-1]
    elif what == "longer":
        place.contents[image.id] = CONTENT + b"!"
    elif what == "silent":
        place.faults.refusals = 1_000_000
    else:
        return image_of(CONTENT, hash_value="")
    return image


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("altered", exception.ImageReason.INVALID),
        ("truncated", exception.ImageReason.INVALID),
        ("longer", exception.ImageReason.INVALID),
        ("unhashed", exception.ImageReason.INVALID),
        ("silent", exception.ServiceType.IMAGE),
    ],
)
def test_what_is_not_proved_leaves_nothing_behind(cache, place, directory, what, error):
    directory.mkdir(parents=True)
    image = faulty(place, what)
    deadline = soon() if what == "silent" else patiently()
    with raises(error), cache.fetched(place, image, deadline):
        pytest.fail("it was taken for proved")
    assert names(directory) == set()


def test_a_caller_that_fails_leaves_the_image_there(cache, place):
    with (
        pytest.raises(ZeroDivisionError),
        cache.fetched(place, place.only, patiently()),
    ):
        _ = 1 / 0
    (entry,) = cache.survey().entries
    assert not cache.is_used(entry)


def test_a_progress_that_fails_leaves_nothing(cache, place, directory):
    def progress(_done: int, _size: int | None) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        cache.fetched(place, place.only, patiently(), progress),
    ):
        pytest.fail("it was fetched")
    assert names(directory) == set()


def test_a_file_of_another_size_is_fetched_anew(cache, place, directory):
    get(cache, place)
    os.truncate(directory / file_name(place.only), SIZE - 1)
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]


def alter(path: Path) -> None:
    """Change one byte of a file without the knowledge of the cache."""
    with open(path, "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"!")


def test_an_altered_file_is_forgotten_and_fetched_anew(cache, place, directory):
    get(cache, place)
    alter(directory / file_name(place.only))
    assert not cache.verify(Digest.of(place.only), patiently())
    assert names(directory) == set()
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]


def test_a_sound_file_is_not_forgotten_because_somebody_says_so(cache, place):
    get(cache, place)
    assert cache.verify(Digest.of(place.only), patiently())
    get(cache, place)
    assert place.begun == [0]


def test_what_cannot_be_hashed_in_time_stays(cache, place, directory):
    get(cache, place)
    digest = Digest.of(place.only)
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        cache.verify(digest, time.monotonic())
    assert names(directory) == {digest.file_name}


def test_who_uses_an_altered_file_does_not_keep_it_there(cache, place, directory):
    with cache.fetched(place, place.only, patiently()):
        alter(directory / file_name(place.only))
        assert not cache.verify(Digest.of(place.only), patiently())
        assert get(cache, place) == CONTENT


def test_an_altered_file_that_is_evicted_meanwhile_is_forgotten_all_the_same(
    cache, place, directory, monkeypatch
):
    get(cache, place)
    alter(directory / file_name(place.only))
    log, entry = cache_module.LOG, directory / file_name(place.only)
    monkeypatch.setattr(log, "error", lambda *_arguments: entry.unlink())
    assert not cache.verify(Digest.of(place.only), patiently())
    assert names(directory) == set()


def test_what_is_not_there_need_not_be_forgotten(cache, place):
    assert cache.verify(Digest.of(place.only), patiently())


# -- foreign files -------------------------------------------------------------

STRANGE: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_bytes(b"x"),
    "a file that nobody can read": lambda path: (path.touch(), path.chmod(0)),
    "a directory": lambda path: path.mkdir(),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
    "a link that leads out": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": lambda path: os.mkfifo(path),
}
NAMES = ("notes.txt", "sha512-12", ".hidden", "md5-" + "0" * 32, "sha256-" + "0" * 64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", STRANGE)
def test_what_lies_there_is_no_obstacle(make_cache, several, directory, what, name):
    directory.mkdir(parents=True)
    STRANGE[what](directory / name)
    cache = make_cache(2 * SIZE)
    use(cache, several, 1, 2, 3)
    cache.prune(SIZE + 1, patiently())
    assert {file_name(list(several.all.values())[2])} <= names(directory)


@pytest.mark.parametrize("what", STRANGE)
def test_what_has_the_name_of_an_image_gives_way(cache, place, directory, what):
    directory.mkdir(parents=True)
    STRANGE[what](directory / file_name(place.only))
    assert get(cache, place) == CONTENT
    assert names(directory) == {file_name(place.only)}
    assert get(cache, place) == CONTENT
    assert place.begun == [0]


def test_a_directory_that_is_not_empty_is_not_removed(cache, place, directory):
    there = directory / file_name(place.only) / "something"
    there.mkdir(parents=True)
    with pytest.raises(exception.StateUnavailable, match=file_name(place.only)):
        get(cache, place)
    assert place.begun == []
    assert there.exists()


def test_a_place_that_cannot_be_used_is_told(cache, place, directory):
    directory.parent.mkdir()
    directory.touch()
    with pytest.raises(exception.StateUnavailable, match="bitstreams"):
        get(cache, place)
    with pytest.raises(exception.StateUnavailable, match="bitstreams"):
        cache.survey()
