# SPDX-License-Identifier: Apache-2.0

"""A plug records the instance and its devices in the store; an unplug removes them."""

from __future__ import annotations

from os_acc.objects.lease import Lease
from os_acc.store import snapshot
from os_acc.testing import TestHost, instance, request, uuid_of

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
NAMED = {"name": "web-1", "project_id": uuid_of(7)}


def recorded(bench: TestHost) -> tuple[Lease, ...]:
    """Return the leases in the file, as another process reads them."""
    return snapshot.read(bench.state_path).leases


def test_a_plug_records_the_instance_and_its_pci_addresses(bench):
    """Specification: "update Cyborg DB with instance_info and BDF usage"."""
    asked = request(bench.provider(GPU), bench.provider(FPGA))
    bench.manager.plug(instance(1) | NAMED, *asked)
    assert [str(each.address) for each in recorded(bench)] == [GPU, FPGA]
    for lease in recorded(bench):
        assert lease.consumer == uuid_of(1)
        assert {"name": lease.guest.name, "project_id": lease.guest.project_id} == NAMED


def test_an_unplug_frees_the_pci_addresses_for_other_processes(bench):
    """Specification: "update Cyborg DB to mark those BDFs as free"."""
    bench.plug(1, GPU)
    bench.plug(2, FPGA)
    assert bench.unplug(1) == 1
    assert [str(each.address) for each in recorded(bench)] == [FPGA]
    bench.restart()
    assert bench.manager.attached(instance(1)) == {}
    bench.plug(3, GPU)
    assert bench.plugged(3) == [GPU]


def test_unplug_takes_the_uuid_and_the_name_of_the_instance(bench):
    """Specification: "dictionary containing instance UUID and instance name"."""
    for named in ({"name": "web-1"}, {}):
        bench.plug(1, GPU)
        assert bench.manager.unplug({"uuid": uuid_of(1), **named}) == 1
        assert recorded(bench) == ()
