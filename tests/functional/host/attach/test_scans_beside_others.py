# SPDX-License-Identifier: Apache-2.0

"""Scans of the host while another service plugs and unplugs there."""

from __future__ import annotations

import dataclasses

from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.objects.pci import PciAddress
from os_acc.testing import instance, request

GPU, FPGA, AUDIO = "0000:17:00.0", "0000:5e:00.0", "0000:17:00.1"


def test_what_is_leased_while_the_host_is_read_stays_on_offer(bench, monkeypatch):
    offered = bench.manager.providers()
    scan, beside = pci.scan, bench.restart()
    selection = request(bench.provider(FPGA))

    def and_plug(root: str) -> Host:
        monkeypatch.setattr(pci, "scan", scan)
        beside.plug(instance(1), *selection)
        return scan(root)

    monkeypatch.setattr(pci, "scan", and_plug)
    assert bench.manager.providers() == offered
    assert bench.plugged(1) == [FPGA]


def test_what_is_half_way_to_a_guest_while_the_host_is_read_stays_on_offer(
    make_bench, monkeypatch
):
    bench = make_bench(
        device_spec=[f'{{"address": "{AUDIO}", "allow_no_reset": true}}']
    )
    offered = bench.manager.providers()
    scan, beside = pci.scan, bench.restart()
    selection = request(bench.provider(AUDIO))

    def amid_a_plug(root: str) -> Host:
        monkeypatch.setattr(pci, "scan", scan)
        before = scan(root)
        beside.plug(instance(1), *selection)
        gpu = PciAddress.parse(GPU)
        half = {**before.functions, gpu: scan(root).functions[gpu]}
        return dataclasses.replace(before, functions=half)

    monkeypatch.setattr(pci, "scan", amid_a_plug)
    assert bench.manager.providers() == offered
    assert bench.plugged(1) == [AUDIO]


def test_what_is_leased_and_given_back_while_the_host_is_read_stays_on_offer(
    bench, monkeypatch
):
    """The scan sees it on vfio-pci, and no lease is found before or after."""
    offered = bench.manager.providers()
    scan, beside = pci.scan, bench.restart()
    selection = request(bench.provider(FPGA))

    def amid_a_lease(root: str) -> Host:
        monkeypatch.setattr(pci, "scan", scan)
        beside.plug(instance(1), *selection)
        found = scan(root)
        beside.unplug(instance(1))
        return found

    monkeypatch.setattr(pci, "scan", amid_a_lease)
    assert bench.manager.providers() == offered
    assert bench.plugged(1) == []


def test_leases_that_come_and_go_without_end_do_not_keep_a_reader(bench, monkeypatch):
    """One device is unknown in every scan; the others stay on offer."""
    mine = bench.manager
    offered = mine.providers()
    scan, beside = pci.scan, bench.restart()
    busy = bench.provider(FPGA)
    selection = request(busy)
    others = [each for each in offered if each != busy]
    scans = []

    def amid_a_lease(root: str) -> Host:
        with monkeypatch.context() as alone:
            alone.setattr(pci, "scan", scan)
            beside.plug(instance(1), *selection)
            scans.append(scan(root))
            beside.unplug(instance(1))
        return scans[-1]

    monkeypatch.setattr(pci, "scan", amid_a_lease)
    assert list(mine.providers()) == others
    assert len(scans) == 4
    # A device that was unknown before may be so for good.
    assert list(mine.providers()) == others
    assert len(scans) == 5
