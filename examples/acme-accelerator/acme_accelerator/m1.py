# SPDX-License-Identifier: Apache-2.0

"""The plugin of M1 cards: ``prepare`` and ``release`` run a privileged step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from acme_accelerator import privsep
from os_acc.plugins import base
from oslo_config import cfg

VENDOR, PRODUCT = 0xACE0, 0x0E10


class M1Plugin(base.PluginBase):
    """M1 cards, one accelerator each."""

    contract_version = (1, 0)
    contexts = (privsep.context,)
    options: ClassVar[Sequence[cfg.Opt]] = (
        cfg.StrOpt(
            "guest_mode",
            default="guest",
            choices=privsep.MODES,
            help="The mode of a card that a guest has.",
        ),
    )

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        """Return a device for each card that a guest may have."""
        for usable in candidates.usable:
            function = usable.function
            identity = function.identity
            if (identity.vendor, identity.product) == (VENDOR, PRODUCT):
                yield base.Device(
                    plugin=self.name,
                    address=function.address,
                    identity=identity,
                    resource_class="CUSTOM_ACCELERATOR_ACME_M1",
                    traits=frozenset({"CUSTOM_ACME_M1"}),
                    handles=(usable.handle(),),
                    numa_node=function.numa_node,
                )

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Set the card to its mode for guests, while it is on its host driver."""
        steps.run(privsep.set_mode, privsep.MODES.index(self.conf.guest_mode))

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Set the card to the mode of the host, once it is on its driver again."""
        steps.run(privsep.set_mode, privsep.MODES.index("host"))
