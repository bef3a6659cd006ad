# SPDX-License-Identifier: Apache-2.0

"""Describe the plugin contract by inspection, and compare two descriptions.

``python tools/plugin_contract.py --record`` writes the description of the current
version, with which later ones are compared. Use it once for each version, at its
release; ``doc/source/contributor/plugins.rst`` has the rules.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeAlias

TOP: Final = Path(__file__).resolve().parents[1]
RECORDS: Final = TOP / "tests/unit/plugins/contract"
BASE: Final = "os_acc.plugins.base"

#: The names outside of :mod:`os_acc.plugins.base`, with the members that belong to
#: the contract; empty for a data class: its fields alone. The values of defaults do
#: not belong to it.
OTHERS: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("os_acc.objects.device", "Provider"): ("device",),
    ("os_acc.privsep", "Context"): ("__init__", "health_step", "parent_step", "step"),
    ("os_acc.privsep", "Step"): ("function",),
    ("os_acc.privsep", "StepTarget"): (
        *("__init__", "address", "card", "functions", "lease", "parent", "root"),
        *("directory", "read", "set", "siblings", "write"),
    ),
    ("os_acc.testing", "AttributeSpec"): (),
    ("os_acc.testing", "FunctionSpec"): (),
    ("os_acc.testing", "HostSpec"): (),
    ("os_acc.testing", "MdevParentSpec"): (),
    ("os_acc.testing", "MdevTypeSpec"): (),
    ("os_acc.testing", "SimulatedFunction"): (
        "address",
        "physfn",
        "read",
        "vfs",
        "write",
    ),
    ("os_acc.testing", "SriovSpec"): (),
    ("os_acc.testing", "TestHost"): (
        "__enter__",
        "__exit__",
        "__init__",
        "drivers",
        "images",
        "plug",
        "plugged",
        "provider",
        "rejected",
        "restart",
        "root",
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
_OPTIONAL: Final = "optional"
#: The properties of an error class on which the library and its callers decide.
_OF_ERRORS: Final = ("elsewhere", "fault", "reason", "retryable")
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

    :param members: the methods and attributes to describe, by name alone: their
        types may be internal; None: all public ones, with types and defaults.
    """
    found: Part = {"bases": [each.__name__ for each in cls.__mro__[1:-1]]}
    if issubclass(cls, enum.Enum):
        # Values are texts for people, and may be worded differently.
        types = {k: [v, ""] for k, v in _annotations(cls).items() if k[0] != "_"}
        return found | {"members": sorted(map(_member, cls)), "attributes": types}
    if dataclasses.is_dataclass(cls) and not members:
        is_exact = members is None
        found["fields"] = [_field(each, is_exact) for each in dataclasses.fields(cls)]
        found["is_frozen"] = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    else:
        found["attributes"] = dict(sorted(_attributes(cls, members)))
    found["is_ordered"] = any("__lt__" in vars(each) for each in _ours(cls))
    found["has_str"] = any("__str__" in vars(each) for each in _ours(cls))
    found["methods"] = dict(sorted(_methods(cls, members)))
    return found


def _member(member: enum.Enum) -> str:
    return member.name + (" retryable" if getattr(member, "retryable", False) else "")


def _ours(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if each.__module__.startswith("os_acc")]


def _field(field: dataclasses.Field[Any], is_exact: bool) -> list[str]:
    """Return name, type, kind of the parameter, and default of a field."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD.name
    if field.kw_only:
        kind = inspect.Parameter.KEYWORD_ONLY.name
    if not field.init:
        kind = "NO_PARAMETER"
    default = _REQUIRED
    if field.default is not dataclasses.MISSING:
        default = repr(field.default) if is_exact else _OPTIONAL
    elif field.default_factory is not dataclasses.MISSING:
        default = "factory" if is_exact else _OPTIONAL
    return [field.name, str(field.type) if is_exact else "", kind, default]


def _attributes(
    cls: type, members: Sequence[str] | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the attributes with type and default; either is empty if not promised."""
    types = _annotations(cls)
    set_by_init = {k: v for k, v in _set_by_init(cls) if k not in types}
    for name, annotation in (types | set_by_init).items():
        if name.startswith("_") or (members is not None and name not in members):
            continue
        if members is not None:
            yield name, ["", ""]
        elif name in set_by_init:
            yield name, [annotation, ""]
        elif not issubclass(cls, Exception):
            yield name, [annotation, repr(getattr(cls, name, _REQUIRED))]
        else:
            # The other defaults of errors are hints.
            default = getattr(cls, name) if name in _OF_ERRORS else ""
            text = default.name if isinstance(default, enum.Enum) else str(default)
            yield name, [annotation, text]


def _set_by_init(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes that ``__init__`` sets, with the type that it states."""
    for each in _ours(cls):
        function = vars(each).get("__init__")
        if not isinstance(function, FunctionType) or _has_generated_init(each):
            continue
        parameters = inspect.signature(function).parameters
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            targets: Sequence[ast.expr]
            annotation = ""
            if isinstance(node, ast.AnnAssign):
                targets, annotation = [node.target], ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign):
                targets = node.targets
                if isinstance(node.value, ast.Name) and node.value.id in parameters:
                    annotation = str(parameters[node.value.id].annotation)
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Attribute) and _is_self(target.value):
                    yield target.attr, annotation


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


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
        if members is None and name.startswith("_") and not is_constructor:
            continue
        if members is not None and name not in members:
            continue
        is_exact = members is None
        if isinstance(value, property):
            yield name, {"property": str(_return(value.fget)) if is_exact else ""}
        elif isinstance(value, staticmethod | classmethod):
            function = _method(value.__func__, is_exact)
            yield name, function | {"kind": type(value).__name__}
        elif isinstance(value, FunctionType):
            yield name, _method(value, is_exact)


def _has_generated_init(cls: type) -> bool:
    """Return whether ``__init__`` is generated: a data class or a protocol."""
    return dataclasses.is_dataclass(cls) or getattr(cls, "_is_protocol", False)


def _return(function: Any) -> object:
    return inspect.signature(function).return_annotation


def _method(function: Any, is_exact: bool) -> Part:
    return {
        "parameters": [
            [
                each.name,
                each.kind.name,
                str(each.annotation) if is_exact else "",
                _default(each, is_exact),
            ]
            for each in inspect.signature(function).parameters.values()
            if each.name not in ("self", "cls")
        ],
        "returns": str(_return(function)) if is_exact else "",
        "abstract": getattr(function, "__isabstractmethod__", False),
    }


def _default(parameter: inspect.Parameter, is_exact: bool) -> str:
    if parameter.default is parameter.empty:
        # An argument may always be left out of *args and **kwargs.
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        return "empty" if is_open else _REQUIRED
    if not is_exact:
        return _OPTIONAL
    # The repr() of a function has its address.
    return str(getattr(parameter.default, "__name__", repr(parameter.default)))


# -- comparison -------------------------------------------------------------


def breaks(old: Description, new: Description) -> list[str]:
    """Return the changes that may break a plugin for ``old`` on ``new``.

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
    for name in ("is_frozen", "is_ordered", "has_str"):
        if old.get(name) and not new[name]:
            yield f": {name} is no longer true"
    for member in sorted(set(old.get("members", ())) - set(new.get("members", ()))):
        yield f".{member} was removed"
    yield from _sequence_breaks("", old.get("fields", []), new.get("fields", []))
    attributes, now = old.get("attributes", {}), new.get("attributes", {})
    for name, value in attributes.items():
        if name not in now:
            yield f".{name} was removed"
        elif not _is_attribute_kept(value, now[name]):
            yield f".{name} is {now[name]}, not {value}"
    for name in sorted(now.keys() - attributes.keys()):
        if is_implemented and now[name][-1] == repr(_REQUIRED):
            yield f".{name} is new and has no default"
    yield from _methods_breaks(
        old.get("methods", {}), new.get("methods", {}), is_implemented
    )


def _is_attribute_kept(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether type and default are the same, where they are promised."""
    return all(before in ("", now) for before, now in zip(old, new, strict=True))


def _methods_breaks(old: Part, new: Part, is_implemented: bool) -> Iterator[str]:
    for name, method in old.items():
        if name not in new:
            yield f".{name}() was removed"
        else:
            yield from _method_breaks(f".{name}()", method, new[name], is_implemented)
    for name in sorted(new.keys() - old.keys()):
        if new[name].get("abstract"):
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
        if now is None or list(each) != list(now):
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


def broken() -> list[str]:
    """Return the breaks since each recorded version of the same major number."""
    number, now = version(), describe()
    return [
        f"{each[0]}.{each[1]}: {found}"
        for each, old in sorted(recorded().items())
        if each[0] == number[0]
        for found in breaks(old, now)
    ]


def record() -> None:
    """Freeze the current version: write its description.

    :raises FileExistsError: the version has a record.
    """
    path = record_of(version())
    if path.exists():
        raise FileExistsError(
            f"{path} exists, and plugins rely on it: raise CONTRACT_VERSION in"
            f" {BASE}, and record that version"
        )
    RECORDS.mkdir(exist_ok=True)
    path.write_text(json.dumps(describe(), indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the description, or record it."""
    parser = argparse.ArgumentParser(
        prog="plugin_contract.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the description of the current version, at its release",
    )
    options = parser.parse_args(arguments)
    if not options.record:
        print(json.dumps(describe(), indent=1))
        return 0
    try:
        record()
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
