# SPDX-License-Identifier: Apache-2.0

"""A scan that lacks a descriptor or memory is no scan, and can be repeated."""

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.mdevs import mtty

GPU = "0000:17:00.0"
#: The calls that need a descriptor, memory, or both.
CALLS = ("open", "listdir", "scandir", "readlink", "stat", "lstat")
ERRORS = sorted(exception.EXHAUSTED)


class Refusal:
    """Refuses the n-th call below a directory, or of a relative path.

    :ivar count: the calls until now.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: str) -> None:
        self._root, self._at, self._error = root, 0, 0
        self.count = 0
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))

    def begin(self, at: int, error: int) -> None:
        self.count, self._at, self._error = 0, at, error

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(path: Any = ".", *args: Any, **options: Any) -> Any:
            is_ours = isinstance(path, int) or options.get("dir_fd") is not None
            if is_ours or str(path).startswith(self._root):
                self.count += 1
                if self.count == self._at:
                    raise OSError(self._error, os.strerror(self._error), str(path))
            return call(path, *args, **options)

        return refusing


@pytest.fixture
def host(make_bench: Callable[..., TestHost]) -> TestHost:
    """Return a host with a device of each family."""
    display, audio = hosts.gpu("0000:17")
    spec = HostSpec(
        (
            *(dataclasses.replace(display, mdevs=mtty(GPU)), audio),
            *(hosts.nic("0000:3b", name="eno1", vfs=4), hosts.qat_gen4("0000:d8")),
            *(hosts.nvme_disk("0000:d9", 1, 1), hosts.dfl("0000:5e", 0)),
            *(hosts.vgpu_card("0000:c1"), *hosts.alveo("0000:66")),
        ),
        mdev_parents=(mtty(),),
    )
    parts = [f'{{"address": "{GPU}", "mdev_types": "{GPU}-1"}}']
    parts.append('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}')
    parts.append('{"address": "0000:c1:00.*", "vgpu_type": 1154}')
    return make_bench(spec, device_spec=[*parts, '{"address": "*:*:*.*"}'])


@pytest.fixture
def refusal(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusal]:
    host.manager.discover()
    with monkeypatch.context() as patch:
        yield Refusal(patch, host.root)


def offered(host: TestHost) -> dict[str, object]:
    found = host.manager.discover().providers
    return {uuid: each.device for uuid, each in found.items()}


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_scan_is_complete_or_fails_and_may_be_repeated(host, refusal, error):
    whole = offered(host)
    # Each family has a provider.
    assert len(whole) >= 8
    refusal.begin(0, error)
    assert offered(host) == whole
    points, wrong = refusal.count, []
    # Each error at points of its own, and at each point one of them.
    for at in range(1 + ERRORS.index(error), points + 1, len(ERRORS)):
        refusal.begin(at, error)
        try:
            found = offered(host)
        except exception.OsAccError as failure:
            if not failure.retryable:
                wrong.append((at, repr(failure)))
        else:
            if found != whole:
                wrong.append((at, str(whole.keys() - found.keys())))
    assert not wrong
    refusal.begin(0, error)
    assert offered(host) == whole
