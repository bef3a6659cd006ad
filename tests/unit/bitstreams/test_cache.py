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

"""What is kept of images, for how long, and what never is."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import cache as cache_module
from os_acc.bitstreams import fetch, files
from os_acc.bitstreams.cache import Cache
from os_acc.objects.digest import Digest
from os_acc.objects.image import Image
from os_acc.store.locks import CACHE_LOCK, Locks, bitstream_lock
from tests.unit.bitstreams.sources import PIECE, Place, image_of

CONTENT = bytes(range(256)) * 10_000
SIZE = len(CONTENT)

pytestmark = pytest.mark.usefixtures("hasty")


def patiently() -> float:
    return time.monotonic() + 60


def soon() -> float:
    return time.monotonic() + 0.05


def numbered(number: int) -> bytes:
    """Content as long as any other's, and unlike it."""
    return number.to_bytes(4, "big") + CONTENT[4:]


def get(cache: Cache, place: Place, image: Image | None = None) -> bytes:
    """Fetch an image, and let go of it."""
    with cache.fetched(place, image or place.only, patiently()) as file:
        return file.read()


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def file_name(image: Image) -> str:
    return Digest.of(image).file_name


def numbers(cache: Cache, place: Place) -> list[int]:
    """Which images of a place are there, the one least recently used first."""
    found = {Digest.of(each): n for n, each in enumerate(place.all.values(), start=1)}
    return [found[entry.digest] for entry in cache.entries()]


@pytest.fixture
def place() -> Place:
    return Place(CONTENT)


@pytest.fixture
def several() -> Place:
    """Four images of one size."""
    return Place(*map(numbered, range(1, 5)))


def use(cache: Cache, place: Place, *which: int) -> None:
    """Use images in this order, each at a moment of its own."""
    images = list(place.all.values())
    for number in which:
        with cache.fetched(place, images[number - 1], patiently()) as file:
            # A file system's clock may not tell two of these apart.
            use.clock += 1
            os.utime(file.fileno(), (use.clock, use.clock))


use.clock = 1_000_000_000


def test_an_image_is_fetched_once_and_stays(cache: Cache, place: Place) -> None:
    assert [get(cache, place) for _ in range(3)] == [CONTENT] * 3
    assert place.begun == [0]


def test_it_has_the_name_of_its_digest_and_nothing_lies_beside_it(
    cache: Cache, place: Place, directory: Path
) -> None:
    get(cache, place)
    assert names(directory) == {file_name(place.only)}
    (entry,) = cache.entries()
    assert cache.path(place.only) == str(directory / file_name(place.only))
    assert entry.size == SIZE
    assert not cache.is_used(entry)


def test_another_process_finds_it(
    make_cache: Callable[..., Cache], place: Place
) -> None:
    get(make_cache(), place)
    get(make_cache(), place)
    assert place.begun == [0]


def test_a_name_and_what_has_it_survive_the_loss_of_power(
    cache: Cache, place: Place, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_two_images_of_one_content_are_one_file(
    cache: Cache, place: Place, directory: Path
) -> None:
    get(cache, place)
    get(cache, place, image_of(CONTENT, 2))
    assert place.begun == [0]
    assert len(names(directory)) == 1


def test_opening_a_cache_looks_at_nothing(
    make_cache: Callable[..., Cache], directory: Path
) -> None:
    make_cache()
    assert not directory.exists()


def test_a_cache_that_is_not_there_is_empty(cache: Cache) -> None:
    assert cache.entries() == ()
    assert cache.prune(0, patiently()) == ()


def test_an_image_that_is_there_is_found_without_looking_at_the_others(
    cache: Cache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(cache, place)
    monkeypatch.setattr(files, "scan", lambda _directory: pytest.fail("it looked"))
    assert get(cache, place) == CONTENT


def test_a_new_image_looks_at_the_others_once(
    cache: Cache, place: Place, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(parents=True)
    for number in range(1_000):
        (directory / f"sha256-{number:064x}").touch()
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda at: looked.append(at) or scandir(at))
    get(cache, place)
    assert looked == [str(directory)]


def test_it_is_in_use_for_as_long_as_the_context_lasts(
    cache: Cache, place: Place, in_child: Callable[..., str]
) -> None:
    with cache.fetched(place, place.only, patiently()) as file:
        (entry,) = cache.entries()
        assert cache.is_used(entry)
        assert in_child(lambda: (file.close(), cache.is_used(entry))[1]) == "True"
    assert not cache.is_used(entry)


# -- what is not kept ----------------------------------------------------------


def faulty(place: Place, what: str) -> Image:
    """The image, after something has gone wrong with it."""
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
        ("altered", exception.ImageInvalid),
        ("truncated", exception.ImageInvalid),
        ("longer", exception.ImageInvalid),
        ("unhashed", exception.ImageInvalid),
        ("silent", exception.ImageServiceUnavailable),
    ],
)
def test_what_is_not_proved_leaves_nothing_behind(
    cache: Cache, place: Place, directory: Path, what: str, error: type[Exception]
) -> None:
    directory.mkdir(parents=True)
    image = faulty(place, what)
    deadline = soon() if what == "silent" else patiently()
    with pytest.raises(error), cache.fetched(place, image, deadline):
        pytest.fail("it was taken for proved")
    assert names(directory) == set()


def test_what_failed_once_can_be_fetched_later(
    cache: Cache, place: Place, directory: Path
) -> None:
    faulty(place, "altered")
    with pytest.raises(exception.ImageInvalid):
        get(cache, place)
    place.contents[place.only.id] = CONTENT
    assert get(cache, place) == CONTENT


def test_a_caller_that_fails_leaves_the_image_there(cache: Cache, place: Place) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        cache.fetched(place, place.only, patiently()),
    ):
        _ = 1 / 0
    (entry,) = cache.entries()
    assert not cache.is_used(entry)


def test_a_progress_that_fails_leaves_nothing(
    cache: Cache, place: Place, directory: Path
) -> None:
    def progress(_done: int, _size: int | None) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        cache.fetched(place, place.only, patiently(), progress),
    ):
        pytest.fail("it was fetched")
    assert names(directory) == set()


def test_a_file_of_another_size_is_fetched_anew(
    cache: Cache, place: Place, directory: Path
) -> None:
    get(cache, place)
    os.truncate(directory / file_name(place.only), SIZE - 1)
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]


def alter(path: Path) -> None:
    """Change one byte of a file, behind everybody's back."""
    with open(path, "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"!")


def test_an_altered_file_is_forgotten_and_fetched_anew(
    cache: Cache, place: Place, directory: Path
) -> None:
    get(cache, place)
    alter(directory / file_name(place.only))
    assert cache.forget(place.only, patiently())
    assert names(directory) == set()
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]


def test_a_sound_file_is_not_forgotten_because_somebody_says_so(
    cache: Cache, place: Place
) -> None:
    get(cache, place)
    assert not cache.forget(place.only, patiently())
    get(cache, place)
    assert place.begun == [0]


def test_what_cannot_be_hashed_in_time_stays(
    cache: Cache, place: Place, directory: Path
) -> None:
    (image,) = place.all.values()
    with cache.fetched(place, image, soon()) as file:
        name = Digest.of(image).file_name
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        cache.verify(Digest.of(image), time.monotonic())
    assert file.closed
    assert os.listdir(directory) == [name]


def test_who_uses_an_altered_file_does_not_keep_it_there(
    cache: Cache, place: Place, directory: Path
) -> None:
    with cache.fetched(place, place.only, patiently()):
        alter(directory / file_name(place.only))
        assert cache.forget(place.only, patiently())
        assert get(cache, place) == CONTENT


def test_an_altered_file_that_is_evicted_meanwhile_is_forgotten_all_the_same(
    cache: Cache, place: Place, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(cache, place)
    alter(directory / file_name(place.only))
    log, entry = cache_module.LOG, directory / file_name(place.only)
    monkeypatch.setattr(log, "error", lambda *_arguments: entry.unlink())
    assert cache.forget(place.only, patiently())
    assert names(directory) == set()


def test_what_is_not_there_need_not_be_forgotten(cache: Cache, place: Place) -> None:
    assert not cache.forget(place.only, patiently())


# -- how much is kept ----------------------------------------------------------


def test_the_least_recently_used_goes_first(
    make_cache: Callable[..., Cache], several: Place
) -> None:
    cache = make_cache(3 * SIZE)
    use(cache, several, 1, 2, 3, 1)
    use(cache, several, 4)
    assert numbers(cache, several) == [3, 1, 4]


def test_whoever_uses_an_image_makes_it_the_last_to_go(
    cache: Cache, several: Place
) -> None:
    use(cache, several, 1, 2)
    get(cache, several, next(iter(several.all.values())))
    assert numbers(cache, several) == [2, 1]


def test_no_more_goes_than_has_to(
    make_cache: Callable[..., Cache], several: Place
) -> None:
    cache = make_cache(4 * SIZE - 1)
    use(cache, several, 1, 2, 3, 4)
    assert numbers(cache, several) == [2, 3, 4]


def test_what_is_in_use_stays(
    make_cache: Callable[..., Cache],
    several: Place,
    paused_child: Callable[..., contextlib.AbstractContextManager],
) -> None:
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


def test_where_all_is_in_use_there_is_no_room(
    make_cache: Callable[..., Cache], several: Place
) -> None:
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


def test_an_image_larger_than_the_cache_evicts_nothing(
    make_cache: Callable[..., Cache], several: Place
) -> None:
    use(make_cache(), several, 1, 2)
    cache = make_cache(SIZE - 1)
    with pytest.raises(exception.CacheFull, match=f"{SIZE} bytes does not fit"):
        use(cache, several, 3)
    assert numbers(cache, several) == [1, 2]
    assert several.begun == [0, 0]


def test_an_image_of_unknown_size_keeps_within_the_bounds_too(
    make_cache: Callable[..., Cache], several: Place
) -> None:
    cache = make_cache(2 * SIZE)
    use(cache, several, 1, 2)
    third = image_of(numbered(3), 3, size=None)
    assert get(cache, several, third) == numbered(3)
    assert numbers(cache, several) == [2, 3]
    small = make_cache(SIZE - 1)
    with pytest.raises(exception.ImageInvalid, match=f"more than {SIZE - 1} bytes"):
        get(small, several, image_of(numbered(4), 4, size=None))


def test_downloads_under_way_count(
    make_cache: Callable[..., Cache], several: Place
) -> None:
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


def test_pruning_keeps_what_was_used_last(cache: Cache, several: Place) -> None:
    use(cache, several, 1, 2, 3, 4)
    gone = cache.prune(2 * SIZE, patiently())
    assert [entry.size for entry in gone] == [SIZE, SIZE]
    assert numbers(cache, several) == [3, 4]
    assert cache.prune(2 * SIZE, patiently()) == ()


def test_pruning_everything_keeps_what_is_in_use(cache: Cache, several: Place) -> None:
    use(cache, several, 1, 2, 3)
    second = list(several.all.values())[1]
    with cache.fetched(several, second, patiently()):
        assert len(cache.prune(0, patiently())) == 2
        assert numbers(cache, several) == [2]


# -- the disk ------------------------------------------------------------------


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the disk have so many bytes left."""

    def leave(size: int) -> None:
        def measured(path: object) -> os.statvfs_result:
            return os.statvfs_result((1, 1, MUCH, MUCH, size, 0, 0, 0, 0, 255))

        monkeypatch.setattr(os, "statvfs", measured)

    return leave


MUCH = 1 << 30


def test_a_disk_without_space_is_told_before_anything_is_asked_for(
    cache: Cache, place: Place, directory: Path, free: Callable[[int], None]
) -> None:
    free(cache_module.SPARED + SIZE - 1)
    with pytest.raises(exception.CacheFull, match=f"{SIZE - 1} bytes are free"):
        get(cache, place)
    assert place.begun == []
    assert names(directory) == set()
    free(cache_module.SPARED + SIZE)
    assert get(cache, place) == CONTENT


def test_images_give_way_where_the_disk_is_full(
    cache: Cache, several: Place, free: Callable[[int], None]
) -> None:
    use(cache, several, 1, 2, 3)
    free(cache_module.SPARED)
    use(cache, several, 4)
    assert numbers(cache, several) == [2, 3, 4]


STEPS = ("posix_fallocate", "write", "fsync", "rename")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_is_full_in_the_middle_leaves_nothing(
    cache: Cache,
    place: Place,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    number: int,
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(os, step, refuse)
        with pytest.raises(exception.CacheFull, match=os.strerror(number)):
            get(cache, place)
    assert names(directory) == set()
    assert get(cache, place) == CONTENT


def test_a_limit_of_the_kernel_is_told_as_it_is(
    cache: Cache, place: Place, directory: Path, in_child: Callable[..., str]
) -> None:
    def within_limits() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE, PIECE))
        get(cache, place)

    assert in_child(within_limits) == "CacheFull"
    assert names(directory) == set()


def test_a_file_system_that_cannot_reserve_space_is_used_all_the_same(
    cache: Cache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert get(cache, place) == CONTENT


def test_what_was_longer_before_leaves_no_rest(cache: Cache) -> None:
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


# -- whatever lies there -------------------------------------------------------

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
def test_what_lies_there_is_no_obstacle(
    make_cache: Callable[..., Cache],
    several: Place,
    directory: Path,
    what: str,
    name: str,
) -> None:
    directory.mkdir(parents=True)
    STRANGE[what](directory / name)
    cache = make_cache(2 * SIZE)
    use(cache, several, 1, 2, 3)
    cache.prune(SIZE + 1, patiently())
    assert {file_name(list(several.all.values())[2])} <= names(directory)


@pytest.mark.parametrize("what", STRANGE)
def test_what_has_the_name_of_an_image_gives_way(
    cache: Cache, place: Place, directory: Path, what: str
) -> None:
    directory.mkdir(parents=True)
    STRANGE[what](directory / file_name(place.only))
    assert get(cache, place) == CONTENT
    assert names(directory) == {file_name(place.only)}
    assert get(cache, place) == CONTENT
    assert place.begun == [0]


def test_a_directory_that_is_not_empty_is_not_removed(
    cache: Cache, place: Place, directory: Path
) -> None:
    there = directory / file_name(place.only) / "something"
    there.mkdir(parents=True)
    with pytest.raises(exception.StateUnavailable, match=file_name(place.only)):
        get(cache, place)
    assert place.begun == []
    assert there.exists()


def test_a_place_that_cannot_be_used_is_told(
    cache: Cache, place: Place, directory: Path
) -> None:
    directory.parent.mkdir()
    directory.touch()
    with pytest.raises(exception.StateUnavailable, match="bitstreams"):
        get(cache, place)
    with pytest.raises(exception.StateUnavailable, match="bitstreams"):
        cache.entries()


# -- threads and processes -----------------------------------------------------


def test_one_download_serves_sixteen_threads(cache: Cache, place: Place) -> None:
    contents = []
    threads = [
        threading.Thread(target=lambda: contents.append(get(cache, place)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents == [CONTENT] * 16
    assert place.begun == [0]


def test_one_download_serves_several_processes(
    cache: Cache, place: Place, in_child: Callable[..., str]
) -> None:
    outcomes: list[str] = []

    def fetch_it() -> str:
        return f"{get(cache, place) == CONTENT} {len(place.begun)}"

    watchers = [
        threading.Thread(target=lambda: outcomes.append(in_child(fetch_it)))
        for _ in range(6)
    ]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    assert sorted(outcomes) == ["True 0"] * 5 + ["True 1"]


def test_who_waits_for_anothers_download_waits_until_its_deadline(
    cache: Cache, place: Place, paused_child: Callable[..., object]
) -> None:
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
    cache: Cache, several: Place, directory: Path, paused_child: Callable[..., object]
) -> None:
    first, second, *_ = several.all.values()

    def stop_amid(pause: Callable[[], None]) -> None:
        def progress(done: int, _of: int | None) -> None:
            if done == SIZE:
                pause()

        with cache.fetched(several, first, patiently(), progress):
            pass

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        get(cache, several, second)
        (left,) = names(directory) - {file_name(second)}
        # It lives: nobody else removes it.
        cache.prune(MUCH, patiently())
        assert left in names(directory)
        child.is_killed()
    # All its bytes were there, and it is nothing.
    assert left.startswith(".")
    assert numbers(cache, several) == [2]
    assert cache.prune(MUCH, patiently()) == ()
    assert names(directory) == {file_name(second)}
    assert get(cache, several, first) == numbered(1)


def test_the_next_download_removes_what_a_killed_one_has_left(
    cache: Cache, several: Place, directory: Path, paused_child: Callable[..., object]
) -> None:
    first, second, *_ = several.all.values()

    def stop_amid(pause: Callable[[], None]) -> None:
        with cache.fetched(several, first, patiently(), lambda *_: pause()):
            pass

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        child.is_killed()
    assert len(names(directory)) == 1
    get(cache, several, second)
    assert names(directory) == {file_name(second)}


def test_eviction_and_use_in_many_processes_never_show_half_an_image(
    make_cache: Callable[..., Cache], several: Place, in_child: Callable[..., str]
) -> None:
    """Three want four images, one at a time each; there is room for three."""

    def use_all() -> str:
        cache, images = make_cache(3 * SIZE), list(several.all.values())
        wanted = [images[(turn * os.getpid()) % 4] for turn in range(20)]
        return str(
            sum(
                get(cache, several, each) == several.contents[each.id]
                for each in wanted
            )
        )

    outcomes: list[str] = []
    watchers = [
        threading.Thread(target=lambda: outcomes.append(in_child(use_all)))
        for _ in range(3)
    ]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    assert outcomes == ["20"] * 3


@pytest.fixture
def evicting(
    cache: Cache, place: Place, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Evict the image after its file was opened and before it is locked."""
    flock, pending = files.fcntl.flock, [True]

    def locked(fd: int, operation: int) -> None:
        if pending and operation & files.fcntl.LOCK_SH:
            pending.clear()
            cache.prune(0, patiently())
        flock(fd, operation)

    def begin() -> None:
        monkeypatch.setattr(files.fcntl, "flock", locked)

    return begin


def test_an_image_that_is_evicted_as_it_is_opened_is_fetched_anew(
    cache: Cache, place: Place, directory: Path, evicting: Callable[[], None]
) -> None:
    get(cache, place)
    evicting()
    assert get(cache, place) == CONTENT
    assert place.begun == [0, 0]
    assert names(directory) == {file_name(place.only)}


def test_an_eviction_that_hangs_is_waited_for_until_the_deadline(
    cache: Cache, place: Place, paused_child: Callable[..., object]
) -> None:
    get(cache, place)
    path = cache.path(place.only)

    def stop_amid(pause: Callable[[], None]) -> None:
        with files._unused(path):
            pause()

    with paused_child(stop_amid) as child:  # type: ignore[attr-defined]
        with (
            pytest.raises(exception.LockTimeout, match="being removed"),
            cache.fetched(place, place.only, soon()),
        ):
            pytest.fail("it was used while somebody removes it")
        child.is_killed()
    assert get(cache, place) == CONTENT


def test_locks_of_images_leave_no_files_behind(
    cache: Cache, several: Place, directory: Path
) -> None:
    use(cache, several, 1, 2, 3)
    assert names(directory.parent / "locks") == {CACHE_LOCK}


def test_no_lock_of_an_image_is_held_while_it_is_used(
    cache: Cache, place: Place, directory: Path
) -> None:
    locks = Locks(str(directory.parent / "locks"))
    with cache.fetched(place, place.only, patiently()):
        wanted = (CACHE_LOCK, bitstream_lock(Digest.of(place.only)))
        with locks.try_hold(wanted) as free:
            assert free


def test_progress_is_told_to_whoever_downloads(cache: Cache, place: Place) -> None:
    told: list[int] = []
    progress: fetch.Progress = lambda done, _size: told.append(done)  # noqa: E731
    for _ in range(2):
        with cache.fetched(place, place.only, patiently(), progress):
            pass
    assert told == [PIECE, 2 * PIECE, SIZE]
