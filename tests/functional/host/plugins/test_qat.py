# SPDX-License-Identifier: Apache-2.0

"""QuickAssist: the services of the VFs, and the state of their PF."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from os_acc.testing import (
    HostSpec,
    hosts,
)
from os_acc.testing.qat import attributes

PF = "0000:d8:00.0"
CARD = hosts.qat_gen4("0000:d8", 1)
ALL = f'{{"address": "{PF}", "num_vfs": 16}}'


def with_qat(**values: object) -> HostSpec:
    return HostSpec(
        (dataclasses.replace(CARD, driver_attributes=attributes(**values)),)
    )


@pytest.mark.parametrize(
    ("services", "traits"),
    [
        ("sym;asym", {"CUSTOM_QAT_SYM", "CUSTOM_QAT_ASYM"}),
        ("dc", {"CUSTOM_QAT_DC"}),
        ("dcc", {"CUSTOM_QAT_DCC"}),
        ("dc;of_a_later_kernel", {"CUSTOM_QAT_DC"}),
    ],
)
def test_vfs_have_traits_of_the_services_of_their_pf(make_bench, services, traits):
    bench = make_bench(with_qat(services=services), device_spec=[ALL])
    device = bench.provider(PF).device
    assert device.plugin == "qat"
    assert len(device.handles) == 16
    assert {each for each in device.traits if "QAT" in each} == traits


def test_a_whole_pf_has_no_services_of_the_hosts_driver(make_bench):
    bench = make_bench(HostSpec((CARD,)))
    assert bench.provider(PF).device.traits == {
        "CUSTOM_PCI_8086_4940",
        "CUSTOM_NUMA_CELL_1",
    }


def test_a_pf_that_goes_down_reserves_its_vfs_until_it_is_up(make_bench):
    bench = make_bench(HostSpec((CARD,)), device_spec=[ALL])
    (before,) = bench.manager.providers()
    place = os.path.join(bench.root, "sys/bus/pci/devices", PF, "qat/state")
    bench.kernel.write(place, "down")
    (provider,) = bench.manager.providers()
    assert {each.fault for each in provider.device.handles} == {
        f"its PF {PF} is down (qat/state)"
    }
    assert provider.uuid == before.uuid
    assert provider.device.traits == before.device.traits
    bench.kernel.write(place, "up")
    assert bench.manager.providers() == (before,)


def test_a_pf_that_cannot_be_read_reserves_its_vfs(make_bench):
    bench = make_bench(HostSpec((CARD,)), device_spec=[ALL])
    bench.manager.providers()
    place = Path(bench.root, "sys/bus/pci/devices", PF, "qat/state")
    place.unlink()
    # O_NOFOLLOW: reading a link is refused.
    place.symlink_to("cfg_services")
    (provider,) = bench.manager.providers()
    assert all("out of order" in each.fault for each in provider.device.handles)


def test_a_card_without_services_in_sysfs_is_offered_without_their_traits(make_bench):
    spec = f'{{"address": "{hosts.qat("0000:3d").address}", "num_vfs": 16}}'
    host = HostSpec((hosts.qat("0000:3d", 0),), disable_denylist=True)
    bench = make_bench(host, device_spec=[spec])
    (provider,) = bench.manager.providers()
    assert provider.device.traits == {"CUSTOM_PCI_8086_37C9", "CUSTOM_NUMA_CELL_0"}
    assert [each.fault for each in provider.device.handles] == [""] * 16
