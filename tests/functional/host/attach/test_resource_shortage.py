# SPDX-License-Identifier: Apache-2.0

"""A temporary shortage of a resource in a process quarantines no device."""

from __future__ import annotations

import contextlib
import errno
import os
from types import SimpleNamespace

import pytest

from os_acc import exception
from os_acc.host import attributes, pci
from os_acc.objects.lease import LeaseState
from os_acc.privsep import kernel, pci_functions, worker
from os_acc.privsep import locks as lock_files
from os_acc.store import database, locks, state_files
from os_acc.testing import TestHost, instance, uuid_of
from os_acc.testing.device_specs import NvmeSpec
from tests.expected_errors import has, raises
from tests.functional.host.plugins.nvme_drive import (
    DRIVE,
    advance,
    host_with,
    lease_of,
)

GPU = "0000:17:00.0"
ERRORS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]


class Once:
    """A function of the operating system that refuses its n-th call.

    :ivar left: calls until then, including the refused one; 0: it was refused.
    """

    def __init__(self, call, error: int, about: str, number: int) -> None:
        self._call, self._error, self._about = call, error, about
        self.left = number

    def __call__(self, *args, **options):
        if self.left and self._about in str(args[:1]):
            self.left -= 1
            if not self.left:
                raise OSError(self._error, os.strerror(self._error), *args[:1])
        return self._call(*args, **options)

    @property
    def struck(self) -> bool:
        return not self.left


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch):
    """Return a function that refuses one call of a module."""

    def begin(module, name: str, error: int, about: str = "", number: int = 1) -> Once:
        shown = SimpleNamespace(**vars(os))
        once = Once(getattr(os, name), error, about, number)
        setattr(shown, name, once)
        monkeypatch.setattr(module, "os", shown)
        return once

    return begin


def check_passes(bench: TestHost, before) -> exception.OsAccError:
    """Check that an unplug fails, retryably, and then succeeds; return its error."""
    with pytest.raises(exception.OsAccError) as caught:
        bench.unplug(1)
    error = caught.value
    if isinstance(error, exception.DevicesUnreleased):
        ((_, error),) = error.unreleased
    assert error.retryable, repr(error)
    (lease,) = bench.manager.store.leases(uuid_of(1))
    assert lease.state is not LeaseState.QUARANTINED
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
    return error


@pytest.fixture
def before(bench: TestHost):
    """Plug a GPU; return the snapshot of the host from before."""
    snapshot = bench.kernel.snapshot()
    bench.plug(1, GPU)
    return snapshot


@pytest.mark.parametrize(
    ("module", "name", "about", "error"),
    [
        *((lock_files, "open", "run/os_acc", error) for error in ERRORS),
        (lock_files, "makedirs", "run/os_acc", errno.ENFILE),
        (worker, "pwrite", "", errno.EINTR),
        (worker, "pread", "", errno.ENOMEM),
        (worker, "pipe2", "", errno.EMFILE),
        (worker, "fork", "", errno.ENOMEM),
        (worker, "fork", "", errno.EAGAIN),
    ],
)
def test_a_lock_file_or_a_child_of_the_helper(
    bench, before, refuse, module, name, about, error
):
    once = refuse(module, name, error, about)
    refusal = check_passes(bench, before)
    assert once.struck
    assert refusal.errno == error


def test_memory_within_the_child_of_the_helper(bench, before, monkeypatch):
    def exhausted(address):
        bench.kernel.lift()
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pci_functions, "is_bridge", exhausted)
        with pytest.raises(exception.DevicesUnreleased) as caught:
            bench.unplug(1)
    ((_, error),) = caught.value.unreleased
    assert error.retryable
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


def test_an_attribute_that_the_helper_reads(bench, before, refuse):
    once = refuse(kernel, "open", errno.EMFILE, "driver_override")
    # The helper's child counts in a copy, so the call is refused once more.
    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)
    ((_, refusal),) = caught.value.unreleased
    assert (refusal.retryable, refusal.errno) == (True, errno.EMFILE)
    (lease,) = bench.manager.store.leases(uuid_of(1))
    assert lease.state is LeaseState.RELEASING
    once.left = 0
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("error", ERRORS)
def test_a_function_that_the_service_opens(bench, before, refuse, error):
    once = refuse(pci, "open", error, GPU)
    check_passes(bench, before)
    assert once.struck


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_file_that_the_service_reads(bench, before, refuse, number):
    """The unplug may succeed without a file that it does not need."""
    once = refuse(attributes, "open", errno.EMFILE, number=number)
    with contextlib.suppress(exception.DevicesUnreleased):
        bench.unplug(1)
    assert once.struck
    leases = bench.manager.store.leases()
    assert all(each.state is not LeaseState.QUARANTINED for each in leases)
    if leases:
        assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before


@pytest.mark.parametrize("error", ERRORS)
def test_a_lock_of_the_service(bench, before, monkeypatch, error):
    real = locks._is_named
    calls = [error]

    def named(lock, path):
        if calls:
            raise OSError(calls.pop(), "no more", path)
        return real(lock, path)

    monkeypatch.setattr(locks, "_is_named", named)
    refusal = check_passes(bench, before)
    assert isinstance(refusal, exception.StateUnavailable)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "no more")])
@pytest.mark.parametrize(
    ("module", "name"), [(database, "open"), (state_files, "replace")]
)
def test_the_store(bench, before, monkeypatch, module, name, error):
    real, errors = getattr(module, name, open), [error]

    def once(*args, **options):
        if errors:
            raise errors.pop()
        return real(*args, **options)

    monkeypatch.setattr(module, name, once, raising=False)
    refusal = check_passes(bench, before)
    assert isinstance(refusal, exception.StateUnavailable)


def test_a_plugins_own_step(bench, before, monkeypatch):
    (lease,) = bench.manager.store.leases(uuid_of(1))
    plugin = bench.manager.plugins.get(lease.plugin)
    failures = [OSError(errno.EMFILE, "no more")]
    real = type(plugin).release

    def release(self, handle, steps):
        if failures:
            raise failures.pop()
        real(self, handle, steps)

    monkeypatch.setattr(type(plugin), "release", release)
    check_passes(bench, before)


def test_a_plug_that_runs_out_leaves_nothing(bench, refuse):
    before = bench.kernel.snapshot()
    refuse(worker, "fork", errno.EAGAIN)
    with raises(exception.StepReason.REFUSED) as caught:
        bench.plug(1, GPU)
    assert caught.value.retryable
    assert bench.manager.store.leases() == ()
    assert bench.kernel.snapshot() == before
    bench.plug(1, GPU)
    assert bench.manager.attached(instance(1))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_drive_waits_for_room_for_the_directory_of_the_copies(
    tmp_path, monkeypatch, number
):
    fsync = os.fsync

    def refused(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith(kernel.COPIES):
            raise OSError(number, os.strerror(number))
        return fsync(fd)

    with host_with(tmp_path, NvmeSpec()) as host:
        host.plug(2, DRIVE)
        host.unplug(2)
        with monkeypatch.context() as patches:
            patches.setattr(os, "fsync", refused)
            advance(host)
        assert lease_of(host).state is not LeaseState.QUARANTINED
        advance(host)
        assert host.manager.store.leases() == ()


@pytest.mark.parametrize("place", [kernel.COPIES, kernel.LOCKS])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_drive_waits_for_room_for_the_helpers_files(
    tmp_path, monkeypatch, place, number
):
    write = kernel.StateFile._write

    def refused(self, path, *given, **options):
        if self.place.startswith(place):
            raise OSError(number, os.strerror(number), path)
        return write(self, path, *given, **options)

    with host_with(tmp_path, NvmeSpec()) as host:
        with monkeypatch.context() as patches:
            patches.setattr(kernel.StateFile, "_write", refused)
            check = has(retryable=True)
            with pytest.raises(exception.HostStepFailed, check=check):
                host.plug(1, DRIVE)
        for attempt in host.manager.retrier.retry():
            attempt.result(60)
        host.plug(2, DRIVE)
        with monkeypatch.context() as patches:
            patches.setattr(kernel.StateFile, "_write", refused)
            with pytest.raises(exception.DevicesUnreleased):
                host.unplug(2)
            assert lease_of(host).state is LeaseState.RELEASING
        host.unplug(2)
        advance(host)
        assert host.manager.store.leases() == ()
