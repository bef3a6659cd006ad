# SPDX-License-Identifier: Apache-2.0

"""Frozen values as JSON and back: in the simulated tree, and the record of a host."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import os
import pkgutil
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from os_acc import exception
from os_acc.testing.device_specs import AttributeSpec, Store
from os_acc.testing.specs import FunctionSpec, HostSpec

T = TypeVar("T")


@functools.lru_cache(maxsize=1024)
def dump(record: Any) -> str:
    """Return a dataclass as JSON.

    It has numbers, texts, tuples, dataclasses, and functions of modules.
    """
    return json.dumps(dataclasses.asdict(record), default=_name_of)


def load(kind: type[T], text: str) -> T:
    """Return the record that :func:`dump` wrote."""
    return typing.cast(T, _load(text, typing.cast(Any, kind)))


def revive(kind: type[T], value: Any) -> T:
    """Return the record of parsed JSON; a missing field has its default.

    :raises TypeError, ValueError: the JSON is none of such a record.
    """
    return typing.cast(T, _revive(kind, value))


def _name_of(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


@functools.lru_cache(maxsize=1024)
def _load(text: str, kind: Any) -> Any:
    return _revive(kind, json.loads(text))


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    # Annotations are texts until they are resolved, which is slow.
    return tuple(typing.get_type_hints(kind).items())


def _revive(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is no mapping")
        found = {
            name: _revive(hint, value[name])
            for name, hint in _fields(kind)
            if name in value
        }
        return kind(**found)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        return tuple(_revive(arguments[0], item) for item in value)
    if origin is types.UnionType and value is not None:
        return _revive(arguments[0], value)
    if origin is collections.abc.Callable:
        return pkgutil.resolve_name(value)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


# -- the record of a host ------------------------------------------------------

#: The version of the format. A later os_acc reads it, and ignores keys of newer ones.
_FORMAT: Final = 1


def as_json(host: HostSpec) -> str:
    """Return a host as JSON; a field with its default is left out."""
    return json.dumps({"format": _FORMAT, "host": _plain(host)}, indent=1) + "\n"


def load_host(
    path: str | os.PathLike[str], stores: Mapping[str, Store] = MappingProxyType({})
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
        host = revive(HostSpec, found["host"])
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
