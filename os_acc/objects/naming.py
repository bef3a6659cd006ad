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


"""What our providers are called in Placement, and that they are ours.

A provider's uuid is made of its name, and this of the compute node's name and
the device's key: both are the same again after the loss of the store, and
nobody else's provider has the two.
"""

from __future__ import annotations

import uuid
from typing import Final

from os_acc.objects.pci import PciAddress, PciIdentity

# Of all providers of os_acc.
_PROVIDERS: Final = uuid.UUID("8f0f2f5e-0c5c-5d1e-9c3b-3f1c6f4f8a11")


def key(identity: PciIdentity, address: PciAddress) -> str:
    """A name for a card or function that survives a reboot: serial or place.

    The functions of one card share its serial number.
    """
    if not identity.serial:
        return key_of_place(identity, address)
    function = f" {address.function}" if address.function else ""
    return _key(identity, identity.serial + function)


def key_of_place(identity: PciIdentity, address: PciAddress) -> str:
    """Its name by the place alone, for a serial number that is not its own."""
    return _key(identity, str(address))


def of_device(node_name: str, device_key: str) -> str:
    """What the provider of a device is called."""
    return f"{_begin(node_name)}{device_key}"


def of_card(node_name: str, card_key: str) -> str:
    """What the provider of a card with regions is called.

    Its only region may have the card's own key.
    """
    return f"{_begin(node_name)}card_{card_key}"


def uuid_of(name: str) -> str:
    """The uuid of the provider with a name."""
    return str(uuid.uuid5(_PROVIDERS, name))


def is_ours(node_name: str, name: str, provider_uuid: str) -> bool:
    """Whether os_acc has made a provider, on a node of this name."""
    return name.startswith(_begin(node_name)) and uuid_of(name) == provider_uuid


def _begin(node_name: str) -> str:
    return f"{node_name}_accel_"


def _key(identity: PciIdentity, place: str) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in place)
    return f"{identity.vendor:04x}_{identity.product:04x}_{safe}"
