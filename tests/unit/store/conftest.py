# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Leases to store, and other processes to share the store with."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

import pytest

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState, Owner, PriorBinding
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.store import Store

INSTANCE = "11111111-1111-4111-8111-111111111111"
_IDENTITY = PciIdentity(0x8086, 0x0953, 0x8086, 0x370A, 0x01, "CVFT1234")


@pytest.fixture
def state_path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def store(state_path: str) -> Store:
    return Store.open(state_path, busy_timeout=30)


@pytest.fixture
def make_lease() -> Callable[..., Lease]:
    """A lease of the function in a slot, and of its siblings there."""

    def make(
        slot: int,
        consumer: str = INSTANCE,
        functions: int = 1,
        state: LeaseState = LeaseState.PREPARING,
        instance_name: str = "",
    ) -> Lease:
        members = [PciAddress(0, 0x3B, slot, number) for number in range(functions)]
        return Lease(
            uuid=f"22222222-2222-4222-8222-{slot:012d}",
            consumer=consumer,
            owner=Owner.NOVA,
            state=state,
            group="1",
            provider="33333333-3333-4333-8333-333333333333",
            resource_class="CUSTOM_ACCELERATOR_SSD",
            address=members[0],
            iommu_group=slot,
            numa_node=None,
            prior=tuple(
                PriorBinding(member, _IDENTITY, "nvme", None) for member in members
            ),
            request="d1ce",
            boot_id="44444444-4444-4444-8444-444444444444",
            plugin="pci",
            instance_name=instance_name,
        )

    return make


class Child:
    """A forked process that stops where it is told to, until it may go on."""

    def __init__(self, function: Callable[[Callable[[], None]], object]) -> None:
        answer, self._report = os.pipe()
        self._gate, release = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(release)
            with contextlib.ExitStack() as last:
                last.callback(os._exit, 1)
                self._tell(self._outcome(function))
                os._exit(0)
        os.close(self._report)
        os.close(self._gate)
        self._answer = os.fdopen(answer)
        self._release = os.fdopen(release, "w")

    def _outcome(self, function: Callable[[Callable[[], None]], object]) -> str:
        try:
            return str(function(self._pause))
        except exception.OsAccError as error:
            return type(error).__name__

    def _pause(self) -> None:
        self._tell("paused")
        os.read(self._gate, 1)

    def _tell(self, text: str) -> None:
        os.write(self._report, f"{text}\n".encode())

    def hears(self) -> str:
        """The next line that the child tells; empty when it is gone."""
        return self._answer.readline().rstrip("\n")

    def goes_on(self) -> str:
        """Let the child run to its end; its outcome."""
        self._release.close()
        outcome = self.hears()
        self._end()
        return outcome

    def is_killed(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._release.close()
        self._end()

    def _end(self) -> None:
        self._answer.close()
        os.waitpid(self.pid, 0)


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], str]:
    """Run a function in a forked process; its result or error, as text."""

    def run(function: Callable[[], object]) -> str:
        return Child(lambda _: function()).goes_on()

    return run


@pytest.fixture
def paused_child() -> Callable[..., contextlib.AbstractContextManager[Child]]:
    """A forked process that has called ``pause`` and waits there."""

    @contextlib.contextmanager
    def start(
        function: Callable[[Callable[[], None]], object],
    ) -> Iterator[Child]:
        child = Child(function)
        assert child.hears() == "paused"
        yield child

    return start
