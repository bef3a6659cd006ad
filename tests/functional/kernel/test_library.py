# SPDX-License-Identifier: Apache-2.0

"""The library works on the real kernel through its public interface alone."""

from __future__ import annotations

import os
import pwd
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_privsep import priv_context

pytest.register_assert_rewrite("tests.behaviour")

import os_acc  # noqa: E402
from os_acc import exception, service  # noqa: E402
from os_acc.objects.api import AcceleratorEntry  # noqa: E402
from tests import run_figures  # noqa: E402
from tests.behaviour.host import VFIO, Binding  # noqa: E402
from tests.behaviour.ordinary_user import Job, OrdinaryProcess  # noqa: E402
from tests.behaviour.processes import helpers  # noqa: E402
from tests.behaviour.real_host import SUDO, RealHost  # noqa: E402
from tests.behaviour.root_side import RootSide  # noqa: E402
from tests.behaviour.scenarios.common import UNPLUG_TIMEOUT, vfs  # noqa: E402
from tests.behaviour.time_limit import in_time  # noqa: E402

from . import lane, pace, privileges  # noqa: E402
from .accounts import OrdinaryUser  # noqa: E402
from .machine import Machine  # noqa: E402

pytestmark = pytest.mark.family("NVMe drive or VF that keeps its data")

BINARIES = Path(sys.executable).parent
NOVA = Path("/etc/nova")
NOVA_CONF = NOVA / "nova.conf"
ROOTWRAP_CONF = NOVA / "rootwrap.conf"
CLASS = "CUSTOM_ACCELERATOR_SSD"
UNBIND = "/sys/bus/pci/drivers/vfio-pci/unbind"


@pytest.fixture
def run_as(
    the_machine: Machine, vm_user: OrdinaryUser, request: pytest.FixtureRequest
) -> Callable[..., None]:
    """Return ``run_as(user, job, command)``: it runs a job in a process of the user."""

    def run(user: OrdinaryUser, job: Job, command: str = "") -> None:
        process = OrdinaryProcess(user, RootSide(the_machine, vm_user), [job], command)
        try:
            for name, number in process.run(job).items():
                run_figures.note(request.node, name, number)
        finally:
            process.close()

    return run


@pytest.fixture
def nova_conf(the_machine: Machine) -> Callable[[OrdinaryUser], None]:
    """Return ``nova_conf(user)``: it writes nova-compute's configuration for a user."""

    def write(user: OrdinaryUser) -> None:
        NOVA.mkdir(exist_ok=True)
        NOVA_CONF.write_text(
            "[os_acc]\n"
            f"state_path = {user.home}/os_acc\n"
            # Three helpers start one after another in software emulation.
            "initialize_timeout = 300\n"
            "helper_start_timeout = 240\n"
            f'device_spec = {{"address": "{the_machine.pf_node1}", "num_vfs": 4, '
            '"allow_no_erase": true}\n'
        )

    return write


def capabilities(pid: int | str) -> int:
    """Return the effective capabilities of a process (proc(5), CapEff)."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines)
    return int(fields["CapEff"], 16)


def plug(amount: int) -> tuple[dict[str, str], list[AcceleratorEntry]]:
    """Plug VFs for a new instance."""
    guest = {"uuid": str(uuid.uuid4()), "name": "guest"}
    (provider,) = service.get().providers()
    extra_specs = {f"resources1:{CLASS}": str(amount)}
    return guest, os_acc.plug(guest, {"uuid": provider.uuid}, extra_specs)


def plug_one() -> tuple[dict[str, str], str]:
    """Plug a VF for a new instance; return its address, too."""
    guest, (entry,) = plug(1)
    return guest, entry["pci_id"]


def vfs_go_into_a_guest_and_come_back(host: RealHost) -> dict[str, int]:
    assert os.getuid() != 0
    assert capabilities("self") == 0
    assert host.vfs() == ()
    host.start(vfs(host), unplug_timeout=UNPLUG_TIMEOUT)
    assert len(host.vfs()) == 4
    (provider,) = service.get().providers()
    assert provider.device.resource_class == CLASS
    assert {str(each.address) for each in provider.device.handles} == set(host.vfs())
    (helper,) = helpers(host.options, "base")
    assert os.stat(f"/proc/{helper}").st_uid == 0
    assert capabilities(helper) == 0
    before = host.snapshot()

    guest, entries = plug(2)
    inside = [entry["pci_id"] for entry in entries]
    assert [host.binding(vf) for vf in inside] == [VFIO, VFIO]
    # The guest gets the devices that its definition by Nova names.
    assert host.root_side.hold_as_defined(entries) == tuple(inside)
    assert host.root_side.attached() == set(inside)

    began = time.monotonic()
    with pytest.raises(exception.DevicesUnreleased) as left:
        # A hang fails this test alone and does not block the following ones.
        in_time(lambda: os_acc.unplug(guest))
    named = time.monotonic() - began
    assert left.value.released == ()
    assert {address for address, _ in left.value.unreleased} == set(inside)
    for _address, reason in left.value.unreleased:
        assert isinstance(reason, exception.DeviceInUse)
        ((pid, command),) = reason.holders
        assert command == "qemu-system-x86"
        assert os.stat(f"/proc/{pid}").st_uid == pwd.getpwnam("vm").pw_uid
    assert host.root_side.attached() == set(inside)

    other, outside = plug_one()
    assert outside not in inside
    assert host.binding(outside) == VFIO
    assert os_acc.unplug(other) == 1
    assert host.binding(outside) == Binding(None)

    host.let_go()
    assert os_acc.unplug(guest) == 2
    assert host.snapshot() == before
    slowdown = pace.slowdown(lane.RESULTS)
    return {
        "ms until an unplug names the holder of two functions": round(1e3 * named),
        "slowdown of Python by emulation": round(slowdown),
        "ms for the name, without the slowdown": round(1e3 * named / slowdown),
    }


def one_vf_is_plugged_and_unplugged(host: RealHost) -> None:
    """Use only the options of nova.conf."""
    cfg.CONF(["--config-file", str(NOVA_CONF)], project="nova")
    os_acc.initialize()
    before = host.snapshot()
    guest, vf = plug_one()
    assert host.binding(vf) == VFIO
    privileges.are_as_documented(host)
    assert os_acc.unplug(guest) == 1
    assert host.snapshot() == before


def one_vf_is_plugged_through_rootwrap(host: RealHost) -> None:
    # The command of nova.utils.get_root_helper(), except for the program's path.
    rootwrap = ["sudo", "-n", str(BINARIES / "oslo-rootwrap"), str(ROOTWRAP_CONF)]
    priv_context.init(root_helper=rootwrap)
    one_vf_is_plugged_and_unplugged(host)


def one_vf_is_plugged_by_root(host: RealHost) -> None:
    assert os.getuid() == 0
    # Root needs no sudo: this PATH has none.
    os.environ["PATH"] = str(BINARIES)
    one_vf_is_plugged_and_unplugged(host)


def a_stuck_worker_has_no_more_than_its_helper(host: RealHost) -> None:
    host.start(
        vfs(host),
        write_timeout=host.short_timeout,
    )
    guest, held = plug_one()
    helper = privileges.the_helper(host, "base")
    group = os.readlink(f"/sys/bus/pci/devices/{held}/iommu_group")
    host.root_side.hand_over(f"/dev/vfio/{os.path.basename(group)}")
    # A guest starts after the last usage check, so that the unbind blocks.
    with (
        pytest.raises(exception.DevicesUnreleased),
        host.once_found_free(lambda: host.root_side.hold(held)),
    ):
        in_time(lambda: os_acc.unplug(guest))
    (worker,) = helpers(host.options, "base") - {helper}
    assert privileges.facts(host, worker) == {
        **privileges.facts(host, helper),
        "Open files": f"/run/os_acc/{held}, {UNBIND}, pipe",
    }
    host.let_go()
    assert os_acc.unplug(guest) == 1


@pytest.mark.share(1)
def test_vfs_go_into_a_guest_and_come_back(
    run_as: Callable[..., None], ordinary_user: OrdinaryUser
) -> None:
    run_as(ordinary_user, vfs_go_into_a_guest_and_come_back, SUDO)


def test_a_stuck_worker_has_no_more_than_its_helper(
    run_as: Callable[..., None], ordinary_user: OrdinaryUser
) -> None:
    run_as(ordinary_user, a_stuck_worker_has_no_more_than_its_helper, SUDO)


def test_the_sudoers_line_that_is_shipped_is_enough(
    run_as: Callable[..., None],
    nova_conf: Callable[[OrdinaryUser], None],
    vm_user: OrdinaryUser,
) -> None:
    nova_conf(vm_user)
    shipped = (lane.CHECKOUT / "etc/os-acc/sudoers.d/os-acc").read_text()
    adapted = shipped.replace("nova ALL", f"{vm_user.name} ALL")
    adapted = adapted.replace("/usr/bin/privsep", f"{BINARIES}/privsep")
    rule = Path("/etc/sudoers.d/os-acc")
    rule.write_text(f"Defaults:{vm_user.name} secure_path={BINARIES}\n{adapted}")
    rule.chmod(0o440)
    try:
        run_as(vm_user, one_vf_is_plugged_and_unplugged)
    finally:
        rule.unlink()


def test_nova_rootwrap_with_the_filters_that_are_shipped_is_enough(
    run_as: Callable[..., None],
    nova_conf: Callable[[OrdinaryUser], None],
    ordinary_user: OrdinaryUser,
) -> None:
    nova_conf(ordinary_user)
    filters = lane.CHECKOUT / "etc/os-acc/rootwrap.d"
    ROOTWRAP_CONF.write_text(
        f"[DEFAULT]\nfilters_path = {filters}\nexec_dirs = {BINARIES}\n"
    )
    run_as(ordinary_user, one_vf_is_plugged_through_rootwrap)


def test_root_needs_neither(
    run_as: Callable[..., None], nova_conf: Callable[[OrdinaryUser], None]
) -> None:
    root = OrdinaryUser.named("root")
    root = OrdinaryUser(root.name, root.uid, root.gid, Path("/var/lib"))
    nova_conf(root)
    run_as(root, one_vf_is_plugged_by_root)
