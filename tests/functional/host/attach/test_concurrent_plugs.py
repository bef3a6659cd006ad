# SPDX-License-Identifier: Apache-2.0

"""Plugs at the same time, by threads and by two services."""

from concurrent import futures

import pytest

from os_acc import exception
from os_acc.attach import region_images
from os_acc.objects.lease import LeaseState
from os_acc.testing import instance, request
from tests.unit import fpga

GPU, NIC = "0000:17:00.0", "0000:3b:00.0"
FOUR_VFS = '{"address": "0000:3b:*.*", "num_vfs": 4}'


def together(count, action):
    with futures.ThreadPoolExecutor(count) as pool:
        running = [pool.submit(action, number) for number in range(1, count + 1)]
    return [each.exception() or each.result() for each in running]


def test_eight_threads_get_four_vfs_each_of_them_once(make_bench):
    bench = make_bench(device_spec=[FOUR_VFS])
    bench.restart()
    before = bench.kernel.snapshot()
    selected, specs = request(bench.provider(NIC))
    results = together(8, lambda n: bench.manager.plug(instance(n), selected, specs))
    got = [each for each in results if isinstance(each, list)]
    refused = [each for each in results if not isinstance(each, list)]
    assert {type(each) for each in refused} <= {
        exception.NoDeviceAvailable,
        *exception.NoDeviceAvailable.__subclasses__(),
    }
    addresses = [entry["pci_id"] for entries in got for entry in entries]
    assert sorted(addresses) == [f"0000:3b:02.{number}" for number in range(4)]
    assert bench.drivers(*addresses) == ["vfio-pci"] * 4
    assert sum(together(8, bench.unplug)) == 4
    assert bench.kernel.snapshot() == before


def test_threads_that_want_several_get_all_or_nothing(make_bench):
    bench = make_bench(device_spec=[FOUR_VFS])
    selected, specs = request(bench.provider(NIC), amount=3)
    results = together(4, lambda n: bench.manager.plug(instance(n), selected, specs))
    got = [len(each) for each in results if isinstance(each, list)]
    assert got in ([3], [])
    assert len(bench.manager.store.leases()) == sum(got)


def test_one_request_in_several_threads_is_one_plug(bench):
    selected, specs = request(bench.provider(GPU))
    results = together(4, lambda _: bench.manager.plug(instance(1), selected, specs))
    assert all(each == results[0] for each in results)
    assert len(bench.manager.store.leases()) == 1


def test_a_loser_chooses_again_among_what_is_left(make_bench, monkeypatch):
    bench = make_bench(device_spec=[FOUR_VFS])
    selected, specs = request(bench.provider(NIC))
    rival = bench.manager
    mine = bench.restart()
    add, rivals = mine.store.add, iter(range(2, 4))

    def after_a_rival(leases, seen):
        for number in rivals:
            rival.plug(instance(number), selected, specs)
            break
        return add(leases, seen)

    monkeypatch.setattr(mine.store, "add", after_a_rival)
    (entry,) = mine.plug(instance(1), selected, specs)
    taken = {str(lease.address) for lease in mine.store.leases()}
    assert len(taken) == 3
    assert entry["pci_id"] in taken
    assert all(each.state is LeaseState.HELD for each in mine.store.leases())


@pytest.mark.parametrize("function", [None, fpga.GZIP])
def test_the_loser_of_an_fpga_card_learns_that_none_is_free(
    fpgas, monkeypatch, function
):
    """The card, which is the guest's by then, shows no region."""
    fpga.upload(fpgas)
    provider = fpgas.provider(fpga.CARD)
    real, rivals = region_images.requirements, iter([2])

    def after_a_rival(*arguments):
        for number in rivals:
            fpgas.plug(number, fpga.CARD)
        return real(*arguments)

    monkeypatch.setattr(region_images, "requirements", after_a_rival)
    with pytest.raises(exception.NoDeviceAvailable, match=provider.name):
        fpgas.plug(1, fpga.CARD, **({"function_id": function} if function else {}))
    assert fpgas.plugged(2) == [fpga.CARD]
