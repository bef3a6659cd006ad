# SPDX-License-Identifier: Apache-2.0

"""A vendor whose VFs share the queues of their card."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from os_acc.plugins import base
from os_acc.privsep import Context, StepTarget
from os_acc.testing import AttributeSpec, FunctionSpec, SimulatedFunction, SriovSpec

HERE = "tests.functional.host.plugins.sharing_vendor"
CARD = "0000:5e:00.0"
VFS = tuple(f"0000:5e:02.{index}" for index in range(4))
VENDOR, PF, VF = 0xACE0, 0x0E30, 0x0E31

context = Context(f"{HERE}.context", "sharing_vendor", [])


@context.parent_step
def give_queues(target: StepTarget, count: int) -> None:
    """Give a VF this many queues of its card."""
    card, own = target.parent, target.functions[0]
    if card is None:
        raise OSError(errno.ENODEV, "no card")
    others = (vf for vf in target.siblings if vf != own)
    used = sum(int(target.read(vf, "acme_own_queues")) for vf in others)
    if used + count > int(target.read(card, "acme_queues")):
        raise OSError(errno.ENOSPC, "the card has too few queues", str(card))
    target.set(own, "acme_own_queues", str(count))


class SharingPlugin(base.PluginBase):
    """Each guest gets a VF with two queues of its card."""

    contract_version = (1, 0)
    contexts = (context,)

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        """Offer the VFs of each card as one provider."""
        usable = [u for u in candidates.usable if u.function.identity.product == VF]
        for card in sorted({u.parent for u in usable}, key=lambda each: each.address):
            yield base.Device(
                plugin=self.name,
                address=card.address,
                identity=card.identity,
                resource_class="CUSTOM_ACCELERATOR_SHARING",
                traits=frozenset(),
                handles=tuple(u.handle() for u in usable if u.parent == card),
                numa_node=card.numa_node,
            )

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        try:
            steps.run(give_queues, 2)
        except base.HostStepFailed as error:
            if error.errno != errno.ENOSPC:
                raise
            raise base.HostStepFailed(
                f"the card has no queues for {handle.address}",
                address=str(handle.address),
                reason=base.StepReason.NO_CAPACITY,
            ) from error

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(give_queues, 0)


def card(queues: int) -> FunctionSpec:
    """Return a card with so many queues, and four VFs."""
    own = AttributeSpec("acme_own_queues", "0", _set_queues, stays=True)
    return FunctionSpec(
        CARD,
        VENDOR,
        PF,
        class_code=0x120000,
        driver="acme",
        numa_node=0,
        driver_attributes=(AttributeSpec("acme_queues", str(queues)),),
        sriov=SriovSpec(4, VF, boot_vfs=4, vf_attributes=(own,)),
    )


def _set_queues(function: SimulatedFunction, text: str) -> None:
    """Refuse more queues than the card has, as its driver does."""
    assert function.physfn is not None
    others = [
        f"0000:5e:02.{index}"
        for index in range(4)
        if f"0000:5e:02.{index}" != function.address
    ]
    used = sum(int(function.read("acme_own_queues", each)) for each in others)
    if used + int(text) > int(function.read("acme_queues", function.physfn)):
        raise OSError(errno.EIO, "the card is overcommitted", function.address)
    function.write("acme_own_queues", text.strip())
