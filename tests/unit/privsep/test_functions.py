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

"""What privileged code finds of a function that leaves meanwhile."""

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
        if path.endswith("/vendor"):
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
