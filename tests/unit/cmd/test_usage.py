# SPDX-License-Identifier: Apache-2.0

"""All commands share the rules for arguments, output, errors and hints."""

import csv
import io
import json

import pytest
import yaml

from os_acc.cmd import environment
from os_acc.testing import uuid_of

GPU = "0000:17:00.0"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("device", "show"),
        ("device", "show", "17:00"),
        ("device", "adopt", GPU),
        ("device", "adopt", GPU, "--consumer", "me"),
        ("unplug", "not-a-uuid"),
        ("attached", "not-a-uuid"),
        ("plug",),
        ("plug", "--instance", uuid_of(1), "--property", "resources:FPGA=1"),
        ("plug", "--instance", uuid_of(1), "--provider", uuid_of(2), "--property", "x"),
        ("plug", "--instance", uuid_of(1), "--allocations", "/no/such/file"),
        ("plug", "--instance", uuid_of(1), "--allocations", "/dev/null"),
        ("device", "list", "-f", "xml"),
        ("device", "history", "--limit", "0"),
        ("device", "history", "--limit", "1.5"),
        ("bitstream", "fetch"),
        ("bitstream", "fetch", "x", "--timeout", "0"),
        ("bitstream", "fetch", "x", "--timeout", "inf"),
        ("bitstream", "fetch", "x", "--timeout", "soon"),
        ("bitstream", "prune", "--size", "-1"),
        ("bitstream", "prune", "--size", "5 apples"),
        ("request", "show"),
        ("request", "show", "--flavor-file", "/no/such/file"),
        ("request", "notify"),
        ("request", "notify", "x"),
        ("topology", "--cells", "one"),
        ("topology", "--cells", "0,"),
        ("topology", "--cells", "-1"),
        ("topology", "--svg", "/no/such/place.svg"),
        ("topology", "--svg", "/dev/null", "-f", "json"),
        ("topology", "-f", "xml"),
        ("conformance", "--yes", "--device", GPU, "--kills", "2"),
        ("conformance", "--yes", "--device", GPU, "--kills", "0/2"),
        ("conformance", "--yes", "--device", GPU, "--kills", "3/2"),
    ],
)
def test_wrong_usage_ends_with_2_and_changes_nothing(console, arguments):
    with pytest.raises(SystemExit) as ended:
        console.run(*arguments)
    assert ended.value.code == 2
    assert console.bench.kernel.writes() == []


def test_a_misspelt_command_ends_with_2_and_a_suggestion(console):
    ran = console.run("device", "lits")
    assert ran.status == 2
    assert "device list" in ran.out


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (("device", "list", "--lng"), "did you mean --long instead of --lng?"),
        (("device", "list", "--state", "fre"), "did you mean free?"),
        (("device", "list", "-f", "jsn"), "did you mean json?"),
        (("--confg-file", "a", "device", "list"), "did you mean --config-file inst"),
        (("device", "list", "--confg-file=a"), "did you mean --config-file instead"),
        # The option is also missing.
        (("plug", "--instnce", uuid_of(1)), "did you mean --instance instead of"),
        (("topology", "--smulated", "a"), "did you mean --simulated instead of"),
        # These resemble no option.
        (("device", "list", "--quantum"), ""),
        (("device", "list", "--state", "zzzzz"), ""),
        (("--quantum", "device", "list"), ""),
        # An abbreviation, which argparse accepts.
        (("device", "list", "--lon", "surplus"), ""),
        (("plug",), ""),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(console, capsys, arguments, suggested):
    with pytest.raises(SystemExit) as ended:
        console.run(*arguments)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert suggested in shown.splitlines()[-1]
    assert ("did you mean" in shown) is bool(suggested)


def test_an_error_is_a_message_and_a_hint(console):
    ran = console.run("plug", "--instance", uuid_of(1), "--provider", uuid_of(2))
    assert ran.status == 1
    message, hint = ran.err.splitlines()
    assert message.startswith(f"os-acc: resource provider {uuid_of(2)}")
    assert hint.startswith("hint: ")


def test_debug_shows_the_traceback(console):
    ran = console.run("--debug", "plug", "--instance", uuid_of(1))
    assert ran.status == 1
    assert "Traceback" in ran.err
    assert "NotFound" in ran.err


def test_what_could_not_be_undone_is_told_with_the_error(console):
    provider = console.bench.provider("0000:3b:00.0").uuid
    console.bench.kernel.ignore("0000:3b:00.0", "drivers_probe", times=None)
    ran = console.run("plug", "--instance", uuid_of(1), "--provider", provider)
    assert ran.status == 1
    assert "cannot give 0000:3b:00.0 back" in ran.err


@pytest.mark.parametrize(("more", "is_told"), [((), False), (("-v",), True)])
def test_what_is_refused_does_not_clutter_other_commands(console, more, is_told):
    assert ("not offered" in console.run(*more, "unplug", uuid_of(1)).err) is is_told


def test_every_listing_speaks_json_yaml_csv_and_tables(console):
    rows = console.json("device", "list")
    assert yaml.safe_load(console.run("device", "list", "-f", "yaml").out) == rows
    text = console.run("device", "list", "-f", "csv").out
    in_csv = list(csv.DictReader(io.StringIO(text)))
    assert [row["Address"] for row in in_csv] == [row["Address"] for row in rows]
    # A missing value is empty, and not a driver named None.
    assert {row["Consumer"] for row in in_csv} == {""}
    assert "| Address" in console.run("device", "list").out


@pytest.mark.parametrize("command", ["device list", "provider list"])
def test_who_names_no_device_is_told_where_to(console, command):
    text = console.config_file.read_text()
    console.config_file.write_text(text.replace("\ndevice_spec", "\n#"))
    ran = console.run(*command.split(), "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    (line,) = ran.err.splitlines()
    assert line.startswith("os-acc: device_spec is empty: ")
    assert "[os_acc] device_spec" in line
    assert line.endswith(str(console.config_file))


@pytest.mark.parametrize("command", ["device list", "provider list"])
def test_who_has_no_configuration_is_told_how_to_pass_one(
    console, monkeypatch, command
):
    monkeypatch.setattr(environment, "read_files", lambda _config: ())
    console.configure("[]")
    (line,) = console.run(*command.split()).err.splitlines()
    assert environment.NAME_IT in line


@pytest.mark.parametrize("command", ["device list", "provider list", "attached"])
def test_where_there_is_something_to_list_there_is_nothing_to_remark(console, command):
    console.bench.plug(1, GPU)
    assert console.run(*command.split()).err == ""


@pytest.mark.parametrize(
    ("of", "who"), [((), "any instance"), ((uuid_of(2),), uuid_of(2))]
)
def test_who_has_nothing_is_told_so(console, of, who):
    ran = console.run("attached", *of, "-f", "json")
    assert (ran.status, json.loads(ran.out)) == (0, [])
    (line,) = ran.err.splitlines()
    assert line.startswith(f"os-acc: no accelerator of {who} ")
    assert console.bench.state_path in line


@pytest.mark.parametrize("kind", ["file", "dir"])
def test_a_configuration_that_is_missing_is_an_error(console, tmp_path, kind):
    missing = tmp_path / "missing"
    ran = console.run(f"--config-{kind}", str(missing), "device", "list")
    assert ran.status == 1
    message, hint = ran.err.splitlines()
    assert message.startswith("os-acc: configuration ")
    assert message.endswith(f"{missing} does not exist")
    assert hint.startswith("hint: ")


def test_a_directory_is_no_configuration_file(console, tmp_path):
    ran = console.run("--config-file", str(tmp_path), "device", "list")
    assert ran.status == 1
    assert ran.err.startswith("os-acc: cannot read the configuration")


def test_a_demo_in_a_place_that_is_in_use_is_an_error(console, tmp_path):
    # The simulated host does not use this configuration.
    console.config_file.write_text("no section\n")
    ran = console.run("demo", "--keep", str(tmp_path))
    assert ran.status == 1
    assert ran.err.splitlines() == [
        f"os-acc: {tmp_path} is not empty",
        "hint: name a new directory",
    ]


@pytest.mark.parametrize(
    "more", ["plug_timeout = soon", "device_spec = {", "enabled_plugins = none_such"]
)
def test_a_wrong_option_is_an_error(console, more):
    console.configure(more=more)
    ran = console.run("device", "list")
    assert ran.status == 1
    assert ran.err.startswith("os-acc: ")


def test_an_entry_that_is_no_json_is_named_by_file_and_line(console):
    console.configure('{"vendor_id": "10de"}', '{"vendor_id": "10de",}')
    ran = console.run("device", "list")
    assert ran.status == 1
    lines = console.config_file.read_text().splitlines()
    number = lines.index('device_spec = {"vendor_id": "10de",}') + 1
    assert f"{console.config_file}, line {number}: " in ran.err
    assert "is not JSON" in ran.err
