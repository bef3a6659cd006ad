# SPDX-License-Identifier: Apache-2.0

"""The cached image is found by its digest, and its contents are not trusted."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import time
from pathlib import Path

import pytest
from oslo_config import cfg

from os_acc import conf
from os_acc.bitstreams import options
from os_acc.objects.bitstream import Digest
from os_acc.privsep import images
from os_acc.privsep.outcome import CallRefused, CallResult

DATA = b"what is to be programmed" * 100
DIGEST = Digest("sha512", hashlib.sha512(DATA).hexdigest())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(images, "directory", lambda: str(tmp_path))
    (tmp_path / DIGEST.file_name).write_bytes(DATA)
    return tmp_path


def sealed(digest: Digest = DIGEST, seconds: float = 60):
    return images.sealed(digest, time.monotonic() + seconds)


def unfit(digest: Digest = DIGEST, seconds: float = 60) -> CallResult:
    with pytest.raises(CallRefused) as caught, sealed(digest, seconds):
        raise AssertionError("it was taken")
    return caught.value.result


def test_what_was_hashed_is_what_is_held(cache):
    with sealed() as image:
        # Later changes of the file make no difference.
        (cache / DIGEST.file_name).write_bytes(b"something else")
        assert image.size == len(DATA)
        assert os.pread(image.fd, image.size, 0) == DATA


def test_a_file_of_many_pieces_is_held_whole(cache, monkeypatch):
    monkeypatch.setattr(images, "_CHUNK", 7)
    with sealed() as image:
        assert os.pread(image.fd, image.size + 1, 0) == DATA


@pytest.mark.parametrize("place", [0, len(DATA) - 1])
def test_no_piece_of_a_file_is_believed(cache, monkeypatch, place):
    monkeypatch.setattr(images, "_CHUNK", 7)
    altered = bytearray(DATA)
    altered[place] ^= 1
    (cache / DIGEST.file_name).write_bytes(altered)
    error = unfit()
    assert (error.errno, error.step) == (errno.EBADMSG, "digest")
    assert error.observed == hashlib.sha512(altered).hexdigest()


def test_nobody_can_change_it(cache):
    with sealed() as image:
        for change in (
            lambda fd: os.pwrite(fd, b"x", 0),
            lambda fd: os.ftruncate(fd, 0),
            lambda fd: os.ftruncate(fd, 2 * len(DATA)),
            lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
            lambda fd: mmap.mmap(fd, len(DATA), prot=mmap.PROT_WRITE),
        ):
            with pytest.raises(PermissionError):
                change(image.fd)
        with mmap.mmap(image.fd, image.size, access=mmap.ACCESS_COPY) as view:
            assert view[:] == DATA


class Clock:
    """A clock that advances only on sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class BusyKernel:
    """Rejects seals for some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self._clock, self._seconds = Clock(), seconds
        self._fcntl = fcntl.fcntl
        monkeypatch.setattr(images, "time", self._clock)
        monkeypatch.setattr(fcntl, "fcntl", self.fcntl)

    def fcntl(self, fd: int, command: int, argument: int) -> int:
        if self._clock.now < self._seconds:
            raise OSError(errno.EBUSY, "a page is on its way")
        return self._fcntl(fd, command, argument)


def test_a_kernel_that_is_not_ready_to_seal_is_asked_again(cache, monkeypatch):
    BusyKernel(monkeypatch, seconds=1)
    with images.sealed(DIGEST, 60) as image:
        assert os.pread(image.fd, image.size, 0) == DATA
        with pytest.raises(PermissionError):
            os.pwrite(image.fd, b"x", 0)


def test_what_cannot_be_sealed_in_time_is_not_programmed(cache, monkeypatch):
    BusyKernel(monkeypatch, seconds=61)
    with pytest.raises(CallRefused) as caught, images.sealed(DIGEST, 60):
        raise AssertionError("it was taken")
    result = caught.value.result
    assert (result.errno, result.step) == (errno.EBUSY, "image")


def test_it_is_given_up_after_use(cache):
    with sealed() as image:
        pass
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(image.fd)


def test_a_name_under_another_algorithm_is_another_file(cache):
    other = Digest("sha256", hashlib.sha256(DATA).hexdigest())
    assert (unfit(other).errno, unfit(other).step) == (errno.ENOENT, "image")


def test_links_are_not_followed(cache):
    (cache / DIGEST.file_name).rename(cache / "elsewhere")
    (cache / DIGEST.file_name).symlink_to(cache / "elsewhere")
    assert unfit().errno == errno.ELOOP


def test_the_directory_is_no_link_either(cache, monkeypatch):
    link = cache / "link"
    link.symlink_to(cache, target_is_directory=True)
    monkeypatch.setattr(images, "directory", lambda: str(link))
    assert unfit().errno == errno.ENOTDIR


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_makes_nobody_wait(cache, make):
    (cache / DIGEST.file_name).unlink()
    make(cache / DIGEST.file_name)
    error = unfit()
    assert (error.errno, error.step) == (errno.EINVAL, "image")


def test_an_image_has_a_size_that_memory_can_hold(cache, monkeypatch):
    monkeypatch.setattr(images, "SIZE_LIMIT", len(DATA))
    with sealed():
        pass
    monkeypatch.setattr(images, "SIZE_LIMIT", len(DATA) - 1)
    error = unfit()
    assert (error.errno, error.step) == (errno.EFBIG, "image")


def test_it_is_not_read_for_longer_than_there_is_time(cache):
    assert unfit(seconds=0).errno == errno.ETIMEDOUT


def test_a_host_without_memory_is_told(cache, monkeypatch):
    def memfd_create(_name: str, _flags: int) -> int:
        raise OSError(errno.ENOMEM, "none left")

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    assert unfit().errno == errno.ENOMEM


@pytest.fixture
def configured(tmp_path: Path):
    def configure(text: str) -> None:
        path = tmp_path / "os-acc.conf"
        path.write_text(f"[os_acc]\nstate_path = {text}\n")
        cfg.CONF([], default_config_files=[str(path)], default_config_dirs=[])

    yield configure
    cfg.CONF.clear()
    cfg.CONF([], default_config_files=[], default_config_dirs=[])


def test_the_helper_knows_the_directory_by_itself(configured, tmp_path):
    configured(str(tmp_path))
    assert images.directory() == f"{tmp_path}/bitstreams"


@pytest.mark.parametrize("text", ["", "relative/path", "$none_such/x"])
def test_a_directory_that_is_not_told_is_an_error(configured, text):
    configured(text)
    with pytest.raises(CallRefused):
        images.directory()


def test_service_and_helper_read_one_option():
    both = cfg.ConfigOpts()
    conf.register(both)
    both.register_opt(options.STATE_PATH, group=conf.GROUP.name)
