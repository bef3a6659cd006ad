# SPDX-License-Identifier: Apache-2.0

"""VFIO is asked once whether it can migrate a device, and the answer is published."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from os_acc.objects.migration import TRAIT, MigrationSupport
from os_acc.testing import TestHost
from os_acc.testing.kernel import FakeKernel
from os_acc.testing.mdevs import mtty
from tests.functional.host.attach.test_variant_drivers import (
    AUTO,
    MLX5,
    NIC,
    PF,
    SPEC,
    VF,
)

ANSWER = (7, 4096)
MTTY = '{"mdev_parent": "mtty", "mdev_types": "mtty-1"}'
SLOT = "mtty/mtty-1/0"
RELEASE = "proc/sys/kernel/osrelease"


@pytest.fixture
def host_of(make_bench: Callable[..., TestHost]) -> Callable[..., TestHost]:
    """Return a function that builds a host whose drivers give an answer."""

    def build(answer: tuple[int, int] = ANSWER, *specs: str) -> TestHost:
        assert NIC.sriov
        sriov = dataclasses.replace(NIC.sriov, vf_migration=answer)
        nic = dataclasses.replace(NIC, sriov=sriov)
        parent = mtty(migration=answer)
        spec = dataclasses.replace(SPEC, functions=(nic,), mdev_parents=(parent,))
        return make_bench(spec, device_spec=[*(specs or (AUTO, MTTY))])

    return build


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that returns the names of the devices VFIO was asked about."""
    # The privileged step is in a child process.
    log, answer = tmp_path / "asked", FakeKernel.migration
    log.touch()

    def migration(kernel: FakeKernel, group: int, name: str) -> tuple[int, int]:
        with log.open("a") as file:
            file.write(f"{name}\n")
        return answer(kernel, group, name)

    monkeypatch.setattr(FakeKernel, "migration", migration)
    return lambda: log.read_text().split()


def support(host: TestHost, address: str) -> MigrationSupport | None:
    inventory = host.manager.discover()
    return inventory.migrations[host.provider(address).uuid]


def is_published(host: TestHost, address: str) -> bool:
    return TRAIT in host.provider(address).device.traits


def use(host: TestHost, address: str) -> None:
    host.plug(1, address)
    host.unplug(1)


@pytest.mark.parametrize("address", [VF, SLOT])
def test_the_answer_comes_with_a_plug_and_is_published(host_of, asked, address):
    host = host_of()
    assert support(host, address) is None
    assert not is_published(host, address)
    host.plug(1, address)
    assert support(host, address) == MigrationSupport(*ANSWER)
    assert is_published(host, address)
    host.unplug(1)
    host.restart()
    use(host, address)
    assert is_published(host, address)
    assert len(asked()) == 1


def test_another_function_of_the_model_needs_no_question(host_of, asked):
    host = host_of()
    use(host, VF)
    assert [len(host.plug(number, VF)) for number in (2, 3)] == [1, 1]
    assert len(asked()) == 1


@pytest.mark.parametrize("changed", ["kernel", "module"])
@pytest.mark.parametrize("address", [VF, SLOT])
def test_another_version_of_the_driver_has_no_answer(host_of, asked, address, changed):
    # The kernel's aliases would be those of another release.
    host = host_of(ANSWER, AUTO.replace("auto", MLX5), MTTY)
    place = Path(host.root, "sys/module/mlx5_vfio_pci")
    os.makedirs(place)
    (place / "version").write_text("1.0\n")
    module = Path(host.root, "sys/bus/pci/drivers/mlx5_vfio_pci/module")
    module.symlink_to(place)
    use(host, address)
    if changed == "kernel":
        Path(host.root, RELEASE).write_text("7.0.0\n")
    else:
        (place / "version").write_text("1.1\n")
    is_other = changed == "kernel" or address == VF
    assert is_published(host, address) is not is_other
    use(host, address)
    assert len(asked()) == 1 + is_other


def test_another_version_of_a_virtual_parents_module_has_no_answer(host_of):
    host = host_of()
    version = Path(host.root, "sys/module/mtty/srcversion")
    version.parent.mkdir()
    version.write_text("A\n")
    use(host, SLOT)
    assert is_published(host, SLOT)
    version.write_text("B\n")
    assert not is_published(host, SLOT)


def test_a_driver_without_migration_is_not_asked_again(host_of, asked):
    host = host_of((0, 0))
    use(host, VF)
    use(host, VF)
    assert support(host, VF) == MigrationSupport()
    assert not is_published(host, VF)
    assert asked() == [VF]


def test_vfio_pci_is_never_asked(host_of, asked):
    host = host_of(ANSWER, f'{{"address": "{PF[:-1]}*"}}')
    use(host, VF)
    assert asked() == []
    assert support(host, VF) == MigrationSupport()


@pytest.mark.parametrize("spec", [AUTO, MTTY])
def test_a_tag_switches_it_off(host_of, spec):
    host = host_of(ANSWER, spec.replace("}", ', "live_migratable": "no"}'))
    address = VF if spec == AUTO else SLOT
    use(host, address)
    assert support(host, address) == MigrationSupport(*ANSWER)
    assert not is_published(host, address)


def test_a_plug_does_not_depend_on_the_answer(host_of, monkeypatch):
    host = host_of()
    failure = OSError(errno.EIO, os.strerror(errno.EIO))
    with monkeypatch.context() as patch:
        patch.setattr(FakeKernel, "migration", mock.Mock(side_effect=failure))
        use(host, VF)
    assert support(host, VF) is None
    use(host, VF)
    assert is_published(host, VF)


def test_a_damaged_record_is_asked_for_again(host_of):
    host = host_of()
    use(host, VF)
    (record,) = Path(host.state_path, "migrations").iterdir()
    record.write_text("[")
    assert support(host, VF) is None
    use(host, VF)
    assert is_published(host, VF)
