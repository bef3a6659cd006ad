# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "doc/source"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the manual for man; the directory has its doctrees, too."""
    place = tmp_path_factory.mktemp("man")
    builder = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "man"]
    places = ["-d", place / "doctrees", SOURCE, place]
    subprocess.run([*builder, *places], check=True)
    return place
