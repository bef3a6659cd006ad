# SPDX-License-Identifier: Apache-2.0

"""The machine of the kernel lane is tried again if its emulator has stopped."""

import pytest

from tests.functional.kernel import lane

RACE = "qemu: physmem.c:2678: iotlb_to_section: Assertion `...' failed."


@pytest.mark.parametrize(
    ("last_words", "stopped"),
    [(RACE, True), ("Kernel panic - not syncing: Fatal exception", False)],
)
def test_only_the_emulators_own_abort_is_no_result(
    tmp_path, monkeypatch, last_words, stopped
):
    command = ["sh", "-c", 'echo "$0"; exit 134', last_words]
    monkeypatch.setattr(lane, "machine_command", lambda *_: command)
    job = lane.Job("lane", tmp_path, (), "", (), "pytest.log", "")
    attempt = lane.Machine(None, job).follow()
    assert (attempt.status, attempt.stopped) == (None, stopped)
