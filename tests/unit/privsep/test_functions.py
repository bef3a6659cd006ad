# SPDX-License-Identifier: Apache-2.0

"""Privileged code reports a function that vanishes meanwhile as gone."""

from __future__ import annotations

import errno

import pytest

from os_acc.privsep import binding, sriov
from os_acc.privsep.outcome import Outcome

LEASE = "77777777-7777-4777-8777-777777777777"
PLACE, CARD = (0, 0x5E, 0, 0), (0x10EE, 0x5000, 0x10EE, 0x000E, 0)


@pytest.mark.parametrize("error", [errno.ENODEV, errno.ENOENT, errno.ENOTDIR])
def test_what_is_pulled_out_while_it_is_read_is_gone(fake, monkeypatch, error):
    read = fake.read

    def pulled_out(path):
        if path.endswith("/modalias"):
            raise OSError(error, "pulled out", path)
        return read(path)

    monkeypatch.setattr(fake, "read", pulled_out)
    monkeypatch.setattr("os_acc.privsep.kernel.current", fake)
    group = fake.group("0000:5e:00.0")
    (taken,) = binding.take(group, ((PLACE, CARD),), 1, 30_000, LEASE)
    targets = ((PLACE, CARD, "", ""),)
    (returned,) = binding.give_back(group, targets, 1, 30_000, True, LEASE)
    made = sriov.set_num_vfs(PLACE, CARD, 1, 1, 30_000)
    assert {taken[0], returned[0], made[0]} == {Outcome.GONE}
    assert fake.writes() == []
