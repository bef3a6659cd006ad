# SPDX-License-Identifier: Apache-2.0

"""What our providers are called in Placement, and that they are ours.

A provider's uuid is made of its name, and this of the compute node's name and
the device's key: both are the same again after the loss of the store, and
nobody else's provider has the two. Only where a serial number is not its card's own,
or cards and VFs come and go, the record decides who is called what.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from os_acc.objects.pci import PciAddress, PciIdentity

# Makes a name of that of the node and a key.
_Kind: TypeAlias = Callable[[str, str], str]

# Of all providers of os_acc.
_PROVIDERS: Final = uuid.UUID("8f0f2f5e-0c5c-5d1e-9c3b-3f1c6f4f8a11")


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderOrigin:
    """The function that a provider is named after.

    :ivar key: of that function, by its serial number where it has one.
    """

    address: PciAddress
    key: str

    def is_of(self, identity: PciIdentity, address: PciAddress) -> bool:
        """Whether it may be that of this function.

        A serial number that could not be read, then or now, says nothing.
        """
        if self.address != address:
            return False
        if not identity.serial:
            return self.key.startswith(_key(identity, ""))
        return self.key in (key(identity, address), key_of_place(identity, address))


#: Of no provider at all.
NOWHERE: Final[Mapping[str, ProviderOrigin]] = MappingProxyType({})


def place(identity: PciIdentity, address: PciAddress) -> ProviderOrigin:
    """Where a provider is that is named after this function."""
    return ProviderOrigin(address, key(identity, address))


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


class ProviderNames:
    """Gives the providers of a node their names, the same as before.

    Cards whose serial number nobody has programmed all have the same. They are
    named by their places then; but who was named by it while there was no other
    stays so, and who had to be named by its place does, too: also where its own
    serial number could not be read then. One that cannot be read now is that on
    record, unless a card elsewhere shows it and has to be named by it.

    :param places: of the providers on record, by uuid.
    :param there: of everything that may have a serial number.
    """

    def __init__(
        self,
        node_name: str,
        places: Mapping[str, ProviderOrigin],
        there: Iterable[ProviderOrigin],
    ) -> None:
        self._node_name = node_name
        self._places = places
        self._given: dict[str, ProviderOrigin] = {}
        self._left: dict[str, ProviderOrigin] = {}
        self._at: dict[PciAddress, list[str]] = {}
        for provider, each in places.items():
            self._at.setdefault(each.address, []).append(provider)
        self._there: dict[str, set[PciAddress]] = {}
        for each in there:
            self._there.setdefault(each.key, set()).add(each.address)

    @property
    def given(self) -> Mapping[str, ProviderOrigin]:
        """What the providers that have a name now are named after, by uuid.

        One on record in whose place another card has shown its serial number has
        that card's key: it is not to be taken for this one again.
        """
        return MappingProxyType(self._left | self._given)

    def give(
        self, of: _Kind, identity: PciIdentity, address: PciAddress
    ) -> tuple[str, str]:
        """The uuid and the name of what is named after a function.

        :param of: :func:`of_device` or :func:`of_card`.
        """
        here = place(identity, address)
        if identity.serial:
            for provider, was in self._by_serial(of, identity, address):
                if was != here:
                    self._left[provider] = here
        else:
            here = self._last(of, identity, here)
        name = of(self._node_name, here.key)
        is_shared = len(self._there.get(here.key, ())) > 1
        is_on_record = self._recorded(of, here.key, address) == here
        if self._is_by_place(of, identity, here) or (is_shared and not is_on_record):
            name = of(self._node_name, key_of_place(identity, address))
        given = uuid_of(name)
        self._given[given] = here
        return given, name

    def _last(
        self, of: _Kind, identity: PciIdentity, here: ProviderOrigin
    ) -> ProviderOrigin:
        """What is on record of a function whose serial number cannot be read."""
        by_place = self._recorded(of, here.key, here.address)
        if by_place == here:
            return here
        for _, was in self._by_serial(of, identity, here.address):
            if not self._is_elsewhere(of, identity, was):
                return was
        return by_place or here

    def _is_elsewhere(
        self, of: _Kind, identity: PciIdentity, was: ProviderOrigin
    ) -> bool:
        """Whether a card elsewhere has to be named by a serial number on record."""
        there = self._there.get(was.key, set()) - {was.address}
        # Of several, none is.
        return len(there) == 1 and not any(
            self._is_by_place(of, identity, ProviderOrigin(each, was.key))
            for each in there
        )

    def _by_serial(
        self, of: _Kind, identity: PciIdentity, address: PciAddress
    ) -> Iterator[tuple[str, ProviderOrigin]]:
        """The providers on record in a place that are named by a serial number."""
        unreadable = dataclasses.replace(identity, serial="")
        for provider in self._at.get(address, ()):
            was = self._places[provider]
            if (
                was.is_of(unreadable, address)
                and was.key != key_of_place(identity, address)
                and provider == uuid_of(of(self._node_name, was.key))
            ):
                yield provider, was

    def _is_by_place(
        self, of: _Kind, identity: PciIdentity, here: ProviderOrigin
    ) -> bool:
        """Whether what is in a place is on record as named by it."""
        by_place = key_of_place(identity, here.address)
        recorded = self._recorded(of, by_place, here.address)
        return recorded is not None and recorded.key in (here.key, by_place)

    def _recorded(
        self, of: _Kind, of_key: str, address: PciAddress
    ) -> ProviderOrigin | None:
        recorded = self._places.get(uuid_of(of(self._node_name, of_key)))
        return recorded if recorded and recorded.address == address else None


def is_ours(node_name: str, name: str, provider_uuid: str) -> bool:
    """Whether os_acc has made a provider, on a node of this name."""
    return name.startswith(_begin(node_name)) and uuid_of(name) == provider_uuid


def _begin(node_name: str) -> str:
    return f"{node_name}_accel_"


def _key(identity: PciIdentity, place: str) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in place)
    return f"{identity.vendor:04x}_{identity.product:04x}_{safe}"
