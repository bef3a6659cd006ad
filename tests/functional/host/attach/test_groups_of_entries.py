# SPDX-License-Identifier: Apache-2.0

"""An entry names every function of the IOMMU group that its accelerator holds."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc import exception
from os_acc.attach.serialize import accelerator
from os_acc.objects.request_group import AttachTarget
from os_acc.testing import HostSpec, hosts, instance

FIRST, SECOND, PORT = "0000:17:00.0", "0000:18:00.0", "0000:16:00.0"
HELD = ["0000:17:00.1", SECOND, "0000:18:00.1"]
NAMED = [f'{{"address": "{each}"}}' for each in (FIRST, *HELD)]


def two_gpus() -> HostSpec:
    """Return a host with two GPUs, with their audio functions, in one group."""
    cards = (
        *hosts.gpu("0000:17", parent=PORT),
        *hosts.gpu("0000:18", parent=PORT, card=2),
    )
    return HostSpec(
        (
            hosts.root_port(PORT),
            *(dataclasses.replace(each, group_of=PORT) for each in cards),
        )
    )


def test_two_gpus_of_a_group_are_one_accelerator_that_names_both(make_bench):
    bench = make_bench(two_gpus(), device_spec=NAMED)
    (provider,) = bench.manager.providers()
    assert len(provider.device.handles) == 1
    (entry,) = bench.plug(1, FIRST)
    assert entry["pci_id"] == FIRST
    assert entry["held_pci_ids"] == HELD
    assert bench.drivers(FIRST, *HELD) == ["vfio-pci"] * 4

    (lease,) = bench.manager.store.leases()
    kept = accelerator(
        dataclasses.replace(
            lease,
            wanted=dataclasses.replace(lease.wanted, attach_target=AttachTarget.HOST),
        )
    )
    # A function that stays with the host names none.
    assert not {"pci_id", "held_pci_ids"} & set(kept)


def test_a_function_alone_in_its_group_holds_no_other(make_bench):
    bench = make_bench(HostSpec((hosts.fpga("0000:5e"),)))
    (entry,) = bench.plug(1)
    assert "held_pci_ids" not in entry


def test_a_guest_is_not_started_beside_a_driver_of_the_host(bench):
    """A function is put in beside a leased one, into its IOMMU group."""
    first, second = "0000:b1:00.0", "0000:b1:00.1"
    spec = bench.kernel.hot_unplug(second)
    bench.plug(1, first)
    bench.kernel.hot_plug(spec)
    with pytest.raises(exception.HostStepFailed, match=f"{second} is bound to"):
        bench.manager.plug(instance(1), None, None)
    bench.kernel.hot_unplug(second)
    assert bench.manager.plug(instance(1), None, None)
