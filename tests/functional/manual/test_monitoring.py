# SPDX-License-Identifier: Apache-2.0

"""Prometheus and node_exporter accept the files for monitoring in ``etc``."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml
from prometheus_client import parser

from tests.unit.cmd import monitored_host

ETC = Path(__file__).parents[3] / "etc"
RULES = ETC / "prometheus/os-acc.rules.yml"
ALERTS = Path(__file__).with_name("alerts.yml")
SERVICE = ETC / "systemd/system/os-acc-metrics.service"
#: Seconds in which node_exporter begins to listen.
LONG = 60
_ADDRESS = re.compile(r'msg="Listening on" address=(\S+)')


def promtool(*words: str, standard_input: str = "") -> str:
    """Run promtool; return its output, warnings included."""
    done = subprocess.run(
        ["promtool", *words],
        input=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def alerts() -> set[str]:
    """Return the names of the alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_promtool_accepts_the_alerts() -> None:
    output = promtool("check", "rules", str(RULES))
    assert f"{len(alerts())} rules found" in output


def test_each_alert_fires_and_is_quiet_on_a_healthy_host() -> None:
    promtool("test", "rules", str(ALERTS))
    ill, healthy = yaml.safe_load(ALERTS.read_text())["tests"]
    firing, quiet = (
        {
            each["alertname"]
            for each in test["alert_rule_test"]
            if bool(each["exp_alerts"]) is fires
        }
        for test, fires in ((ill, True), (healthy, False))
    )
    assert firing == quiet == alerts()


def test_the_samples_for_the_alerts_are_those_of_the_command(tmp_path: Path) -> None:
    text = monitored_host.exposition(tmp_path)
    printed = {
        (sample.name, *sorted(sample.labels))
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    for test in yaml.safe_load(ALERTS.read_text())["tests"]:
        for each in test["input_series"]:
            name, _, labels = each["series"].partition("{")
            names = sorted({*re.findall(r'(\w+)="', labels)} - {"instance"})
            assert (name, *names) in printed | {("node_textfile_mtime_seconds", "file")}


def test_promtool_accepts_the_metrics(tmp_path: Path) -> None:
    text = monitored_host.exposition(tmp_path)
    assert promtool("check", "metrics", standard_input=text) == ""


def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads((ETC / "grafana/os-acc.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [
        {"record": f"query:{number}", "expr": query}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(file))


@contextlib.contextmanager
def node_exporter(directory: Path, log: Path) -> Iterator[str]:
    """Run node_exporter with its textfile collector; yield its URL."""
    command = [
        "prometheus-node-exporter",
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={directory}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("w") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            until = time.monotonic() + LONG
            while not (found := _ADDRESS.search(log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            yield f"http://{found[1]}/metrics"
        finally:
            process.kill()


def run_the_service(directory: Path, place: Path) -> None:
    """Run the command of the service as systemd does, on a simulated host.

    :param directory: that of the collector.
    """
    host = str(place / "host")
    program = str(Path(sys.executable).with_name("os-acc"))
    subprocess.run([program, "demo", "--keep", host], check=True, capture_output=True)
    simulated = shlex.join([program, "--simulated", host])
    (place / "os-acc").write_text(f'#!/bin/sh\nexec {simulated} "$@"\n')
    (place / "os-acc").chmod(0o755)
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(SERVICE)
    name, _, _ = unit["Service"]["Environment"].partition("=")
    command = unit["Service"]["ExecStart"].replace(f"${{{name}}}", str(directory))
    environment = {**os.environ, "PATH": f"{place}:/usr/bin:/bin"}
    subprocess.run(shlex.split(command), env=environment, check=True)


def test_node_exporter_reads_the_file_of_the_service(tmp_path: Path) -> None:
    directory = tmp_path / "collector"
    directory.mkdir()
    run_the_service(directory, tmp_path)
    (file,) = directory.iterdir()
    with (
        node_exporter(directory, tmp_path / "log") as url,
        urllib.request.urlopen(url) as answer,
    ):
        served = answer.read().decode()
    families = {
        family.name: family for family in parser.text_string_to_metric_families(served)
    }
    written = list(parser.text_string_to_metric_families(file.read_text()))
    assert "os_acc_up" in {each.name for each in written}
    for each in written:
        found = families[each.name]
        assert (found.type, found.documentation) == (each.type, each.documentation)
        assert sorted(map(str, found.samples)) == sorted(map(str, each.samples))
    (failed,) = families["node_textfile_scrape_error"].samples
    assert failed.value == 0
    # The alert on an old file selects it by this label.
    (time_of_file,) = families["node_textfile_mtime_seconds"].samples
    assert time_of_file.labels == {"file": str(file)}
    assert file.name == "os_acc.prom"
