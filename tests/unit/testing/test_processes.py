# SPDX-License-Identifier: Apache-2.0

"""Several processes share one tree, and some are killed during a write."""

import os
import signal

import pytest

from os_acc.testing import FakeKernel, hosts
from os_acc.testing.tree import Tree
from tests.unit.testing.conftest import Attributes, end_of, in_child, start

NIC, GPU = "0000:3b:00.0", "0000:17:00.0"


def die_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Kill this process after this number of changes to the tree."""
    apply = Tree._apply
    left = iter(range(steps))

    def step(self, change):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        apply(self, change)

    monkeypatch.setattr(Tree, "_apply", step)


def everything(root: str) -> list[tuple[str, str]]:
    """Return all files, links and directories that the kernel shows."""
    found = []
    for top in ("sys", "dev"):
        for place, directories, files in os.walk(os.path.join(root, top)):
            for name in (*directories, *files):
                path = os.path.join(place, name)
                inside = os.path.relpath(path, root)
                if os.path.islink(path):
                    found.append((inside, os.readlink(path)))
                elif os.path.isdir(path):
                    found.append((inside, ""))
                else:
                    with open(path) as file:
                        found.append((inside, file.read()))
    return sorted(found)


def test_of_many_that_bind_one_function_one_succeeds(kernel, sysfs):
    sysfs.unbind(GPU)
    bind = [start(lambda: sysfs.driver("nouveau", "bind", GPU)) for _ in range(4)]
    assert sorted(end_of(pid) for pid in bind) == [0, 1, 1, 1]


def test_no_write_of_many_processes_is_lost(kernel, sysfs):
    addresses = [state.address for state in kernel.snapshot()]

    def mark(address: str) -> None:
        for number in range(5):
            sysfs.set(address, "driver_override", f"{address}-{number}")

    writers = [start(lambda where=where: mark(where)) for where in addresses]
    assert [end_of(pid) for pid in writers] == [0] * len(addresses)
    overrides = [state.driver_override for state in kernel.snapshot()]
    assert overrides == [f"{address}-4" for address in addresses]
    assert len(kernel.writes()) == 5 * len(addresses)


@pytest.mark.parametrize(
    ("prepare", "text"), [("", "3"), ("3", "0")], ids=["make", "remove"]
)
def test_a_write_that_has_begun_is_whole_wherever_its_process_dies(
    tmp_path, monkeypatch, prepare, text
):
    def build(name: str) -> Attributes:
        host = hosts.HostSpec((hosts.nic("0000:3b", 0, name="ens1f0"),))
        sysfs = Attributes(FakeKernel.build(tmp_path / name, host))
        if prepare:
            sysfs.set(NIC, "sriov_numvfs", prepare)
        return sysfs

    whole = build("whole")
    whole.set(NIC, "sriov_numvfs", text)
    expected = everything(whole.kernel.root)
    steps = 0
    while True:
        sysfs = build(f"killed-{steps}")
        with monkeypatch.context() as patch:
            die_after(patch, steps)
            code = in_child(lambda sysfs=sysfs: sysfs.set(NIC, "sriov_numvfs", text))
        after = FakeKernel(sysfs.kernel.root)
        assert everything(after.root) == expected
        assert after.snapshot() == whole.kernel.snapshot()
        assert [w.text for w in after.writes()][-1] == text
        if code == 0:
            break
        assert code == -signal.SIGKILL
        steps += 7
    assert steps > 7


def test_the_next_writer_finishes_what_a_killed_one_began(kernel, sysfs, monkeypatch):
    with monkeypatch.context() as patch:
        die_after(patch, 1)
        in_child(lambda: sysfs.unbind(GPU))
    sysfs.probe(GPU)
    assert kernel.state(GPU).driver == "nouveau"
    assert [write.outcome for write in kernel.writes()] == ["done", "done"]
