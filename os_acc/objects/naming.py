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
nobody else's provider has the two. Only where a serial number is not its card's own,
or cards and VFs come and go, the record decides who is called what.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from os_acc.objects.pci import PciAddress, PciIdentity

# Of all providers of os_acc.
_PROVIDERS: Final = uuid.UUID("8f0f2f5e-0c5c-5d1e-9c3b-3f1c6f4f8a11")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The function that a provider is named after.

    :ivar key: of that function, by its serial number where it has one.
    """

    address: PciAddress
    key: str

    def is_of(self, identity: PciIdentity, address: PciAddress) -> bool:
        """Whether it is that of this function.

        Its serial number may have become readable since.
        """
        keys = (key(identity, address), key_of_place(identity, address))
        return self.address == address and self.key in keys


#: Of no provider at all.
NOWHERE: Final[Mapping[str, Place]] = MappingProxyType({})


def place(identity: PciIdentity, address: PciAddress) -> Place:
    """Where a provider is that is named after this function."""
    return Place(address, key(identity, address))


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


class Names:
    """Gives the providers of a node their names, the same as before.

    Cards whose serial number nobody has programmed all have the same. They are
    named by their places then; but who was named by it while there was no other
    stays so, and who had to be named by its place does, too: also where its own
    serial number could not be read then.

    :param places: of the providers on record, by uuid.
    :param there: of everything that may have a serial number.
    """

    def __init__(
        self, node_name: str, places: Mapping[str, Place], there: Iterable[Place]
    ) -> None:
        self._node_name = node_name
        self._places = places
        self._given: dict[str, Place] = {}
        found = Counter(each.key for each in set(there))
        self._shared = frozenset(key for key, times in found.items() if times > 1)

    @property
    def given(self) -> Mapping[str, Place]:
        """What the providers that have a name now are named after, by uuid."""
        return MappingProxyType(self._given)

    def give(
        self,
        of: Callable[[str, str], str],
        identity: PciIdentity,
        address: PciAddress,
    ) -> tuple[str, str]:
        """The uuid and the name of what is named after a function.

        :param of: :func:`of_device` or :func:`of_card`.
        """
        here = place(identity, address)
        name = of(self._node_name, here.key)
        if identity.serial:
            by_place = of(self._node_name, key_of_place(identity, address))
            is_shared = here.key in self._shared
            if self._is_on_record(by_place, identity, address) or (
                is_shared and not self._is_on_record(name, identity, address)
            ):
                name = by_place
        given = uuid_of(name)
        self._given[given] = here
        return given, name

    def _is_on_record(
        self, name: str, identity: PciIdentity, address: PciAddress
    ) -> bool:
        recorded = self._places.get(uuid_of(name))
        return recorded is not None and recorded.is_of(identity, address)


def is_ours(node_name: str, name: str, provider_uuid: str) -> bool:
    """Whether os_acc has made a provider, on a node of this name."""
    return name.startswith(_begin(node_name)) and uuid_of(name) == provider_uuid


def _begin(node_name: str) -> str:
    return f"{node_name}_accel_"


def _key(identity: PciIdentity, place: str) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in place)
    return f"{identity.vendor:04x}_{identity.product:04x}_{safe}"
