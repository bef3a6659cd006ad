# SPDX-License-Identifier: Apache-2.0

"""Frozen values as JSON and back, as the tree keeps them."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import pkgutil
import types
import typing
from typing import Any, TypeVar

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
