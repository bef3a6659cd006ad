# SPDX-License-Identifier: Apache-2.0

"""The modules of the manual's build, which are in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOC = Path(__file__).resolve().parents[3] / "doc"


def extension(name: str) -> ModuleType:
    """Return an extension of Sphinx from ``doc/ext``."""
    return _module(DOC / "ext" / f"{name}.py")


def configuration() -> ModuleType:
    """Return the configuration of the build."""
    return _module(DOC / "source/conf.py")


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
