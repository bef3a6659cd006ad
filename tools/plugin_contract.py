# SPDX-License-Identifier: Apache-2.0

"""Describe the plugin contract by inspection, and compare two descriptions.

``python tools/plugin_contract.py --record`` writes the description of the current
version and the checksums of its frozen files. Use it once for each version, before
that version is released; ``doc/source/contributor/plugins.rst`` has the rules.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeAlias

TOP: Final = Path(__file__).resolve().parents[1]
RECORDS: Final = TOP / "tests/unit/plugins/contract"
BASE: Final = "os_acc.plugins.base"

#: The names outside of :mod:`os_acc.plugins.base`, with the members that belong to
#: the contract; None: all of them.
OTHERS: Final[Mapping[tuple[str, str], Sequence[str] | None]] = {
    ("os_acc.privsep", "Context"): ("__init__",),
    ("os_acc.testing", "FunctionSpec"): (),
    ("os_acc.testing", "HostSpec"): (),
    ("os_acc.testing", "SriovSpec"): (),
    ("os_acc.testing", "TestHost"): (
        "__init__",
        "drivers",
        "plug",
        "plugged",
        "provider",
        "rejected",
        "restart",
        "unplug",
    ),
    ("os_acc.testing.image_directory", "ImageDirectory"): (
        "put",
        "put_gbs",
        "put_xclbin",
    ),
}

#: A class or value of the contract: its parts by their kind.
Part: TypeAlias = dict[str, Any]
Description: TypeAlias = dict[str, Part]

_REQUIRED: Final = "required"
#: Vendors implement these methods: the library must pass no argument that an older
#: plugin does not expect.
_IMPLEMENTED: Final = f"{BASE}.PluginBase"


# -- description ------------------------------------------------------------


def version() -> tuple[int, int]:
    """Return the version of the contract that the code implements."""
    found: tuple[int, int] = importlib.import_module(BASE).CONTRACT_VERSION
    return found


def describe() -> Description:
    """Return the contract as the code has it."""
    base = importlib.import_module(BASE)
    found = {
        f"{BASE}.{name}": describe_class(getattr(base, name))
        for name in base.__all__
        if name != "CONTRACT_VERSION"
    }
    for (module, name), members in OTHERS.items():
        each = getattr(importlib.import_module(module), name)
        found[f"{module}.{name}"] = describe_class(each, members)
    return dict(sorted(found.items()))


def describe_class(cls: type, members: Sequence[str] | None = None) -> Part:
    """Describe a class: bases, fields, enumeration members, attributes, methods.

    :param members: the methods and attributes to describe; None: all public ones.
    """
    found: Part = {"bases": [each.__name__ for each in _ours(cls)[1:]]}
    if issubclass(cls, enum.Enum):
        # Values are texts for people, and may be worded differently.
        return found | {"members": sorted(cls.__members__)}
    if dataclasses.is_dataclass(cls):
        found["fields"] = [_field(each) for each in dataclasses.fields(cls)]
    else:
        found["attributes"] = dict(sorted(_attributes(cls, members)))
    found["methods"] = dict(sorted(_methods(cls, members)))
    return found


def _ours(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if each.__module__.startswith("os_acc")]


def _field(field: dataclasses.Field[Any]) -> list[str]:
    if field.default is not dataclasses.MISSING:
        return [field.name, str(field.type), repr(field.default)]
    has_factory = field.default_factory is not dataclasses.MISSING
    return [field.name, str(field.type), "factory" if has_factory else _REQUIRED]


def _attributes(
    cls: type, members: Sequence[str] | None
) -> Iterator[tuple[str, list[str]]]:
    for name, annotation in _annotations(cls).items():
        if name.startswith("_") or (members is not None and name not in members):
            continue
        is_error = issubclass(cls, Exception)
        # The defaults of errors are hints and properties of the error.
        default = "" if is_error else repr(getattr(cls, name, _REQUIRED))
        yield name, [annotation, default]


def _annotations(cls: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in reversed(_ours(cls)):
        found |= {k: str(v) for k, v in inspect.get_annotations(each).items()}
    return found


def _methods(cls: type, members: Sequence[str] | None) -> Iterator[tuple[str, Part]]:
    found: dict[str, object] = {}
    for each in reversed(_ours(cls)):
        found |= vars(each)
    for name, value in found.items():
        is_constructor = name == "__init__" and not _has_generated_init(cls)
        if name.startswith("_") and not is_constructor:
            continue
        if members is not None and name not in members:
            continue
        if isinstance(value, property):
            yield name, {"property": str(_return(value.fget))}
        elif isinstance(value, staticmethod | classmethod):
            yield name, _method(value.__func__) | {"kind": type(value).__name__}
        elif isinstance(value, FunctionType):
            yield name, _method(value)


def _has_generated_init(cls: type) -> bool:
    """Return whether ``__init__`` is generated: a data class or a protocol."""
    return dataclasses.is_dataclass(cls) or getattr(cls, "_is_protocol", False)


def _return(function: Any) -> object:
    return inspect.signature(function).return_annotation


def _method(function: Any) -> Part:
    return {
        "parameters": [
            [
                each.name,
                each.kind.name,
                str(each.annotation),
                _default(each),
            ]
            for each in inspect.signature(function).parameters.values()
            if each.name not in ("self", "cls")
        ],
        "returns": str(_return(function)),
        "abstract": getattr(function, "__isabstractmethod__", False),
    }


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        # An argument may always be left out of *args and **kwargs.
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        return "empty" if is_open else _REQUIRED
    # The repr() of a function has its address.
    return str(getattr(parameter.default, "__name__", repr(parameter.default)))


# -- comparison -------------------------------------------------------------


def breaks(old: Description, new: Description) -> list[str]:
    """Return the changes with which a plugin for ``old`` may fail on ``new``.

    Additions are compatible if they have a default. A parameter of a method that
    plugins implement is never compatible: an older plugin does not expect it.
    """
    return [
        f"{name}{each}"
        for name, part in old.items()
        for each in (
            _part_breaks(part, new[name], name == _IMPLEMENTED)
            if name in new
            else [" was removed"]
        )
    ]


def _part_breaks(old: Part, new: Part, is_implemented: bool) -> Iterator[str]:
    if old.keys() != new.keys():
        yield " is of another kind"
        return
    if old["bases"] != new["bases"]:
        yield f" has the bases {new['bases']}, not {old['bases']}"
    for member in sorted(set(old.get("members", ())) - set(new.get("members", ()))):
        yield f".{member} was removed"
    yield from _sequence_breaks("", old.get("fields", []), new.get("fields", []))
    attributes, now = old.get("attributes", {}), new.get("attributes", {})
    for name, value in attributes.items():
        if now.get(name) != value:
            yield f".{name} is {now.get(name)}, not {value}"
    for name in sorted(now.keys() - attributes.keys()):
        if is_implemented and now[name][-1] == repr(_REQUIRED):
            yield f".{name} is new and has no default"
    methods, now = old.get("methods", {}), new.get("methods", {})
    for name, method in methods.items():
        if name not in now:
            yield f".{name}() was removed"
        else:
            yield from _method_breaks(f".{name}()", method, now[name], is_implemented)
    for name in sorted(now.keys() - methods.keys()):
        if now[name].get("abstract"):
            yield f".{name}() is new and abstract"


def _method_breaks(
    name: str, old: Part, new: Part, is_implemented: bool
) -> Iterator[str]:
    before, now = old.get("parameters", []), new.get("parameters", [])
    if is_implemented and len(now) > len(before):
        yield f"{name} passes {now[len(before)][0]}, which older plugins do not take"
        return
    yield from _sequence_breaks(name, before, now)
    for key in sorted((old.keys() | new.keys()) - {"parameters"}):
        if old.get(key) != new.get(key):
            yield f"{name} has {key} {new.get(key)}, not {old.get(key)}"


def _sequence_breaks(
    name: str, old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Compare fields or parameters, which can be passed by position."""
    for number, each in enumerate(old):
        now = new[number] if number < len(new) else None
        if now is None or list(now) != list(each):
            yield f"{name}: {each} is now {now}"
    for each in new[len(old) :]:
        if each[-1] == _REQUIRED:
            yield f"{name}: {each[0]} is new and has no default"


# -- records ----------------------------------------------------------------


def record_of(number: tuple[int, int]) -> Path:
    """Return the file with the description of a version."""
    return RECORDS / f"{number[0]}.{number[1]}.json"


def recorded() -> dict[tuple[int, int], Description]:
    """Return the descriptions of all versions that were frozen."""
    found: dict[tuple[int, int], Description] = {}
    for path in RECORDS.glob("*.json"):
        major, minor = map(int, path.stem.split("."))
        found[major, minor] = json.loads(path.read_text())
    return found


def frozen_files(number: tuple[int, int]) -> list[Path]:
    """Return the files of a version that are never edited: record and example."""
    example = TOP / f"examples/acme-accelerator-{number[0]}.{number[1]}"
    files = [
        each
        for each in example.rglob("*")
        if each.suffix in (".py", ".rst", ".toml")
        and not {"build", ".tox", ".venv"} & {*each.relative_to(example).parts}
    ]
    return [record_of(number), *sorted(files)]


def checksums(number: tuple[int, int]) -> str:
    """Return the frozen files of a version as ``sha256sum`` prints them."""
    return "".join(
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.relative_to(TOP)}\n"
        for each in frozen_files(number)
    )


def main() -> int:
    """Print the description, or record it."""
    text = json.dumps(describe(), indent=1) + "\n"
    if sys.argv[1:] != ["--record"]:
        print(text, end="")
        return 0
    number = version()
    RECORDS.mkdir(exist_ok=True)
    record_of(number).write_text(text)
    record_of(number).with_suffix(".sha256").write_text(checksums(number))
    return 0


if __name__ == "__main__":
    sys.exit(main())
