# SPDX-License-Identifier: Apache-2.0

"""XRT's tools are run by a helper in a separate process, as in service."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc.bitstreams import formats
from os_acc.bitstreams.options import DIRECTORY
from os_acc.helper.client import Helper
from os_acc.host import xrt
from os_acc.objects.image import Bitstream, Image
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region
from os_acc.testing import bitstreams
from tests.functional.host.plugins.xrt.xrt_host import (
    ADDER,
    INTERFACE,
    MANAGEMENT,
    XrtHost,
    two_cards,
)


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[XrtHost]:
    with XrtHost(tmp_path, two_cards(), separate_helper=True) as cards:
        yield cards


def cached(cards: XrtHost) -> Bitstream:
    """Put an xclbin into the cache, and return it as a verified bitstream."""
    content = bitstreams.xclbin(INTERFACE)
    digest = hashlib.sha512(content).hexdigest()
    place = Path(cards.state_path, DIRECTORY)
    place.mkdir(parents=True)
    path = place / f"sha512-{digest}"
    path.write_bytes(content)
    with path.open("rb") as file:
        header = formats.read_header(file, len(content))
    image = Image(
        id="3a7f8f6c-0a1b-4c5d-9e8f-001122334455",
        name="adder",
        status="active",
        visibility="public",
        hidden=False,
        owner="",
        size=len(content),
        disk_format="raw",
        container_format="bare",
        hash_algo="sha512",
        hash_value=digest,
        tags=frozenset(),
        properties={},
    )
    return Bitstream(image, str(path), len(content), header)


def test_the_helper_finds_file_and_tools_by_its_own_configuration(cards: XrtHost):
    card = xrt.read_management(cards.root, PciAddress.parse(MANAGEMENT))
    assert card is not None
    function = card.function
    region = Region(function.address, function.identity, 1, card.interface_id, None)
    deadline = time.monotonic() + 120
    assert Helper(60).load_xclbin(region, cached(cards), 1, deadline) == ADDER
    assert cards.ran() == ["xbmgmt works", "xbutil works", "xocl taken over"]
    for run in cards.runs()[:2]:
        assert int(run["capabilities"], 16) == 0
        # The tool inherits neither the helper's channel nor its files.
        assert len(run["files"]) == 5, run["files"]
