# SPDX-License-Identifier: Apache-2.0

"""Threads and processes share one cache, and one download."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from os_acc import exception
from os_acc.bitstreams import cache as cache_module
from os_acc.bitstreams.cache import Cache
from os_acc.objects.bitstream import Digest
from os_acc.store.locks import CACHE_LOCK, Locks, bitstream_lock
from tests.unit.bitstreams.cache_images import (
    CONTENT,
    MUCH,
    SIZE,
    file_name,
    get,
    names,
    numbered,
    numbers,
    patiently,
    soon,
    use,
)
from tests.unit.bitstreams.fake_source import Place

pytestmark = pytest.mark.usefixtures("hasty")


def test_one_download_serves_sixteen_threads(cache, place):
    with ThreadPoolExecutor(16) as pool:
        contents = list(pool.map(lambda _: get(cache, place), range(16)))
    assert contents == [CONTENT] * 16
    assert place.begun == [0]


def test_one_download_serves_several_processes(cache, place, in_child):
    def fetch_it() -> str:
        return f"{get(cache, place) == CONTENT} {len(place.begun)}"

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(in_child, [fetch_it] * 6))
    assert sorted(outcomes) == ["True 0"] * 5 + ["True 1"]


def test_who_waits_for_anothers_download_waits_until_its_deadline(
    cache, place, paused_child
):
    def stop_amid(pause: Callable[[], None]) -> None:
        with cache.fetched(place, place.only, patiently(), lambda *_: pause()):
            pass

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        with (
            pytest.raises(exception.LockTimeout),
            cache.fetched(place, place.only, soon()),
        ):
            pytest.fail("two fetch one image at a time")
        assert place.begun == []
        child.is_killed()
    assert get(cache, place) == CONTENT


def test_a_killed_download_is_never_taken_for_an_image(
    cache, several, directory, paused_child
):
    first, second, third, _ = several.all.values()

    def stop_amid(pause: Callable[[], None]) -> None:
        def progress(done: int, _of: int | None) -> None:
            if done == SIZE:
                pause()

        with cache.fetched(several, first, patiently(), progress):
            pass

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        get(cache, several, second)
        (left,) = names(directory) - {file_name(second)}
        # Its process is alive: no other process removes it.
        cache.prune(MUCH, patiently())
        assert left in names(directory)
        child.is_killed()
    # All its bytes had arrived, but it is no image.
    assert left.startswith(".")
    assert numbers(cache, several) == [2]
    # The next download removes it.
    get(cache, several, third)
    assert names(directory) == {file_name(second), file_name(third)}
    assert get(cache, several, first) == numbered(1)


def test_eviction_and_use_in_many_processes_never_show_half_an_image(
    make_cache, several, in_child
):
    """Three processes use four images, one at a time each; there is room for three."""

    def use_all() -> str:
        cache, images = make_cache(3 * SIZE), list(several.all.values())
        wanted = [images[(turn * os.getpid()) % 4] for turn in range(20)]
        return str(
            sum(
                get(cache, several, each) == several.contents[each.id]
                for each in wanted
            )
        )

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(in_child, [use_all] * 3))
    assert outcomes == ["20"] * 3


@pytest.fixture
def evicting(
    cache: Cache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Return a function that evicts the image once its file is open but not locked."""
    flock, pending = cache_module.fcntl.flock, [True]

    def locked(fd: int, operation: int) -> None:
        if pending and operation & cache_module.fcntl.LOCK_SH:
            pending.clear()
            cache.prune(0, patiently())
        flock(fd, operation)

    def begin() -> None:
        monkeypatch.setattr(cache_module.fcntl, "flock", locked)

    return begin


def test_an_image_that_is_evicted_as_it_is_opened_is_fetched_anew(
    cache, place, directory, evicting
):
    get(cache, place)
    evicting()
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]
    assert names(directory) == {file_name(place.only)}


def test_an_eviction_that_hangs_is_waited_for_until_the_deadline(
    cache, place, paused_child
):
    get(cache, place)
    path = cache.path(place.only)

    def stop_amid(pause: Callable[[], None]) -> None:
        with cache_module._unused(path):
            pause()

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        with (
            pytest.raises(exception.LockTimeout, match="is still there"),
            cache.fetched(place, place.only, soon()),
        ):
            pytest.fail("it was used while somebody removes it")
        child.is_killed()
    assert get(cache, place) == CONTENT


def test_locks_of_images_leave_no_files_behind(cache, several, directory):
    use(cache, several, 1, 2, 3)
    assert names(directory.parent / "locks") == {CACHE_LOCK}


def test_no_lock_of_an_image_is_held_while_it_is_used(cache, place, directory):
    locks = Locks(str(directory.parent))
    with cache.fetched(place, place.only, patiently()):
        wanted = (CACHE_LOCK, bitstream_lock(Digest.of(place.only)))
        with locks.try_hold(wanted) as free:
            assert free
