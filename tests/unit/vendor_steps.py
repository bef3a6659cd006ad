# SPDX-License-Identifier: Apache-2.0

"""A vendor's privileged steps, and the plugin that runs them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from oslo_config import cfg

from os_acc import privsep
from os_acc.plugins import base
from os_acc.privsep import worker
from os_acc.testing.device_specs import SimulatedFunction, keep
from tests.unit import acme

context = privsep.Context("tests.unit.vendor_steps.context", "vendor_steps", [])


@context.step
def set_node(target: privsep.StepTarget, node: int) -> str:
    """Set the NUMA node of each function, and return the value of the first one."""
    for function in target.functions:
        target.set(function, "numa_node", str(node))
    return target.read(target.functions[0], "numa_node")


@context.step
def describe(target: privsep.StepTarget) -> tuple[str, str, tuple[str, ...], str]:
    """Return the target as text, as the step sees it."""
    return (
        target.lease,
        str(target.address),
        tuple(map(str, target.functions)),
        str(target.card or ""),
    )


@context.step
def echo(
    target: privsep.StepTarget,
    number: int,
    text: str,
    data: bytes,
    parts: tuple[int, ...],
    pair: tuple[str, bool],
    choice: int | None,
) -> tuple[int, str, bytes, tuple[int, ...], tuple[str, bool], int | None]:
    """Return the arguments."""
    return number, text, data, parts, pair, choice


#: A number of the card that the steps of all its VFs change.
USERS = "acme_users"


def set_users(function: SimulatedFunction, text: str) -> None:
    """Do as the driver of the card."""
    keep(function, USERS, text)


#: Looks for another step: the first number ends soon, the second in any case late.
BRIEFLY, LONG = 40, 20_000


def overlap(target: privsep.StepTarget, looks: int) -> None:
    """Wait until two steps are here at once, for so many looks at most."""
    place = os.path.join(target.root, "waiting")
    os.makedirs(place, exist_ok=True)
    own = os.path.join(place, str(os.getpid()))
    with open(own, "w", encoding="utf-8"):
        for _ in range(looks):
            if len(os.listdir(place)) > 1:
                # The file stays: the other step has to see it as well.
                return
            time.sleep(0.005)
    os.unlink(own)


@context.parent_step
def add_users(target: privsep.StepTarget, number: int, looks: int) -> int:
    """Add a number of users to that of the card."""
    assert target.parent is not None
    found = int(target.read(target.parent, USERS))
    overlap(target, looks)
    target.write(target.parent, USERS, str(found + number))
    return found + number


#: The same without the lock of the parent.
add_users_alone = context.step(add_users.function)


@context.parent_step
def describe_parent(target: privsep.StepTarget) -> tuple[str, tuple[str, ...]]:
    """Return the parent and the siblings of the target."""
    return str(target.parent or ""), tuple(map(str, target.siblings))


@context.health_step
def users(target: privsep.StepTarget) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the users of the card."""
    return "", (("users", int(target.read(target.address, USERS))),)


@context.step
def process(target: privsep.StepTarget) -> tuple[int, int]:
    """Return the process of the step, and its parent."""
    return os.getpid(), os.getppid()


@context.step
def seconds_left(target: privsep.StepTarget) -> int:
    """Return the seconds that the helper leaves to the step."""
    return int(worker._deadline - time.monotonic())


@context.step
def refuse(target: privsep.StepTarget, number: int) -> None:
    """Fail with an error number, as a system call does."""
    raise OSError(number, os.strerror(number), "/sys/devices/acme/mode")


@context.step
def crash(target: privsep.StepTarget) -> None:
    """Fail with an exception that no caller expects."""
    raise RuntimeError("no firmware")


@context.step
def leave(target: privsep.StepTarget) -> None:
    """End the process."""
    os._exit(1)


@context.step
def return_object(target: privsep.StepTarget) -> Any:
    """Return a value that cannot be sent."""
    return {target.lease}


class Stepping(acme.Acme):
    """Runs a step in each of its methods, and records the results.

    :cvar to_prepare: the step of ``prepare`` and its arguments, as of ``to_release``.
    """

    contract_version = (1, 0)
    contexts = (context,)
    to_prepare: ClassVar[tuple[Any, ...]] = (set_node, 1)
    to_release: ClassVar[tuple[Any, ...]] = (set_node, 0)
    results: ClassVar[list[object]] = []
    leases: ClassVar[list[base.LeaseView]] = []

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.leases.append(steps.lease)
        self.results.append(steps.run(*self.to_prepare))

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.results.append(steps.run(*self.to_release))


class Meeting(Stepping):
    """Changes the number of users of a card for two devices at once."""

    meeting = threading.Barrier(2)
    to_prepare = (add_users, 1, BRIEFLY)
    to_release = (add_users, -1, BRIEFLY)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.meeting.wait(120)
        super().prepare(handle, steps)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.meeting.wait(120)
        super().release(handle, steps)


class SteppingIntel(Stepping):
    """Does the same for the functions of another vendor."""

    options: ClassVar[Sequence[cfg.Opt]] = (cfg.IntOpt("vendor", default=0x8086),)


class SteppingMdev(Stepping):
    """Does the same for mediated devices; its steps write nothing."""

    to_prepare = (describe,)
    to_release = (describe,)

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for offered in candidates.mdev_types:
            yield base.Device(
                plugin=self.name,
                address=offered.type,
                identity=offered.parent.identity if offered.parent else None,
                resource_class="CUSTOM_ACCELERATOR_ACME",
                traits=frozenset(),
                handles=offered.handles,
                numa_node=None,
                erasure=base.Erasure.REMOVAL,
            )


def wrongly_typed() -> Sequence[Callable[[], object]]:
    """Return functions that declare steps that cannot exist."""

    def object_parameter() -> object:
        @context.step
        def step(target: privsep.StepTarget, value: dict[str, int]) -> None: ...

        return step

    def no_annotation() -> object:
        @context.step
        def step(target, value) -> None: ...  # type: ignore[no-untyped-def]

        return step

    def keyword_only() -> object:
        @context.step  # type: ignore[arg-type]
        def step(target: privsep.StepTarget, *, value: int) -> None: ...

        return step

    def no_target() -> object:
        @context.step  # type: ignore[arg-type]
        def step() -> None: ...

        return step

    return object_parameter, no_annotation, keyword_only, no_target
