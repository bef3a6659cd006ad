# SPDX-License-Identifier: Apache-2.0

"""A host without vfio-pci serves the accelerators that need another driver, or none."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable

import pytest

from os_acc import exception
from os_acc.testing import HostSpec, TestHost, hosts, instance
from os_acc.testing.mdevs import mtty
from tests.expected_errors import raises
from tests.functional.host.attach import test_variant_drivers as variants
from tests.functional.host.attach.numa_host import again, plug, set_nodes
from tests.unit.plugins import staying_vendor, vgpus

MTTY = ('{"mdev_parent": "mtty", "mdev_types": "mtty-1"}',)
GPU = "0000:17:00.0"
MakeHost = Callable[..., TestHost]
MISSING = exception.StepReason.VFIO


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of accelerator that does not go to vfio-pci."""

    spec: HostSpec
    named: tuple[str, ...]
    unit: str


KINDS = {
    "mediated": Kind(HostSpec(mdev_parents=(mtty(),)), MTTY, "mtty/mtty-1/0"),
    "vgpu": Kind(
        HostSpec((hosts.vgpu_card(vgpus.BUS),)),
        tuple(vgpus.tagged(*vgpus.VFS)),
        vgpus.VFS[0],
    ),
    "staying": Kind(staying_vendor.SPEC, staying_vendor.NAMED, staying_vendor.VFS[0]),
    "variant": Kind(variants.SPEC, (variants.AUTO,), variants.VF),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, install_plugins: Callable[..., None]) -> Kind:
    """Return each kind, with its plugin installed."""
    if request.param == "staying":
        install_plugins(acme=f"{staying_vendor.HERE}:AcmeGpu")
    return KINDS[request.param]


@pytest.fixture
def make_host(make_bench: MakeHost) -> MakeHost:
    """Return a function that builds a host without vfio-pci."""

    def make(spec: HostSpec, *named: str) -> TestHost:
        without = dataclasses.replace(spec, vfio=False)
        return make_bench(without, device_spec=list(named))

    return make


def test_a_guest_gets_it_and_keeps_it_after_a_reboot(make_host, kind):
    host = make_host(kind.spec, *kind.named)
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, kind.unit)
    plugged = host.kernel.snapshot()
    host.kernel.reboot()

    assert host.restart().plug(instance(1), None, None) == [entry]
    assert host.kernel.snapshot() == plugged

    assert host.unplug(1) == 1
    assert host.manager.store.leases() == ()
    assert host.kernel.snapshot() == before


def test_a_function_for_vfio_pci_is_not_plugged(make_host):
    host = make_host(HostSpec(hosts.gpu("0000:17")), f'{{"address": "{GPU}"}}')
    with raises(MISSING, match="no vfio-pci driver"):
        host.plug(1, GPU)
    assert host.manager.store.leases() == ()
    assert host.kernel.writes() == []


def test_a_function_for_vfio_pci_beside_another_kind_fails_the_plug(make_host):
    spec = HostSpec(hosts.gpu("0000:17"), mdev_parents=(mtty(),))
    host = make_host(spec, *MTTY, f'{{"address": "{GPU}"}}')
    with raises(MISSING):
        host.plug(1, "mtty/mtty-1/0", GPU)
    assert host.manager.store.leases() == ()
    host.plug(1, "mtty/mtty-1/0")


def test_a_guest_that_holds_a_function_for_vfio_pci_fails_after_a_reboot(tmp_path):
    spec = HostSpec(hosts.gpu("0000:17"))
    with TestHost(tmp_path, spec, device_spec=[f'{{"address": "{GPU}"}}']) as host:
        host.plug(1, GPU)
        host.kernel.reboot()
        shutil.rmtree(host.kernel.path("sys/bus/pci/drivers/vfio-pci"))
        manager = host.restart()
        with raises(MISSING):
            manager.plug(instance(1), None, None)
        assert len(manager.store.leases()) == 1


def test_a_missing_variant_is_named_after_a_reboot(tmp_path):
    with TestHost(tmp_path, variants.SPEC, device_spec=[variants.AUTO]) as host:
        host.plug(1, variants.VF)
        host.kernel.reboot()
        shutil.rmtree(host.kernel.path(f"sys/bus/pci/drivers/{variants.MLX5}"))
        manager, count = host.restart(), len(host.kernel.writes())
        with raises(MISSING, match=f"modprobe {variants.MLX5}'"):
            manager.plug(instance(1), None, None)
        assert len(host.kernel.writes()) == count
        assert len(manager.store.leases()) == 1


def test_a_vgpu_is_replaced_by_one_that_the_cells_of_the_guest_allow(make_host):
    near, far = vgpus.VFS[:2]
    host = make_host(KINDS["vgpu"].spec, *vgpus.tagged(near, far))
    set_nodes(host, {near: 0, far: 1})
    (entry,) = plug(host, near, **{"accel1:numa_policy": "required"})
    assert entry["pci_id"] == near

    (entry,) = again(host, [1])

    assert entry["pci_id"] == far
    assert [vgpus.type_of(host, each) for each in (near, far)] == [0, vgpus.HALF]
