# SPDX-License-Identifier: Apache-2.0

"""Names of os_acc's providers in Placement, and their recognition.

A provider's uuid is derived from its name, and its name from the compute node's
name and the device's key. Both are reproducible after the loss of the store, and
no other provider has both. The record decides only if a serial number is not
unique to its card, or if cards and VFs come and go.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress, PciIdentity

# Builds a name from the node's name and a key.
_Kind: TypeAlias = Callable[[str, str], str]

# The namespace of os_acc's provider uuids.
_PROVIDERS: Final = uuid.UUID("8f0f2f5e-0c5c-5d1e-9c3b-3f1c6f4f8a11")


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderOrigin:
    """The function that gives a provider its name.

    :ivar key: of that function, based on its serial number if it has one.
    """

    address: PciAddress
    key: str

    def is_of(self, identity: PciIdentity, address: PciAddress) -> bool:
        """Return whether it may be the origin of this function's provider.

        A serial number that could not be read, then or now, is ignored.
        """
        if self.address != address:
            return False
        if not identity.serial:
            return self.key.startswith(_key(identity, ""))
        return self.key in (key(identity, address), key_of_place(identity, address))


def place(identity: PciIdentity, address: PciAddress) -> ProviderOrigin:
    """Return the origin of a provider named after this function."""
    return ProviderOrigin(address, key(identity, address))


def key(identity: PciIdentity, address: PciAddress) -> str:
    """Return a key of a card or function that survives a reboot: serial or place.

    The functions of one card share its serial number.
    """
    if not identity.serial:
        return key_of_place(identity, address)
    function = f" {address.function}" if address.function else ""
    return _key(identity, identity.serial + function)


def key_of_place(identity: PciIdentity, address: PciAddress) -> str:
    """Return a key by place alone, for a serial number that is not unique."""
    return _key(identity, str(address))


def of_device(node_name: str, device_key: str) -> str:
    """Return the name of a device's provider."""
    return f"{_begin(node_name)}{device_key}"


def of_mdev_type(type_name: str, node_name: str, parent_key: str) -> str:
    """Return the name of the provider of a type of mediated devices."""
    return f"{_begin(node_name)}mdev_{parent_key}_{_safe(type_name)}"


def of_virtual_type(node_name: str, kind: MdevType) -> str:
    """Return the name of the provider of a virtual parent's type."""
    return of_mdev_type(kind.name, node_name, _safe(kind.parent))


def of_card(node_name: str, card_key: str) -> str:
    """Return the name of the provider of a card with regions.

    Its only region may have the card's own key.
    """
    return f"{_begin(node_name)}card_{card_key}"


@functools.lru_cache(4096)
def uuid_of(name: str) -> str:
    """Return the uuid of the provider with this name."""
    return str(uuid.uuid5(_PROVIDERS, name))


class ProviderNames:
    """Assign the providers of a node their names, consistently over time.

    Cards without a programmed serial number share one serial number and are named
    by place. A provider keeps its name on record: one named by serial number
    while that was unique, and one named by place, even if its serial number could
    not be read at that time. A serial number that cannot be read now is taken
    from the record, unless another card shows it and has to be named by it.

    :param recorded: the origins of the providers on record, by uuid.
    :param there: the origins of all present functions that may have a serial
        number.
    """

    def __init__(
        self,
        node_name: str,
        recorded: Mapping[str, ProviderOrigin],
        there: Iterable[ProviderOrigin],
    ) -> None:
        self._node_name = node_name
        self._on_record = recorded
        self._given: dict[str, ProviderOrigin] = {}
        self._left: dict[str, ProviderOrigin] = {}
        self._at: dict[PciAddress, list[str]] = {}
        for provider, each in recorded.items():
            self._at.setdefault(each.address, []).append(provider)
        self._there: dict[str, set[PciAddress]] = {}
        for each in there:
            self._there.setdefault(each.key, set()).add(each.address)

    @property
    def origins(self) -> Mapping[str, ProviderOrigin]:
        """The origins of the providers named so far, by uuid.

        If another card has shown its serial number in the place of a provider on
        record, that provider gets the other card's key, so that the two are not
        confused again.
        """
        return self._left | self._given

    def give(
        self, of: _Kind, identity: PciIdentity, address: PciAddress
    ) -> tuple[str, str]:
        """Return the uuid and the name of a function's provider.

        :param of: :func:`of_device` or :func:`of_card`.
        """
        here = place(identity, address)
        if identity.serial:
            for provider, was in self._by_serial(of, identity, address):
                if was != here:
                    self._left[provider] = here
        else:
            here = self._last(of, identity, here)
        is_shared = len(self._there.get(here.key, ())) > 1
        is_by_place = self._is_by_place(of, identity, here) or (
            is_shared and self._recorded(of, here.key, address) != here
        )
        own_key = key_of_place(identity, address) if is_by_place else here.key
        name = of(self._node_name, own_key)
        given = uuid_of(name)
        self._given[given] = here
        return given, name

    def of_virtual(self, kind: MdevType) -> tuple[str, str]:
        """Return the UUID and the name of the provider of a virtual parent's type."""
        name = of_virtual_type(self._node_name, kind)
        return uuid_of(name), name

    def _last(
        self, of: _Kind, identity: PciIdentity, here: ProviderOrigin
    ) -> ProviderOrigin:
        """Return the recorded origin of a function with an unreadable serial."""
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
        """Return whether another card must be named by a recorded serial number."""
        there = self._there.get(was.key, set()) - {was.address}
        # A serial number of several cards identifies none of them.
        return len(there) == 1 and not any(
            self._is_by_place(of, identity, ProviderOrigin(each, was.key))
            for each in there
        )

    def _by_serial(
        self, of: _Kind, identity: PciIdentity, address: PciAddress
    ) -> Iterator[tuple[str, ProviderOrigin]]:
        """Yield the providers on record at a place that are named by serial number."""
        unreadable = dataclasses.replace(identity, serial="")
        for provider in self._at.get(address, ()):
            was = self._on_record[provider]
            if (
                was.is_of(unreadable, address)
                and was.key != key_of_place(identity, address)
                and provider == uuid_of(of(self._node_name, was.key))
            ):
                yield provider, was

    def _is_by_place(
        self, of: _Kind, identity: PciIdentity, here: ProviderOrigin
    ) -> bool:
        """Return whether the record names the function at a place by its place."""
        by_place = key_of_place(identity, here.address)
        recorded = self._recorded(of, by_place, here.address)
        return recorded is not None and recorded.key in (here.key, by_place)

    def _recorded(
        self, of: _Kind, of_key: str, address: PciAddress
    ) -> ProviderOrigin | None:
        recorded = self._on_record.get(uuid_of(of(self._node_name, of_key)))
        return recorded if recorded and recorded.address == address else None


def is_ours(node_name: str, name: str, provider_uuid: str) -> bool:
    """Return whether os_acc created a provider, on a node of this name."""
    return name.startswith(_begin(node_name)) and uuid_of(name) == provider_uuid


def is_card(node_name: str, name: str, provider_uuid: str) -> bool:
    """Return whether it is the provider of a card with regions."""
    begin = of_card(node_name, "")
    return name.startswith(begin) and is_ours(node_name, name, provider_uuid)


def _begin(node_name: str) -> str:
    return f"{node_name}_accel_"


def _key(identity: PciIdentity, place: str) -> str:
    return f"{identity.vendor:04x}_{identity.product:04x}_{_safe(place)}"


_UNSAFE: Final = re.compile(r"\W")


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text)
