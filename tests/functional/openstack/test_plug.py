# SPDX-License-Identifier: Apache-2.0

"""Guests' regions are programmed from Glance, from plug to unplug.

The images come from Glance itself; the cards are those of a simulated kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.testing import (
    HostSpec,
    TestHost,
    hosts,
    image_directory,
    instance,
    request,
    uuid_of,
)
from os_acc.testing.dfl import payload
from tests.expected_errors import has
from tests.functional.openstack.cloud import Cloud
from tests.functional.openstack.cloud_host import cloud_host
from tests.unit.fpga import INTERFACE, POWER_ON, held

CARDS = [f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x20)]


@pytest.fixture
def bench(cloud: Cloud, tmp_path: Path) -> Iterator[TestHost]:
    """Yield a host with sixteen cards of one region each."""
    cards = HostSpec(tuple(hosts.dfl(card[:7]) for card in CARDS))
    with cloud_host(tmp_path, cards, cloud) as bench:
        yield bench


@pytest.fixture
def upload(cloud: Cloud) -> Callable[[str], str]:
    """Return a function that uploads a bitstream of a function and returns its id."""

    def upload(function: str) -> str:
        data = image_directory.gbs(INTERFACE, function, payload(function))
        attributes = {"tags": ["FPGA"], "accel:function_id": function}
        return cloud.upload(data, name=f"image {function}", **attributes)

    return upload


def test_sixteen_plugs_at_once_wait_for_one_download(
    cloud: Cloud, bench: TestHost, upload: Callable[[str], str], function: str
) -> None:
    image_id = upload(function)
    asked = {number: request(bench.provider(card)) for number, card in enumerate(CARDS)}

    def plug(number: int) -> str:
        selected, specs = asked[number]
        requested = {"accel1:function_id": function}
        (entry,) = bench.manager.plug(instance(number), selected, specs | requested)
        return str(entry["pci_id"])

    with futures.ThreadPoolExecutor(len(CARDS)) as pool:
        assert list(pool.map(plug, asked)) == CARDS
    assert cloud.downloads(image_id) == ["- 200"]
    assert {held(bench, card) for card in CARDS} == {function}
    assert bench.programmings() == ["done"] * len(CARDS)


def test_what_was_altered_behind_glance_s_back_is_never_programmed(
    cloud: Cloud, bench: TestHost, upload: Callable[[str], str], function: str
) -> None:
    image_id = upload(function)
    file = cloud.file(image_id)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(
        exception.ImageUnusable,
        check=has(reason=exception.ImageReason.INVALID),
        match=image_id,
    ):
        bench.plug(1, CARDS[0], bitstream_id=image_id)
    assert bench.programmings() == []
    assert held(bench, CARDS[0]) == POWER_ON
    assert bench.manager.store.leases() == ()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("image_id", "accel:function_id"),
        ("image_ref", "function_id"),
        ("image_uuid", "function_uuid"),
    ],
)
def test_the_image_of_the_guest_says_in_glance_what_it_needs(
    cloud: Cloud,
    bench: TestHost,
    upload: Callable[[str], str],
    function: str,
    key: str,
    name: str,
) -> None:
    upload(function)
    booted = cloud.upload(b"a disk", **{name: function})
    selected, specs = request(bench.provider(CARDS[0]))
    attributes = instance(1) | {key: booted}
    assert len(bench.manager.plug(attributes, selected, specs)) == 1
    assert held(bench, CARDS[0]) == function


def test_a_guest_comes_back_after_a_power_cut_while_glance_is_down(
    cloud: Cloud, bench: TestHost, upload: Callable[[str], str], function: str
) -> None:
    upload(function)
    bench.plug(1, CARDS[0], function_id=function)
    bench.kernel.reboot()
    bench.restart(plug_timeout=60.0)
    cloud.glance.kill()
    try:
        (entry,) = bench.manager.plug(instance(1), None, None)
    finally:
        cloud.glance.start()
    assert entry["pci_id"] == CARDS[0]
    assert held(bench, CARDS[0]) == function
    assert bench.plugged(1) == [CARDS[0]]
    assert bench.manager.attached({"uuid": uuid_of(1)})
