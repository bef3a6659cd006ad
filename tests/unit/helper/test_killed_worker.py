# SPDX-License-Identifier: Apache-2.0

"""A worker of the privileged helper may be killed in the middle of its work."""

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, hosts

GPU, AUDIO = "0000:17:00.0", "0000:17:00.1"


def test_an_unplug_whose_worker_is_killed_can_be_tried_again(bench):
    start = bench.kernel.snapshot()
    bench.plug(1, GPU)
    bench.kernel.kill(AUDIO, "unbind")

    with pytest.raises(exception.DevicesUnreleased) as caught:
        bench.unplug(1)

    ((_, why),) = caught.value.unreleased
    assert isinstance(why, exception.HelperLost)
    assert why.retryable
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == start


@pytest.mark.parametrize("after", [False, True])
def test_a_restart_ends_the_making_of_vfs(make_bench, after):
    """VFs are created with autoprobe off; that must not outlive a killed worker."""
    nic = hosts.nic("0000:3b", name="ens1f0")
    spec = f'{{"address": "{nic.address}", "num_vfs": "2"}}'
    bench = make_bench(HostSpec((nic,)), device_spec=[spec])
    bench.kernel.kill(nic.address, "sriov_numvfs", after=after)
    bench.restart()
    assert bench.kernel.state(nic.address).autoprobe is False

    bench.restart()

    state = bench.kernel.state(nic.address)
    assert (state.numvfs, state.autoprobe) == (2, True)
