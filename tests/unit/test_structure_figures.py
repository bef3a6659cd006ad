# SPDX-License-Identifier: Apache-2.0

"""The tool for structure figures measures a plug down to the kernel."""

from pathlib import Path

from tools import structure


def test_a_plug_is_measured_into_the_child_that_writes():
    costs = structure.costs(1)
    plug = costs["plug"]
    entered = {str(Path(each).relative_to(structure.PACKAGE)) for each in plug.entered}
    assert {"attach/manager.py", "attach/lifecycle.py", "helper/client.py"} <= entered
    assert not any(each.startswith("testing/") for each in entered)
    # The plug, its thread, and the child process of the privileged call.
    assert plug.frames > 10
    assert plug.calls > costs["unplug"].calls > costs["confirm"].calls > 100


def test_a_plug_reads_the_store_once_and_commits_twice():
    for name, cost in structure.costs(4).items():
        commits = 0 if name == "confirm" else 2
        assert (cost.reads, cost.commits, cost.syncs) == (1, commits, 2 * commits)


def test_a_missed_limit_has_a_reason(capsys, monkeypatch):
    rows = list(structure.rows())
    # A measurement takes seconds.
    monkeypatch.setattr(structure, "rows", lambda: iter(rows))
    assert structure.main() == 0
    assert len(capsys.readouterr().out.splitlines()[1:]) == len(rows) == 23
    for row in rows:
        assert row.measured <= row.limit or row.reason, row.name
