# SPDX-License-Identifier: Apache-2.0

"""FPGA cards, their images, and their traits in Placement."""

from __future__ import annotations

import time
from typing import Any

from os_acc.testing import HostSpec, TestHost, hosts

CARD, OTHER_CARD = "0000:3b:00.0", "0000:af:00.0"
VF, OTHER_VF = "0000:3b:00.1", "0000:3b:00.2"
VFS = '{"address": "*:*:*.*", "num_vfs": 2}'
POWER_ON, INTERFACE = hosts.DFL_FUNCTION, hosts.DFL_INTERFACE
GZIP = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

#: The options of a service that restores the function of a region after a guest.
AT_RELEASE = {"os_acc_bitstreams": {"reprogram_at_release": True}}


def two_cards() -> HostSpec:
    """Return a host with two cards of one region each on the DFL driver."""
    return HostSpec((hosts.dfl("0000:3b", 0), hosts.dfl("0000:af", 1)))


def upload(
    host: TestHost, name: str = "gzip", function: str = GZIP, **more: Any
) -> str:
    """Put an image into the host's directory; return its id."""
    return host.images.put_gbs(name, function, **more)


def held(host: TestHost, address: str = CARD) -> str:
    """Return the function that the only port of a card holds."""
    (function,) = host.kernel.held_by_hardware(address)
    return function


def traits(host: TestHost, address: str = CARD) -> frozenset[str]:
    """Return the traits of a card's provider."""
    return host.provider(address).device.traits


def function_trait(function: str) -> str:
    """Return the trait of a region that holds this function."""
    return f"CUSTOM_FPGA_INTEL_FUNCTION_{function.upper().replace('-', '_')}"


def cyborgs_trait(function: str) -> str:
    """Return Cyborg's trait of a region that holds this function."""
    return f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{function.upper().replace('-', '')}"


def region_trait(interface: str) -> str:
    """Return the trait of a region that takes bitstreams of this interface."""
    return f"CUSTOM_FPGA_INTEL_REGION_{interface.upper().replace('-', '_')}"


def is_unknown(host: TestHost) -> bool:
    """Return whether the contents of a region of the host are unverified."""
    return bool(host.manager.store.recorded_state().unverified_regions)


def in_time() -> float:
    """Return a deadline that no test reaches."""
    return time.monotonic() + 60


def be_a_guest(bench: TestHost, function: str = CRYPTO) -> None:
    """Attach the card, let the guest program it, and unplug it."""
    bench.plug(1, CARD)
    bench.kernel.program_as_guest(CARD, function)
    bench.unplug(1)
