# SPDX-License-Identifier: Apache-2.0

"""``os-acc check``: report whether this host is ready, and how to repair it."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from collections.abc import Iterator

from os_acc import exception
from os_acc.cmd import base, checks, identity
from os_acc.cmd.checks import CheckContext, Severity


class Check(base.Listing):
    """Check whether this host is ready, and show the remedy of each problem.

    Changes nothing. Ends with 1 if a check failed; warnings are not failures.
    """

    def configure(self) -> None:
        self._broken: exception.OsAccError | None = None
        # The other checks still run with a broken configuration.
        try:
            super().configure()
        except exception.InvalidConfiguration as error:
            self._broken = error

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        scene = CheckContext(self.os_acc.config, self.os_acc.root, self._broken)
        findings = list(checks.run(checks.BEFORE, scene))
        with contextlib.suppress(exception.OsAccError):
            # The checks of the state report any error here.
            identity.become_owner(scene.settings.state_path)
        findings += checks.run(checks.CHECKS, scene)
        self.is_failed = any(each.result is Severity.FAILED for each in findings)
        if parsed_args.formatter != "table":
            return _COLUMNS, [
                (each.result.value, each.check, each.what, each.hint or None)
                for each in findings
            ]
        if parsed_args.columns:
            return _COLUMNS, [
                (each.result.value, each.check, _folded(each.what), _folded(each.hint))
                for each in findings
            ]
        # One column for both: the table fits a terminal of 100 columns.
        return _COLUMNS[:3], [
            (each.result.value, each.check, _text(each)) for each in findings
        ]


def _text(finding: checks.Finding) -> str:
    hint = f"\n{_folded(f'hint: {finding.hint}')}" if finding.hint else ""
    return _folded(finding.what) + hint


#: Width of the last column: 100 less the others with their borders.
_WIDTH = 66


def _folded(text: str) -> str:
    # A path that is broken across lines cannot be copied: only a longer one is.
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(part for line in lines for part in _broken(line))


def _broken(line: str) -> Iterator[str]:
    """Yield the parts of a word that is too long, broken after slashes."""
    while len(line) > _WIDTH:
        end = line.rfind("/", 1, _WIDTH) + 1 or _WIDTH
        yield line[:end]
        line = line[end:]
    yield line


_COLUMNS = ("Result", "Check", "What", "Hint")
