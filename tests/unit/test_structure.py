# SPDX-License-Identifier: Apache-2.0

"""The tool for structure figures traces a plug down to the kernel."""

from __future__ import annotations

from pathlib import Path

from tools import structure


def test_a_plug_is_traced_into_the_child_that_writes():
    files, depth = structure.trace_plug()
    entered = {str(Path(each).relative_to(structure.PACKAGE)) for each in files}
    assert {"attach/manager.py", "attach/lifecycle.py", "helper/client.py"} <= entered
    assert not any(each.startswith("testing/") for each in entered)
    # The plug, its thread, and the child process of the privileged call.
    assert depth > 10


def test_a_missed_target_has_a_reason(capsys, monkeypatch):
    rows = list(structure.rows())
    # A measurement takes seconds.
    monkeypatch.setattr(structure, "rows", lambda: iter(rows))
    assert structure.main() == 0
    assert len(capsys.readouterr().out.splitlines()[1:]) == len(rows) == 11
    for row in rows:
        assert row.measured <= row.target or row.reason, row.name
