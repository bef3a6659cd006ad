# SPDX-License-Identifier: Apache-2.0

"""Describe the public API by inspection, and compare it with its record.

``python tools/public_api.py --record`` writes the record that
``tests/unit/test_public_api.py`` compares. ``doc/source/reference/compatibility.rst``
says which changes are compatible.
"""

from __future__ import annotations

import argparse
import configparser
import enum
import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).resolve().parents[1]
RECORD: Final = TOP / "tests/unit/public_api.json"
#: The modules whose ``__all__`` is public.
MODULES: Final = ("os_acc", "os_acc.requests", "os_acc.numa")
#: Modules whose classes are all public.
DICTIONARIES: Final = "os_acc.objects.api"
ERRORS: Final = "os_acc.exception"

#: One line for each promise; the key is its subject, the value all that is promised.
Description = dict[str, str]


def describe() -> Description:
    """Return the public API as the code has it."""
    found: Description = {}
    for part in (functions, dictionaries, errors, options, commands, keys):
        found |= part()
    return dict(sorted(found.items()))


def incompatible(recorded: Description, found: Description) -> list[str]:
    """Return the changes that a caller of the recorded API would notice."""
    return [
        f"{name}: was {was!r}, is {found.get(name, 'missing')!r}"
        for name, was in recorded.items()
        if found.get(name) != was
    ]


def functions() -> Iterator[tuple[str, str]]:
    """Yield the functions with their signatures, and the members of classes."""
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            public = getattr(importlib.import_module(module), name)
            if not inspect.isclass(public):
                yield f"{module}.{name}", str(inspect.signature(public))
            elif issubclass(public, enum.Enum):
                yield from _members(f"{module}.{name}", public)
            else:
                yield from _class(f"{module}.{name}", public)


def _class(path: str, public: type) -> Iterator[tuple[str, str]]:
    if "__dataclass_fields__" in vars(public):
        yield path, str(inspect.signature(public))
    for name, member in vars(public).items():
        if not name.startswith("_") and inspect.isfunction(member):
            yield f"{path}.{name}", str(inspect.signature(member))


def _members(path: str, public: type[enum.Enum]) -> Iterator[tuple[str, str]]:
    for member in public:
        yield f"{path}.{member.name}", ""


def dictionaries() -> Iterator[tuple[str, str]]:
    """Yield the keys of the dictionaries, with their types."""
    module = importlib.import_module(DICTIONARIES)
    for name, public in vars(module).items():
        if not typing.is_typeddict(public):
            continue
        for key, kind in public.__annotations__.items():
            # Annotations are text there, which __required_keys__ does not understand.
            text = kind.__forward_arg__
            marked = re.fullmatch(r"(NotRequired|Required)\[(.*)\]", text)
            is_required = marked[1] == "Required" if marked else public.__total__
            text = marked[2] if marked else text
            yield f"{name}[{key!r}]", f"{text}{'' if is_required else ', if present'}"


def errors() -> Iterator[tuple[str, str]]:
    """Yield the errors with their base classes, and their reasons."""
    for name, public in vars(importlib.import_module(ERRORS)).items():
        if name.startswith("_") or not inspect.isclass(public):
            continue
        if public.__module__ != ERRORS:
            continue
        if issubclass(public, enum.Enum):
            yield from _members(f"{ERRORS}.{name}", public)
        elif issubclass(public, Exception):
            bases = ", ".join(each.__name__ for each in public.__bases__)
            yield f"{ERRORS}.{name}", f"{bases}; retryable {public.retryable}"  # type: ignore[attr-defined]


def options() -> Iterator[tuple[str, str]]:
    """Yield our options with type and default, without those of oslo and keystone."""
    from keystoneauth1 import loading

    from os_acc import conf

    theirs = {
        option.dest
        for listed in (
            loading.get_adapter_conf_options(),
            loading.get_session_conf_options(),
            loading.get_auth_common_conf_options(),
            loading.get_auth_plugin_conf_options("v3password"),
            loading.get_auth_plugin_conf_options("password"),
            loading.get_auth_plugin_conf_options("v3applicationcredential"),
        )
        for option in listed
    }
    for group, listed in conf.list_opts():
        name = getattr(group, "name", group)
        yield f"[{name}]", ""
        if name in conf.PRIVSEP_GROUPS:
            continue
        for option in listed:
            if option.dest not in theirs:
                kind = re.sub(r"<.*? at 0x\w+>", "", repr(option.type))
                yield f"[{name}] {option.dest}", f"{kind}, {option.default!r}"


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands with their options, and the other entry points."""
    from os_acc.cmd.main import OsAcc

    config = configparser.ConfigParser(strict=False)
    config.optionxform = str  # type: ignore[assignment,method-assign]
    config.read(TOP / "setup.cfg")
    for group, lines in config["entry_points"].items():
        for line in lines.strip().splitlines():
            name, target = (part.strip() for part in line.split("="))
            if group != "os_acc.cli":
                yield f"{group}: {name}", target
                continue
            module, _, attribute = target.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            words = name.replace("_", " ")
            yield f"os-acc {words}", ""
            parser = command(OsAcc(), None).get_parser(f"os-acc {words}")
            for title in _arguments(parser):
                yield f"os-acc {words} {title}", ""


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments that os_acc adds to those of cliff's base classes."""
    for action in parser._actions:
        title = action.option_strings[-1] if action.option_strings else action.dest
        group = getattr(vars(action)["container"], "title", "")
        if title != "--help" and "formatter" not in group.lower():
            yield title


def keys() -> Iterator[tuple[str, str]]:
    """Yield the names in flavors and in device_spec, with their fixed values."""
    from os_acc.objects import device_spec
    from os_acc.objects.accelerator_request import RequestState
    from os_acc.objects.device_spec_tags import TAG_NAMES
    from os_acc.scheduling import accel_keys

    for key in accel_keys.KEYS:
        yield f"accel:{key}", ", ".join(accel_keys.CHOICES.get(key, ()))
    yield accel_keys.DEVICE_PROFILE, ""
    for name in sorted(TAG_NAMES | device_spec._SELECTORS | device_spec._PARENT_KEYS):
        yield f"device_spec: {name}", ""
    for state in RequestState:
        yield f"state: {state.value}", ""


def main(arguments: list[str]) -> int:
    """Record the API, or print its incompatible changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    found: Any = describe()
    if parser.parse_args(arguments).record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    changes = incompatible(json.loads(RECORD.read_text()), found)
    print("\n".join(changes))
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
