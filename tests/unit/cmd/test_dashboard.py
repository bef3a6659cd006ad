# SPDX-License-Identifier: Apache-2.0

"""The alerts and the dashboard ask for metrics and labels that exist."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import parser

from os_acc.cmd import metrics
from os_acc.cmd.device_states import DeviceStatus
from tests.unit.cmd import monitored_host

ETC = Path(__file__).parents[3] / "etc"
DASHBOARD = json.loads((ETC / "grafana/os-acc.json").read_text())
PANELS = DASHBOARD["panels"]
RULES = [
    rule
    for group in yaml.safe_load((ETC / "prometheus/os-acc.rules.yml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
]
QUERIES = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
]
#: Those of node_exporter, of the file; Prometheus adds the labels of the target.
OF_THE_FILE = {"node_textfile_mtime_seconds": {"file"}}
OF_THE_TARGET = {"instance", "job"}
GRID = 24
_SELECTOR = re.compile(r"\b((?:os_acc|node)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|ignoring) \(([^)]*)\)")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the labels of each metric that the command prints."""
    text = monitored_host.exposition(tmp_path_factory.mktemp("host"))
    return {
        sample.name: set(sample.labels)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    } | OF_THE_FILE


def test_the_host_has_a_sample_of_each_metric(labels):
    source = Path(metrics.__file__).read_text()
    assert labels.keys() - OF_THE_FILE == set(re.findall(r'"(os_acc_\w+)"', source))


def missing(query: str, known: dict[str, set[str]]) -> Iterator[str]:
    """Yield the metrics and labels of a query that no sample has."""
    of_query = set(OF_THE_TARGET)
    for name, matchers in _SELECTOR.findall(query):
        if name not in known:
            yield name
        of_metric = known.get(name, set()) | OF_THE_TARGET
        of_query |= of_metric
        for label, state in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
            if label not in of_metric:
                yield f"{name}{{{label}}}"
            if label == "state" and state not in {each.value for each in DeviceStatus}:
                yield state
    for names in _GROUPING.findall(query):
        yield from set(names.split(", ")) - of_query


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_is_on_metrics_and_labels_that_exist(query, labels):
    assert _SELECTOR.search(query)
    assert list(missing(query, labels)) == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("os_acc_down == 1", ["os_acc_down"]),
        ('os_acc_up{host="a"}', ["os_acc_up{host}"]),
        ('os_acc_leases{state="lost"}', ["lost"]),
        ("sum by (state, owner) (os_acc_leases)", ["owner"]),
    ],
)
def test_a_query_on_another_one_is_found(query, found, labels):
    assert list(missing(query, labels)) == found


def test_each_alert_has_a_summary_and_an_action():
    assert all({"summary", "action"} == set(rule["annotations"]) for rule in RULES)


def test_a_legend_shows_labels_of_its_query(labels):
    targets = [target for panel in PANELS for target in panel["targets"]]
    for target in targets:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = _GROUPING.search(target["expr"])
        (name, _), *_ = _SELECTOR.findall(target["expr"])
        assert shown <= (
            set(kept[1].split(", ")) if kept else labels[name] | OF_THE_TARGET
        )


def test_panels_have_ids_of_their_own_and_queries_of_the_selected_hosts():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) > 10
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        ids = [target["refId"] for target in panel["targets"]]
        assert len(set(ids)) == len(ids) > 0
        for target in panel["targets"]:
            selectors = _SELECTOR.findall(target["expr"])
            assert all('instance=~"$instance"' in each for _, each in selectors)


def test_the_variables_of_the_queries_exist():
    names = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = re.findall(r"\$\{?(\w+)", json.dumps(PANELS))
    assert set(used) == names


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Return the cells of the grid that a panel covers."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_panels_fill_the_width_and_do_not_overlap():
    covered = [cell for panel in PANELS for cell in cells(panel)]
    assert len(set(covered)) == len(covered)
    rows = {row for _, row in covered}
    assert set(covered) == set(itertools.product(range(GRID), rows))
