# SPDX-License-Identifier: Apache-2.0

"""``os-acc region`` lists FPGA regions, and programs them again after a guest."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.testing import TestHost
from tests.unit import acme_card, signed_card
from tests.unit.cmd.console import Console
from tests.unit.cmd.golden_files import expect
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    OTHER_CARD,
    VFS,
    function_trait,
    held,
    traits,
    upload,
)

IMAGE = uuid.UUID(int=0x1D3F5B7A2C4E4F60A1B2C3D4E5F60718, version=4)
TAGGED = '{"address": "*:*:*.*", "trust_guest_contents": "true"}'


@pytest.fixture
def console(
    make_fpgas: Callable[..., TestHost],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Console:
    """Return a shell on a host with two cards; a guest has had the first one."""
    bench = make_fpgas()
    with monkeypatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: IMAGE)
        upload(bench)
    bench.plug(9, function_id=GZIP, attach_target="none")
    bench.unplug(9)
    bench.plug(1, CARD)
    bench.kernel.program_as_guest(CARD, CRYPTO)
    bench.unplug(1)
    shell = Console(bench, tmp_path)
    configure(shell)
    return shell


def configure(console: Console, *specs: str) -> None:
    """Write the console's configuration with the host's images."""
    place = console.bench.images.path
    console.configure(
        *specs, more=f"[os_acc_bitstreams]\nsource = directory\ndirectory = {place}"
    )


def test_each_function_of_a_region_is_listed(two_functions, tmp_path):
    acme_card.hold(two_functions, GZIP, CRYPTO)
    two_functions.provider(acme_card.PF)
    console = Console(two_functions, tmp_path)
    console.configure(VFS)
    (row,) = console.json("region", "list")
    assert row["Functions"] == [GZIP, CRYPTO]
    table = console.run("region", "list").out
    assert GZIP in table
    assert CRYPTO in table


def test_a_region_that_the_operator_accepts_is_listed_so(console):
    configure(console, TAGGED)
    states = [row["State"] for row in console.json("region", "list")]
    assert states == ["accepted", "verified"]


def test_a_half_programmed_region_is_listed_so(console):
    console.bench.kernel.fail_programming(CARD, "reconfig CRC error")
    assert console.run("region", "program", CARD).status == 1
    (state, _other) = (row["State"] for row in console.json("region", "list"))
    assert state == "unverified"


def test_a_region_is_programmed_with_its_recorded_image(console):
    row = console.json("region", "program", CARD)
    assert (row["Functions"], row["State"]) == ([GZIP], "verified")
    assert held(console.bench) == GZIP
    console.bench.restart()
    assert function_trait(GZIP) in traits(console.bench)


def test_a_region_is_programmed_with_a_named_image(console):
    image = upload(console.bench, "crypto", CRYPTO)
    for name in ("crypto", image):
        row = console.json("region", "program", OTHER_CARD, "--image", name)
        assert (row["Functions"], row["Recorded Image"]) == ([CRYPTO], image)


def test_a_region_is_verified_by_its_hardware(console, install_plugins):
    install_plugins(dfl=signed_card.PLUGIN)
    row = console.json("region", "verify", CARD)
    assert (row["Functions"], row["State"]) == ([CRYPTO], "verified")
    assert row["Recorded Image"] == str(IMAGE)


def test_a_region_in_a_guest_is_refused_with_a_hint(console):
    console.bench.plug(2, CARD)
    ran = console.run("region", "program", CARD)
    assert ran.status == 1
    assert f"{CARD} is leased to" in ran.err
    assert "hint: it can be programmed when that guest has ended" in ran.err


def test_a_device_without_a_region_is_refused(console):
    ran = console.run("region", "program", "0000:00:00.0")
    assert ran.status == 1
    assert "no FPGA region is offered at 0000:00:00.0" in ran.err


def test_the_check_warns_of_functions_that_guests_can_forge(console):
    assert "guest contents" not in console.checks()
    configure(console, TAGGED)
    (row,) = console.checks()["guest contents"]
    assert row["Result"] == "warning"
    assert f"{CARD}, {OTHER_CARD}" in row["What"]


def test_what_the_manual_shows_of_regions(console):
    def shown(name: str, *arguments: str) -> None:
        ran = console.run(*arguments)
        assert ran.status == 0, ran.err
        expect(f"{name}.txt", ran.out)

    before = console.bench.kernel.writes()
    shown("region-list", "region", "list")
    assert console.bench.kernel.writes() == before
    refused = console.run("region", "verify", CARD)
    assert refused.status == 1
    lines = refused.err.splitlines(keepends=True)
    # Each helper warns that root has not limited it.
    expect("region-verify.txt", "".join(each for each in lines if "WARN" not in each))
    shown("region-program", "region", "program", CARD)
    assert json.loads(console.run("region", "list", "-f", "json").out)[0]["State"] == (
        "verified"
    )
