# SPDX-License-Identifier: Apache-2.0

"""Devices go to guests and come back exactly as they were."""

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, hosts
from tests.expected_errors import raises

GPU = "0000:17:00.0"


def test_a_disk_in_a_domain_of_32_bits_goes_to_vfio_pci_and_comes_back(make_bench):
    """VMD makes such domains. The disk would be erased after its return."""
    address = "10000:01:00.0"
    bench = make_bench(
        HostSpec((hosts.nvme_disk("10000:01", 0),)),
        device_spec=['{"address": "*:*:*.*", "allow_no_erase": true}'],
    )
    before = bench.kernel.snapshot()
    (entry,) = bench.plug(1, address)
    assert (entry["pci_id"], entry["state"]) == (address, "Bound")
    assert bench.drivers(address) == ["vfio-pci"]
    assert bench.unplug(1) == 1
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()


def test_a_device_that_is_bound_before_stays_bound(make_bench):
    bench = make_bench(
        HostSpec((hosts.fpga("0000:05"),)),
        device_spec=['{"address": "0000:05:00.0", "prebound": true}'],
    )
    kernel = bench.kernel
    bench.bind("0000:05:00.0", "vfio-pci")
    before = kernel.snapshot()
    bench.plug(1, "0000:05:00.0")
    assert bench.unplug(1) == 1
    assert kernel.snapshot() == before
    # The device was reset on its way to the next guest.
    assert [w.path.rpartition("/")[2] for w in kernel.writes()[2:]] == ["reset"]


def test_an_earlier_override_comes_back(bench):
    kernel, override = bench.kernel, "A.b-c_9 d:e+"
    kernel.write(f"{bench.root}/sys/bus/pci/devices/{GPU}/driver_override", override)
    before = kernel.snapshot()
    bench.plug(1, GPU)
    bench.unplug(1)
    assert kernel.snapshot() == before
    assert kernel.state(GPU).driver_override == override


@pytest.mark.parametrize("override", ["a/b", "a" * 65, "-x", "ünicode"])
def test_an_override_that_could_not_be_restored_is_refused_first(bench, override):
    kernel = bench.kernel
    provider = bench.provider(GPU)
    kernel.write(f"{bench.root}/sys/bus/pci/devices/{GPU}/driver_override", override)
    before, writes = kernel.snapshot(), kernel.writes()
    with raises(exception.StepReason.REFUSED) as caught:
        bench.plug(1, GPU)
    assert override in str(caught.value)
    assert caught.value.hint
    assert provider.device.handles
    assert (kernel.snapshot(), kernel.writes()) == (before, writes)
    assert bench.manager.store.leases() == ()
