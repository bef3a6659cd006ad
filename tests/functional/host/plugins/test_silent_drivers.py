# SPDX-License-Identifier: Apache-2.0

"""A card whose driver does not answer, beside cards that do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from os_acc.host import answers
from os_acc.objects.device import RejectReason
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.mdevs import mtty
from os_acc.testing.nvidia import CURRENT
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from tests.silent_files import impatient as impatient
from tests.silent_files import silent
from tests.unit.plugins.vgpus import BUS, PF, VFS, tagged, type_of

OTHER = "0000:42"
GPU = "0000:17:00.0"


pytestmark = pytest.mark.usefixtures("impatient")


@contextlib.contextmanager
def hanging(host: TestHost, path: str) -> Iterator[None]:
    with silent(Path(host.root, path).resolve()):
        yield
    assert not futures.wait(list(answers._reads.values()), 60).not_done


def test_its_vgpus_are_not_offered_and_those_of_another_card_are(tmp_path):
    cards = (hosts.vgpu_card(BUS), hosts.vgpu_card(OTHER))
    others = [each.replace(BUS, OTHER) for each in VFS]
    with TestHost(tmp_path, HostSpec(cards), device_spec=tagged(*VFS, *others)) as host:
        with hanging(host, f"sys/bus/pci/devices/{VFS[0]}/{CURRENT}"):
            host.plug(1, others[0])
            assert type_of(host, others[0])
            refused = host.manager.discover().refused
            assert {
                str(each.address): each.reason for each in refused
            } == dict.fromkeys(VFS, RejectReason.UNREADABLE)
            assert {each.detail for each in refused} == {
                f"the driver of {PF} does not return from a read"
            }
        host.plug(2, VFS[1])


def test_its_types_are_not_offered_and_those_of_another_parent_are(tmp_path):
    display, audio = hosts.gpu("0000:17")
    kind = MdevTypeSpec("nvidia-558", title="NVIDIA A40-8Q")
    display = dataclasses.replace(display, mdevs=MdevParentSpec(GPU, 2, (kind,)))
    spec = HostSpec((display, audio), mdev_parents=(mtty(),))
    named = [
        '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}',
        f'{{"address": "{GPU}", "mdev_types": "nvidia-558"}}',
    ]
    types = f"sys/class/mdev_bus/{GPU}/mdev_supported_types/nvidia-558"
    with TestHost(tmp_path, spec, device_spec=named) as host:
        with hanging(host, f"{types}/available_instances"):
            inventory = host.manager.discover()
            offered = [str(e.device.address) for e in inventory.providers.values()]
            assert offered == ["mtty/mtty-1"]
            (refused,) = inventory.refused
            assert refused.reason is RejectReason.UNREADABLE
        assert len(host.manager.discover().providers) == 2
