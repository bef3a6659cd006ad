# SPDX-License-Identifier: Apache-2.0

"""The instance for which accelerators are plugged."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, Self

from os_acc import exception
from os_acc.objects.numa import InstanceNUMANetworks

#: The image property with the NUMA policy for all PCI devices.
IMAGE_NUMA_POLICY: Final = "hw_pci_numa_affinity_policy"
_NO_NETWORKS: Final = InstanceNUMANetworks()
#: The keys of each text: ours, then those of Nova's objects (``image_ref``,
#: ``tenant_id``) and of the specification ("VM image UUID").
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("name",),
    "project_id": ("project_id", "tenant_id"),
    "image_id": ("image_id", "image_ref", "image_uuid"),
}


def canonical_uuid(value: object) -> str | None:
    """Return the lower-case, hyphenated form; None if it is not a UUID."""
    if not isinstance(value, str) or len(value) not in (32, 36):
        return None
    try:
        parsed = uuid.UUID(value)
    except ValueError:
        return None
    text = str(parsed)
    return text if value.lower() in (text, parsed.hex) else None


def consumer_uuid(value: object) -> str:
    """Return the uuid of an instance or a migration, in its canonical form.

    :raises InvalidInput: the value is not a uuid.
    """
    consumer = canonical_uuid(value)
    if consumer is None:
        raise exception.InvalidInput(
            f"{exception.show(value)} is not the UUID of a consumer",
            hint="pass the UUID of an instance or a migration, as text",
        )
    return consumer


def instance_uuid(instance_info: object) -> str:
    """Return the uuid of the mapping that Nova passes; ignore its other keys.

    :raises InvalidInput: not a mapping, or no uuid.
    """
    value = _as_mapping(instance_info).get("uuid")
    uuid = canonical_uuid(value)
    if uuid is None:
        raise exception.InvalidInput(
            f"instance_info['uuid'] is {exception.show(value)}",
            hint="pass the instance's UUID, as text",
        )
    return uuid


def title(uuid: str, name: str) -> str:
    """Return a consumer's UUID and name for messages; the name is escaped."""
    return f"{uuid} ({exception.show(name)})" if name else uuid


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceInfo:
    """The properties of an instance that os_acc uses; only ``uuid`` is required.

    :ivar numa_cells: the host's NUMA cells of the guest's cells, in the guest's
        order; empty: any cell.
    :ivar networks: the networks that it has when it is created or moved.
    :ivar image_numa_policy: ``hw_pci_numa_affinity_policy`` of its image, not
        validated.
    :ivar port_numa_policies: (suffix of a request group, policy of the group's
        port), not validated.
    """

    uuid: str
    name: str = ""
    project_id: str = ""
    image_id: str = ""
    numa_cells: tuple[int, ...] = ()
    networks: InstanceNUMANetworks = _NO_NETWORKS
    image_numa_policy: object = None
    port_numa_policies: tuple[tuple[str, object], ...] = ()

    @property
    def title(self) -> str:
        """The UUID and the name, for messages."""
        return title(self.uuid, self.name)

    @classmethod
    def from_api(cls, instance_info: object) -> Self:
        """Validate the mapping that Nova passes.

        Unknown keys are ignored.

        :raises InvalidInput: not a mapping, no uuid, a wrong type, or two keys of one
            property with two values.
        """
        known = _as_mapping(instance_info)
        policies = _mapping(known, "port_numa_policies")
        return cls(
            uuid=instance_uuid(known),
            numa_cells=_numa_cells(known.get("numa_cells")),
            networks=_networks(known.get("networks")),
            image_numa_policy=_mapping(known, "image_properties").get(
                IMAGE_NUMA_POLICY
            ),
            port_numa_policies=tuple(
                (suffix, policies[suffix]) for suffix in sorted(policies)
            ),
            **{field: _text(known, keys) for field, keys in _KEYS.items()},
        )


def _as_mapping(instance_info: object) -> Mapping[str, Any]:
    if not isinstance(instance_info, Mapping):
        raise exception.InvalidInput(
            f"instance_info is {exception.show(instance_info)}, not a mapping",
            hint="pass a dictionary with at least the key 'uuid'",
        )
    return instance_info


def _text(instance_info: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the one value of a property that has several keys; '' if it has none."""
    found: dict[str, str] = {}
    for key in keys:
        value = instance_info.get(key)
        if not isinstance(value, str | None):
            raise exception.InvalidInput(
                f"instance_info[{key!r}] is {exception.show(value)}, not text",
                hint="leave the key out if there is no value",
            )
        if value:
            found[key] = value
    if len({canonical_uuid(value) or value for value in found.values()}) > 1:
        differ = " and ".join(
            f"instance_info[{key!r}] is {exception.show(value)}"
            for key, value in found.items()
        )
        raise exception.InvalidInput(
            f"{differ}, but they are the same property",
            hint=f"pass {keys[0]} only",
        )
    return next(iter(found.values()), "")


def _numa_cells(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(
        type(cell) is int and cell >= 0 for cell in value
    ):
        raise exception.InvalidInput(
            f"instance_info['numa_cells'] is {exception.show(value)}",
            hint="pass a list of host cell ids: those of the cells of the "
            "instance's NUMA topology after it is fitted to the host",
        )
    return tuple(dict.fromkeys(value))


def _networks(value: object) -> InstanceNUMANetworks:
    if value is None:
        return _NO_NETWORKS
    if isinstance(value, Mapping) and set(value) <= {"physnets", "tunneled"}:
        physnets, tunneled = value.get("physnets", ()), value.get("tunneled", False)
        if (
            isinstance(physnets, Sequence | Set)
            and not isinstance(physnets, str)
            and all(isinstance(each, str) for each in physnets)
            and isinstance(tunneled, bool)
        ):
            return InstanceNUMANetworks(frozenset(physnets), tunneled)
    raise exception.InvalidInput(
        f"instance_info['networks'] is {exception.show(value)}",
        hint="pass 'physnets', a list of names, and 'tunneled', True or False",
    )


def _mapping(instance_info: Mapping[str, Any], key: str) -> Mapping[str, object]:
    value = instance_info.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise exception.InvalidInput(
            f"instance_info[{key!r}] is {exception.show(value)}",
            hint="pass a mapping with text as its keys",
        )
    return value
