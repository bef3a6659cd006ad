# SPDX-License-Identifier: Apache-2.0

"""The instance for which accelerators are plugged."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from os_acc import exception

#: The image property with the NUMA policy for all PCI devices.
IMAGE_NUMA_POLICY: Final = "hw_pci_numa_affinity_policy"


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


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceInfo:
    """The properties of an instance that os_acc uses; only ``uuid`` is required.

    :ivar numa_cells: the host's NUMA cells of the guest's cells, in the guest's
        order; empty: any cell.
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
    image_numa_policy: object = None
    port_numa_policies: tuple[tuple[str, object], ...] = ()

    @classmethod
    def from_api(cls, instance_info: object) -> Self:
        """Validate the mapping that Nova passes.

        Unknown keys are ignored.

        :raises InvalidInput: not a mapping, no uuid, or a wrong type.
        """
        if not isinstance(instance_info, Mapping):
            raise exception.InvalidInput(
                f"instance_info is {exception.show(instance_info)}, not a mapping",
                hint="pass a dictionary with at least the key 'uuid'",
            )
        consumer = canonical_uuid(instance_info.get("uuid"))
        if consumer is None:
            raise exception.InvalidInput(
                f"instance_info['uuid'] is {exception.show(instance_info.get('uuid'))}",
                hint="pass the instance's UUID, as text",
            )
        texts: dict[str, Any] = {}
        for key in ("name", "project_id", "image_id"):
            value = instance_info.get(key)
            if not isinstance(value, str | None):
                raise exception.InvalidInput(
                    f"instance_info[{key!r}] is {exception.show(value)}, not text",
                    hint="leave the key out if there is no value",
                )
            texts[key] = value or ""
        return cls(
            uuid=consumer,
            numa_cells=_numa_cells(instance_info.get("numa_cells")),
            image_numa_policy=_mapping(instance_info, "image_properties").get(
                IMAGE_NUMA_POLICY
            ),
            port_numa_policies=tuple(
                sorted(
                    _mapping(instance_info, "port_numa_policies").items(),
                    key=lambda item: item[0],
                )
            ),
            **texts,
        )


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
