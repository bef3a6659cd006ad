# SPDX-License-Identifier: Apache-2.0

"""The cache obeys its limit of size, and makes room on a full disk."""

import errno
import os
import threading
from collections.abc import Callable

import pytest

from os_acc import exception
from os_acc.bitstreams import cache as cache_module
from os_acc.objects.bitstream import Image
from tests.expected_errors import raises
from tests.unit.bitstreams.cache_images import (
    CONTENT,
    MUCH,
    SIZE,
    get,
    names,
    numbered,
    numbers,
    patiently,
    use,
)
from tests.unit.bitstreams.fake_source import PIECE, Place, image_of

pytestmark = pytest.mark.usefixtures("hasty")


# -- the limit of size ---------------------------------------------------------


def test_the_least_recently_used_goes_first(make_cache, several):
    cache = make_cache(3 * SIZE)
    use(cache, several, 1, 2, 3, 1)
    use(cache, several, 4)
    assert numbers(cache, several) == [3, 1, 4]


def test_whoever_uses_an_image_makes_it_the_last_to_go(cache, several):
    use(cache, several, 1, 2)
    get(cache, several, next(iter(several.all.values())))
    assert numbers(cache, several) == [2, 1]


def test_no_more_goes_than_has_to(make_cache, several):
    cache = make_cache(4 * SIZE - 1)
    use(cache, several, 1, 2, 3, 4)
    assert numbers(cache, several) == [2, 3, 4]


def test_what_is_in_use_stays(make_cache, several, paused_child):
    cache = make_cache(3 * SIZE)
    use(cache, several, 1, 2, 3)

    def hold(pause: Callable[[], None]) -> None:
        first = next(iter(several.all.values()))
        with cache.fetched(several, first, patiently()) as file:
            os.utime(file.fileno(), (0, 0))
            pause()

    with paused_child(hold) as child:
        use(cache, several, 4)
        assert numbers(cache, several) == [1, 3, 4]
        child.is_killed()
    use(cache, several, 2)
    assert numbers(cache, several) == [3, 4, 2]


def test_where_all_is_in_use_there_is_no_room(make_cache, several):
    cache = make_cache(2 * SIZE)
    first, second, third, _ = several.all.values()
    with (
        cache.fetched(several, first, patiently()),
        cache.fetched(several, second, patiently()),
    ):
        with pytest.raises(exception.CacheFull) as full:
            get(cache, several, third)
        assert sorted(numbers(cache, several)) == [1, 2]
    for number in (SIZE, 2 * SIZE):
        assert str(number) in full.value.message
    assert get(cache, several, third) == numbered(3)


def test_an_image_larger_than_the_cache_evicts_nothing(make_cache, several):
    use(make_cache(), several, 1, 2)
    cache = make_cache(SIZE - 1)
    with pytest.raises(exception.CacheFull, match=f"{SIZE} bytes does not fit"):
        use(cache, several, 3)
    assert numbers(cache, several) == [1, 2]
    assert several.begun == [0, 0]


def test_an_image_of_unknown_size_keeps_within_the_bounds_too(make_cache, several):
    cache = make_cache(2 * SIZE)
    use(cache, several, 1, 2)
    third = image_of(numbered(3), 3, size=None)
    assert get(cache, several, third) == numbered(3)
    assert numbers(cache, several) == [2, 3]
    small = make_cache(SIZE - 1)
    with raises(exception.ImageReason.INVALID, match=f"more than {SIZE - 1} bytes"):
        get(small, several, image_of(numbered(4), 4, size=None))


def test_downloads_under_way_count(make_cache, several):
    cache = make_cache(2 * SIZE - 1)
    first, second, *_ = several.all.values()
    several.gate.clear()
    loading = threading.Thread(target=get, args=(cache, several, first))
    loading.start()
    try:
        assert several.waiting.wait(60)
        with pytest.raises(exception.CacheFull, match=f"downloads {SIZE}"):
            get(cache, several, second)
    finally:
        several.gate.set()
        loading.join()
    assert numbers(cache, several) == [1]


def test_pruning_keeps_what_was_used_last(cache, several):
    use(cache, several, 1, 2, 3, 4)
    gone = cache.prune(2 * SIZE, patiently())
    assert [entry.size for entry in gone] == [SIZE, SIZE]
    assert numbers(cache, several) == [3, 4]
    assert cache.prune(2 * SIZE, patiently()) == ()


# -- the disk ------------------------------------------------------------------


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the free bytes of the disk."""

    def leave(size: int) -> None:
        def measured(path: object) -> os.statvfs_result:
            return os.statvfs_result((1, 1, MUCH, MUCH, size, 0, 0, 0, 0, 255))

        monkeypatch.setattr(os, "statvfs", measured)

    return leave


def test_a_disk_without_space_is_told_before_anything_is_asked_for(
    cache, place, directory, free
):
    free(cache_module.SPARED + SIZE - 1)
    with pytest.raises(exception.CacheFull, match=f"{SIZE - 1} bytes are free"):
        get(cache, place)
    assert place.begun == []
    assert names(directory) == set()
    free(cache_module.SPARED + SIZE)
    assert get(cache, place) == CONTENT


def test_images_give_way_where_the_disk_is_full(cache, several, free):
    use(cache, several, 1, 2, 3)
    free(cache_module.SPARED)
    use(cache, several, 4)
    assert numbers(cache, several) == [2, 3, 4]


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("posix_fallocate", errno.ENOSPC),
        ("write", errno.EFBIG),
        ("fsync", errno.EDQUOT),
        ("rename", errno.ENOSPC),
    ],
)
def test_a_disk_that_is_full_in_the_middle_leaves_nothing(
    cache, place, directory, monkeypatch, step, number
):
    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(os, step, refuse)
        with pytest.raises(exception.CacheFull, match=os.strerror(number)):
            get(cache, place)
    assert names(directory) == set()
    assert get(cache, place) == CONTENT


def test_a_file_system_that_cannot_reserve_space_is_used_all_the_same(
    cache, place, monkeypatch
):
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert get(cache, place) == CONTENT


def test_what_was_longer_before_leaves_no_rest(cache):
    place = Place(CONTENT, resumes=False)
    place.faults.drops = [2 * PIECE]
    short = CONTENT[:PIECE]
    image = image_of(short, size=None)
    place.all = {image.id: image}
    contents = iter([CONTENT, short])
    data = place.data

    def changing(image: Image, *more: object) -> object:
        place.contents[image.id] = next(contents)
        return data(image, *more)

    place.data = changing  # type: ignore[method-assign,assignment]
    assert get(cache, place, image) == short
