# SPDX-License-Identifier: Apache-2.0

"""A vendor's card whose VFs stay on their driver while guests have them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from os_acc import privsep
from os_acc.plugins import base
from os_acc.testing import (
    AttributeSpec,
    FunctionSpec,
    HostSpec,
    SimulatedFunction,
    SriovSpec,
    TestHost,
)

HERE: Final = "tests.unit.plugins.staying_vendor"
DRIVER: Final = "acme_gpu"
PF: Final = "0000:41:00.0"
VFS: Final = ("0000:41:00.1", "0000:41:00.2")
NAMED: Final = tuple(
    f'{{"address": "{each}", "vfio_driver": "{DRIVER}"}}' for each in VFS
)
_GUEST: Final = "acme/guest"


def share(function: SimulatedFunction, text: str) -> None:
    """Offer the VF to guests, or end that, as the driver does."""
    wanted, found = text.strip(), function.read(_GUEST)
    if wanted not in ("0", "1"):
        raise OSError(errno.EINVAL, "no such state", _GUEST)
    if wanted != found:
        (function.enter_vfio if wanted == "1" else function.leave_vfio)()
    function.write(_GUEST, wanted)


CARD: Final = FunctionSpec(
    PF,
    0x1DED,
    0x0010,
    0x120000,
    DRIVER,
    sriov=SriovSpec(
        2,
        0x0011,
        DRIVER,
        offset=1,
        boot_vfs=2,
        vf_attributes=(AttributeSpec(_GUEST, "0", share),),
    ),
)
SPEC: Final = HostSpec((CARD,))

context = privsep.Context(f"{HERE}.context", "staying_vendor", [])


@context.step
def offer(target: privsep.StepTarget, wanted: int) -> None:
    """Offer the functions of the lease to VFIO, or end that."""
    for function in target.functions:
        target.set(function, _GUEST, str(wanted))


class AcmeGpu(base.PluginBase):
    """Offers the VFs that stay on the driver."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    contexts: ClassVar[Sequence[privsep.Context]] = (context,)
    own_vfio_drivers: ClassVar[Sequence[str]] = (DRIVER,)

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        for usable in candidates.usable:
            if usable.driver == DRIVER:
                yield base.Device(
                    plugin=self.name,
                    address=usable.function.address,
                    identity=usable.function.identity,
                    resource_class="CUSTOM_ACCELERATOR_ACME",
                    traits=frozenset(),
                    handles=(usable.handle(),),
                    numa_node=usable.function.numa_node,
                )

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(offer, 1)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(offer, 0)


class Unprepared(AcmeGpu):
    """Forgets to make the driver offer the function."""

    prepare = base.PluginBase.prepare


class DeclaresVfio(AcmeGpu):
    """Declares a driver that is bound for guests."""

    own_vfio_drivers: ClassVar[Sequence[str]] = ("acme_vfio_pci",)


class DeclaresText(AcmeGpu):
    """Declares the letters of a name."""

    own_vfio_drivers: ClassVar[Sequence[str]] = DRIVER


class DeclaresNothing(AcmeGpu):
    """Is written for the driver, and does not declare it."""

    own_vfio_drivers: ClassVar[Sequence[str]] = ()


class DeclaresJunk(AcmeGpu):
    """Declares no name at all."""

    own_vfio_drivers = (7,)  # type: ignore[assignment]


def make(directory: Path) -> TestHost:
    """Return a host with the card; its VFs are to stay on their driver."""
    return TestHost(directory, SPEC, device_spec=list(NAMED))
