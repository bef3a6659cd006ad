# SPDX-License-Identifier: Apache-2.0

"""Records of hosts, as files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from os_acc import exception
from os_acc.testing import records
from os_acc.testing.attribute_specs import AttributeSpec, Store
from os_acc.testing.specs import FunctionSpec, HostSpec

#: The version of the format. A later os_acc reads it, and ignores keys of newer ones.
_FORMAT: Final = 1


def as_json(host: HostSpec) -> str:
    """Return a host as JSON; a field with its default is left out."""
    return json.dumps({"format": _FORMAT, "host": _plain(host)}, indent=1) + "\n"


def load_host(
    path: str | os.PathLike[str],
    stores: Mapping[str, Store] = MappingProxyType({}),
) -> HostSpec:
    """Return the host of a file that ``os-acc host record`` has written.

    :param stores: the effects of writes to attributes that drivers make, by the name of
        the attribute. An attribute without one is read-only: a record has none.
    :raises InvalidInput: the file is no such record, or cannot be read.
    """
    place = os.fspath(path)
    try:
        with open(place, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise exception.InvalidInput(
                f"{place} is no record of a host in format {_FORMAT}",
                hint="record the host again: os-acc host record",
            )
        if _has_store(found):
            raise ValueError("a record has no code")
        host = records.revive(HostSpec, found["host"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, exception.InvalidInput):
            raise
        raise exception.InvalidInput(
            f"{place} is no record of a host: {error}",
            hint="record the host again: os-acc host record",
        ) from error
    return dataclasses.replace(
        host, functions=tuple(_with(each, stores) for each in host.functions)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {
        field.name: _plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    }


def _has_store(value: Any) -> bool:
    """Return whether a record names a function, which loading would import."""
    if isinstance(value, dict):
        return bool(value.get("store")) or any(map(_has_store, value.values()))
    return isinstance(value, list) and any(map(_has_store, value))


def _with(function: FunctionSpec, stores: Mapping[str, Store]) -> FunctionSpec:
    """Return a function whose attributes have these effects, with those of its VFs."""

    def known(found: tuple[AttributeSpec, ...]) -> tuple[AttributeSpec, ...]:
        return tuple(
            dataclasses.replace(each, store=stores.get(each.name)) for each in found
        )

    sriov = function.sriov
    return dataclasses.replace(
        function,
        driver_attributes=known(function.driver_attributes),
        sriov=sriov
        and dataclasses.replace(
            sriov,
            vf_attributes=known(sriov.vf_attributes),
            own_vf_attributes=tuple(map(known, sriov.own_vf_attributes)),
        ),
    )
