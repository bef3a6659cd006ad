# SPDX-License-Identifier: Apache-2.0

"""The card of the example plugin: one region, reached by two functions.

The diagram of the os_acc specification, "Cyborg-Nova-Glance Interaction in
Compute Node": PCI A has Fn A and PCI B has Fn B of Region 1.
"""

from __future__ import annotations

from acme_accelerator import hardware, simulation

from os_acc.testing import HostSpec, TestHost

PF, PCI_A, PCI_B = "0000:5e:00.0", "0000:5e:00.1", "0000:5e:00.2"
INTERFACE = simulation.INTERFACE
PLUGIN = "acme_accelerator.plugin:AcmePlugin"


def spec() -> HostSpec:
    """Return a host with one such card."""
    return HostSpec((simulation.card(PF),))


def held(host: TestHost) -> str | None:
    """Return the function that the region holds, or the first one of several."""
    return next(iter(held_functions(host)), None)


def held_functions(host: TestHost) -> tuple[str, ...]:
    """Return the functions that the region holds."""
    return hardware.read_functions(str(host.root), PF)


def hold(host: TestHost, *functions: str) -> None:
    """Let the region hold functions."""
    simulation.set_functions(host.root, PF, *functions)
