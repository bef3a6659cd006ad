# SPDX-License-Identifier: Apache-2.0

"""The card of the example plugin: one region, reached by two functions.

The diagram of the os_acc specification, "Cyborg-Nova-Glance Interaction in
Compute Node": PCI A has Fn A and PCI B has Fn B of Region 1.
"""

from __future__ import annotations

from typing import Any

from acme_accelerator import hardware, simulation

from os_acc.testing import HostSpec, TestHost, instance, request
from tests.unit.fpga import (
    CRYPTO,
    GZIP,
    POWER_ON,
    cyborgs_trait,
    function_trait,
    traits,
    upload,
)

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


def upload_both(host: TestHost, **fields: Any) -> str:
    """Upload one bitstream with both functions; return its id."""
    about = {"accel:function_name": "gzip, crypto"} | fields
    return upload(
        host, "both", declared=f"{GZIP},{CRYPTO}", interface=INTERFACE, **about
    )


def with_one_image(host: TestHost) -> TestHost:
    """Return the host with one image only, which has both functions."""
    for file in host.images.path.iterdir():
        file.unlink()
    upload_both(host)
    return host


def trait_of(function: str) -> str:
    """Return the trait of the card's region with a function."""
    return function_trait(function).replace("INTEL", "ACE0")


def published(host: TestHost) -> set[str]:
    """Return the functions that the traits of the region name, in each form."""
    found = traits(host, PF)
    names = {each for each in (GZIP, CRYPTO, POWER_ON) if trait_of(each) in found}
    for each in (GZIP, CRYPTO, POWER_ON):
        theirs = cyborgs_trait(each).replace("INTEL", "ACE0")
        assert (theirs in found) == (each in names)
    return names


def leave(host: TestHost) -> None:
    """Let a guest have had the region programmed with both functions."""
    host.plug(9, PF, function_id=GZIP)
    host.unplug(9)


def plug_groups(host: TestHost, *requested: str, number: int = 1) -> list[str]:
    """Plug one function for each group; '' requests none. Return the addresses."""
    selected, specs = request(*[host.provider(PF)] * len(requested))
    specs |= {
        f"accel{group}:function_id": function
        for group, function in enumerate(requested, start=1)
        if function
    }
    entries = host.manager.plug(instance(number), selected, specs)
    return [str(each["pci_id"]) for each in entries]


def by_trait(host: TestHost, number: int, function: str) -> list[Any]:
    """Plug a function of the region that a trait requires."""
    selected, specs = request(host.provider(PF))
    specs[f"trait1:{trait_of(function)}"] = "required"
    return host.manager.plug(instance(number), selected, specs)
