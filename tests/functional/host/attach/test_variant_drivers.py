# SPDX-License-Identifier: Apache-2.0

"""A function has the VFIO driver of its own family while a guest has it.

``modules_6_12_95.alias`` has lines of ``modules.alias``, as depmod writes it for
Debian's Linux 6.12.95 and six more modules. Debian configures none of the variants
(``CONFIG_MLX5_VFIO_PCI`` is not set); these modules are built from Debian's source
package of that version, against its headers::

    make -C <headers> M=$PWD/drivers/vfio/pci/mlx5 CONFIG_MLX5_VFIO_PCI=m modules

and likewise in ``hisilicon``, ``nvgrace-gpu``, ``pds``, ``qat`` and ``virtio``. A line
of ``xe_vfio_pci``, which later versions of Linux have, is derived: it is what
do_pci_entry() of scripts/mod/file2alias.c makes of the table in
drivers/vfio/pci/xe/main.c.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception, service
from os_acc.objects.device import RejectReason
from os_acc.objects.lease import LeaseState, Owner
from os_acc.objects.pci import PciAddress
from os_acc.testing import (
    DriverSpec,
    FunctionSpec,
    HostSpec,
    SriovSpec,
    TestHost,
    instance,
)
from tests.functional.host.operator_commands import adopt
from tests.functional.host.plugins.test_nvidia import written

PF, VF, OTHER = "0000:3b:00.0", "0000:3b:00.1", "0000:3b:00.2"
MLX5, XE = "mlx5_vfio_pci", "xe-vfio-pci"
ALIASES = tuple(
    Path(__file__)
    .with_name("modules_6_12_95.alias")
    .read_text(encoding="ascii")
    .splitlines()
)
#: The lines of the modules that Debian ships.
DEBIAN = tuple(each for each in ALIASES if not each.endswith("_vfio_pci"))
XE_ALIAS = "alias vfio_pci:v00008086d0000E211sv*sd*bc03sc*i* xe_vfio_pci"
VARIANTS = (
    "hisi_acc_vfio_pci",
    MLX5,
    "nvgrace_gpu_vfio_pci",
    "pds_vfio_pci",
    "qat_vfio_pci",
    "virtio_vfio_pci",
    XE,
)
AUTO = f'{{"address": "{PF[:-1]}*", "vfio_driver": "auto"}}'
NIC = FunctionSpec(
    PF,
    0x15B3,
    0x101D,
    0x020000,
    "mlx5_core",
    sriov=SriovSpec(8, 0x101E, "mlx5_core", offset=1, boot_vfs=2),
)
SPEC = HostSpec(
    (NIC,),
    drivers=(DriverSpec(MLX5, manages_dma=True), DriverSpec(XE, manages_dma=True)),
    module_aliases=(*ALIASES, XE_ALIAS),
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with TestHost(tmp_path, SPEC, device_spec=[AUTO]) as host:
        yield host


def place(text: str) -> PciAddress:
    return PciAddress.parse(text)


def test_a_guest_gets_the_variant_and_the_host_its_driver_back(host):
    before = host.kernel.snapshot()
    (entry,) = host.plug(1, VF)
    assert entry["vfio_driver"] == MLX5
    assert host.drivers(VF) == [MLX5]
    assert host.kernel.state(VF).driver_override == MLX5
    host.unplug(1)
    assert host.kernel.snapshot() == before


def test_a_guest_that_holds_the_function_delays_its_return(host):
    host.plug(1, VF)
    host.kernel.hold(VF)
    with (
        host.short_timeout(),
        pytest.raises(exception.DevicesUnreleased) as caught,
    ):
        host.unplug(1)
    assert isinstance(caught.value.__cause__, exception.DeviceInUse)
    assert host.drivers(VF) == [MLX5]
    host.kernel.let_go(VF)
    host.unplug(1)
    assert host.drivers(VF) == ["mlx5_core"]


def test_the_lease_records_the_driver(host):
    host.plug(1, VF)
    # The choice of the present tags and modules does not matter for a lease.
    again = host.restart(device_spec=['{"address": "0000:3b:*.*"}'])
    (lease,) = again.store.leases()
    assert lease.driver == MLX5
    (entry,) = again.plug(instance(1), None, None)
    assert entry["vfio_driver"] == MLX5
    assert host.drivers(VF) == [MLX5]
    host.unplug(1)
    assert host.drivers(VF) == ["mlx5_core"]


def test_a_function_that_is_there_already_stays_untouched(host):
    host.bind(VF, MLX5)
    assert host.rejected(VF).reason is RejectReason.UNKNOWN_STATE
    host.restart(device_spec=[AUTO.replace("}", ', "prebound": true}')])
    count = len(host.kernel.writes())
    host.plug(1, VF)
    assert written(host, count) == []
    host.unplug(1)
    assert written(host, count) == ["reset=1"]
    assert host.drivers(VF) == [MLX5]


@pytest.mark.parametrize("driver", [XE, "vfio-pci"])
def test_the_operator_can_name_the_driver(tmp_path, driver):
    tagged = AUTO.replace("auto", driver)
    with TestHost(tmp_path, SPEC, device_spec=[tagged]) as host:
        (entry,) = host.plug(1, VF)
        assert host.drivers(VF) == [driver]
        assert entry.get("vfio_driver", "vfio-pci") == driver


def test_a_function_without_a_variant_gets_vfio_pci(tmp_path):
    plain = dataclasses.replace(SPEC, module_aliases=DEBIAN)
    with TestHost(tmp_path, plain, device_spec=[AUTO]) as host:
        (entry,) = host.plug(1, VF)
        assert "vfio_driver" not in entry
        assert host.drivers(VF) == ["vfio-pci"]


@pytest.mark.parametrize(
    ("vendor", "product", "class_code", "driver"),
    [
        (0x19E5, 0xA256, 0x100000, "hisi_acc_vfio_pci"),
        (0x10DE, 0x2342, 0x030200, "nvgrace_gpu_vfio_pci"),
        (0x8086, 0x4945, 0x0B4000, "qat_vfio_pci"),
        (0x8086, 0xE211, 0x030000, "xe-vfio-pci"),
        # The alias of xe_vfio_pci names displays alone.
        (0x8086, 0xE211, 0x040300, "vfio-pci"),
    ],
)
def test_each_device_of_a_variant_gets_it(
    tmp_path, vendor, product, class_code, driver
):
    function = FunctionSpec(PF, vendor, product, class_code, "")
    named = f'{{"address": "{PF}", "vfio_driver": "auto", "allow_no_erase": true}}'
    loaded = tuple(DriverSpec(each, manages_dma=True) for each in VARIANTS)
    spec = dataclasses.replace(SPEC, functions=(function,), drivers=loaded)
    with TestHost(tmp_path, spec, device_spec=[named]) as host:
        host.plug(1, PF)
        assert host.drivers(PF) == [driver]


def test_the_variants_here_are_those_of_the_kernel():
    lines = (each.split() for each in (*ALIASES, XE_ALIAS))
    modules = {each[2] for each in lines if each[1].startswith("vfio_pci:")}
    assert modules == {"vfio_pci", *(each.replace("-", "_") for each in VARIANTS)}


def test_a_driver_that_is_not_loaded_is_a_rejection(tmp_path):
    with TestHost(
        tmp_path, dataclasses.replace(SPEC, drivers=()), device_spec=[AUTO]
    ) as host:
        refused = host.rejected(VF)
        assert refused.reason is RejectReason.NO_VFIO_DRIVER
        assert "modprobe mlx5_vfio_pci" in refused.detail


def test_a_variant_outside_the_kernel_is_bound_as_well(tmp_path):
    alias = "alias vfio_pci:v000015B3d0000101Esv*sd*bc02sc*i* acme_vfio_pci"
    spec = dataclasses.replace(
        SPEC,
        module_aliases=(*DEBIAN, alias),
        drivers=(DriverSpec("acme_vfio_pci", manages_dma=True),),
    )
    with TestHost(tmp_path, spec, device_spec=[AUTO]) as host:
        before = host.kernel.snapshot()
        host.plug(1, VF)
        assert host.drivers(VF) == ["acme_vfio_pci"]
        host.unplug(1)
        assert host.kernel.snapshot() == before


def test_the_denylist_of_vfio_pci_does_not_apply_to_a_variant(tmp_path):
    denied = (*SPEC.denylist, (0x15B3, 0x101E))
    spec = dataclasses.replace(SPEC, denylist=denied)
    with TestHost(tmp_path, spec, device_spec=[AUTO]) as host:
        host.plug(1, VF)
        assert host.drivers(VF) == [MLX5]


def test_a_function_that_nothing_resets_needs_the_tag_on_a_variant_too(tmp_path):
    assert NIC.sriov is not None
    rigid = dataclasses.replace(NIC.sriov, reset_methods=())
    spec = dataclasses.replace(SPEC, functions=(dataclasses.replace(NIC, sriov=rigid),))
    with TestHost(tmp_path, spec, device_spec=[AUTO]) as host:
        assert host.rejected(VF).reason is RejectReason.NO_RESET
        host.restart(device_spec=[AUTO.replace("}", ', "allow_no_reset": true}')])
        host.plug(1, VF)
        assert host.drivers(VF) == [MLX5]


def test_only_a_caller_that_attaches_unmanaged_gets_the_variant(host):
    config = host.config(node_name="managed")
    manager = service.initialize(config=config, root=host.root)
    (refused, *_) = [
        each for each in manager.discover().refused if each.address == place(VF)
    ]
    assert refused.reason is RejectReason.MANAGED
    assert "unmanaged=True" in refused.detail
    manager = service.initialize(True, config=config, root=host.root, unmanaged=True)
    offered = manager.discover().providers.values()
    handles = [each for one in offered for each in one.device.handles]
    assert {each.driver for each in handles} == {MLX5}


def test_a_lease_stays_when_a_managed_caller_comes(host):
    host.plug(1, VF)
    manager = service.build(host.config(), host.root, Owner.NOVA, unmanaged=False)
    refused = {each.address for each in manager.discover().refused}
    assert (place(VF) in refused, place(OTHER) in refused) == (False, True)
    assert manager.plug(instance(1), None, None)[0]["vfio_driver"] == MLX5


def test_an_adopted_function_stays_on_its_variant(host):
    host.bind(VF, MLX5)
    lease = adopt(host, VF, "mlx5_core")
    assert (lease.driver, lease.state) == (MLX5, LeaseState.HELD)
    host.manager.plug(instance(1), None, None)
    assert host.drivers(VF) == [MLX5]
    host.unplug(1)
    assert host.drivers(VF) == ["mlx5_core"]


@pytest.mark.parametrize("value", ["nvidia", "../vfio-pci", 1])
def test_the_operator_cannot_name_anything_else(tmp_path, value):
    tagged = AUTO.replace('"auto"', f'"{value}"' if value != 1 else "1")
    with (
        TestHost(tmp_path, SPEC, device_spec=[tagged]) as host,
        pytest.raises(exception.InvalidConfiguration, match="vfio_driver"),
    ):
        host.restart()


def test_no_function_stays_on_a_driver_that_no_plugin_declares(tmp_path):
    tagged = AUTO.replace("auto", "mlx5_core")
    with TestHost(tmp_path, SPEC, device_spec=[tagged]) as host:
        refused = host.rejected(VF)
        assert refused.reason is RejectReason.NO_PLUGIN
        assert "mlx5_core" in refused.detail
