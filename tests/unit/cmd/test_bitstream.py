# SPDX-License-Identifier: Apache-2.0

"""``os-acc bitstream`` lists, fetches, prunes and verifies images."""

import io
import json
import os
import time
from pathlib import Path

import pytest

from os_acc.cmd.bitstream import BitstreamFetch
from os_acc.cmd.main import OsAcc
from os_acc.objects.bitstream import Image
from tests.unit.bitstreams.fake_source import id_of
from tests.unit.bitstreams.image_examples import FUNCTION_ID, REGION_ID
from tests.unit.cmd.console import Terminal
from tests.unit.cmd.images import Images

MIB = 1 << 20


def about(images: Images, number: int) -> Image:
    return images.library().about(id_of(number), time.monotonic() + 60)


def file_name(image: Image) -> str:
    return f"{image.hash_algo}-{image.hash_value}"


def test_nothing_is_there_at_first(console, images):
    for command in ("list", "verify", "prune"):
        assert console.json("bitstream", command) == []
    assert images.cached == set()


def test_images_are_fetched_by_id_and_by_name(console, images):
    fetched = console.json("bitstream", "fetch", id_of(1), "loopback2", "--long")
    assert [row["ID"] for row in fetched] == [id_of(1), id_of(2)]
    first = about(images, 1)
    assert fetched[0] == {
        "ID": id_of(1),
        "Name": "loopback1",
        "Hash Algorithm": "sha256",
        "Hash": first.hash_value,
        "Size": first.size,
        "Format": "gbs",
        "Built For": REGION_ID,
        "Functions": [FUNCTION_ID],
    }
    assert images.cached == {file_name(about(images, each)) for each in (1, 2)}
    assert console.bench.kernel.writes() == []


def test_what_is_there_is_listed(console, images):
    console.json("bitstream", "fetch", id_of(1))
    first = about(images, 1)
    path = f"{console.bench.state_path}/bitstreams/{file_name(first)}"
    os.utime(path, (1_700_000_000, 1_700_000_000))
    row = {
        "Hash Algorithm": "sha256",
        "Hash": first.hash_value,
        "Size": first.size,
        "Last Used": "2023-11-14T22:13:20+00:00",
        "In Use": False,
    }
    assert console.json("bitstream", "list") == [row]
    with images.library().fetched(first, time.monotonic() + 60):
        (now,) = console.json("bitstream", "list")
    assert now["In Use"] is True
    assert now["Last Used"] > row["Last Used"]


def test_names_are_shown_on_request(console, images):
    console.run("bitstream", "fetch", id_of(1))
    (row,) = console.json("bitstream", "list", "--names")
    (fetched,) = console.json("bitstream", "fetch", id_of(1))
    assert row["Names"] == [fetched["Name"]]
    assert "Names" not in console.json("bitstream", "list")[0]


def test_without_an_answer_the_images_are_listed_without_names(console, images):
    console.run("bitstream", "fetch", id_of(1))
    console.configure()
    ran = console.run("bitstream", "list", "--names", "-f", "json")
    assert ran.status == 0
    assert [row["Names"] for row in json.loads(ran.out)] == [[]]
    assert "the names are unknown" in ran.err


def test_what_does_not_exist_is_told(console, images):
    ran = console.run("bitstream", "fetch", "nothing")
    assert ran.status == 1
    assert ran.err.startswith(
        "os-acc: no image with the tag FPGA has the name 'nothing'"
    )


def test_verifying_tells_and_drops_what_was_altered(console, images):
    console.json("bitstream", "fetch", id_of(1), id_of(2))
    first, second = about(images, 1), about(images, 2)
    path = Path(console.bench.state_path, "bitstreams", file_name(first))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    ran = console.run("bitstream", "verify", "-f", "json")
    assert ran.status == 1
    results = {row["Hash"]: row["Result"] for row in json.loads(ran.out)}
    assert results == {first.hash_value: "altered", second.hash_value: "sound"}
    assert images.cached == {file_name(second)}
    assert [row["Result"] for row in console.json("bitstream", "verify")] == ["sound"]
    console.json("bitstream", "fetch", id_of(1))
    assert path.read_bytes() == content


def test_pruning_keeps_what_is_in_use_and_as_much_as_is_said(console, images):
    first, second = about(images, 1), about(images, 2)
    with images.library().fetched(first, time.monotonic() + 60):
        console.json("bitstream", "fetch", id_of(2))
        assert console.json("bitstream", "prune", "--size", "1MiB") == []
        (gone,) = console.json("bitstream", "prune")
        assert gone["Hash"] == second.hash_value
        assert images.cached == {file_name(first)}
    assert len(console.json("bitstream", "prune", "--size", "0")) == 1
    assert images.cached == set()


@pytest.mark.parametrize("command", [("fetch", id_of(1)), ("verify",), ("prune",)])
def test_without_a_state_directory_none_is_made(console, images, command):
    os.rmdir(console.bench.state_path)
    ran = console.run("bitstream", *command)
    assert ran.status == 1
    assert ran.err.startswith("os-acc: state directory")
    assert not os.path.exists(console.bench.state_path)
    assert console.json("bitstream", "list") == []


def reported(stream: io.StringIO, *reports: tuple[int, int | None]) -> str:
    """Return what a download of the image prints."""
    command = BitstreamFetch(OsAcc(stdout=io.StringIO(), stderr=stream), None)
    for done, size in reports:
        command.report("loopback", done, size)
    command.end_progress()
    return stream.getvalue()


def test_a_bar_fills_on_a_terminal():
    done = (0, MIB, MIB + 1, 3 * MIB, 4 * MIB)
    text = reported(Terminal(), *((each, 4 * MIB) for each in done))
    lines = text.split("\r\033[K")[1:]
    assert [line.partition("] ")[2].strip() for line in lines] == [
        "0 % of 4.0 MiB",
        "25 % of 4.0 MiB",
        "75 % of 4.0 MiB",
        "100 % of 4.0 MiB",
    ]
    assert [line.count("#") for line in lines] == [0, 7, 22, 30]
    assert text.endswith("\n")


def test_a_size_that_nobody_knows_is_no_bar():
    assert reported(Terminal(), (5 * MIB, None)) == "\r\033[Kloopback 5 MiB\n"


def test_where_nothing_is_fetched_nothing_is_shown():
    assert reported(Terminal()) == ""


def test_a_file_gets_no_bar(console, images):
    assert reported(io.StringIO(), (MIB, None)) == ""
    assert console.run("bitstream", "fetch", id_of(1)).err == ""
