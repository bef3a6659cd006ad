# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest

from os_acc.testing import TestHost, image_directory
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OTHER_FUNCTION_ID,
    REGION_ID,
)
from tests.unit.cmd.console import Console
from tests.unit.cmd.images import Images


@pytest.fixture
def console(bench: TestHost, tmp_path: Path) -> Console:
    """Return a shell on the two-socket host, configured with all of its devices."""
    return Console(bench, tmp_path)


@pytest.fixture
def images(console: Console) -> Images:
    """Add two valid images that are not fetched yet."""
    place = console.bench.images.path
    console.configure(
        more=f"[os_acc_bitstreams]\nsource = directory\ndirectory = {place}\n"
        "cache_size = 100000000"
    )
    made = Images(place, console)
    made.put(1, image_directory.gbs(REGION_ID, FUNCTION_ID))
    made.put(2, image_directory.gbs(REGION_ID, OTHER_FUNCTION_ID))
    return made
