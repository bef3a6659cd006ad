# SPDX-License-Identifier: Apache-2.0

"""Checks of a vendor's plugin against rules of the plugin contract.

The checks need no test framework. A vendor's tests run each on a host of its own. Those
of ``QUICK`` take seconds in all, those of ``KILLS`` a few hundred plugs each::

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=conformance.name_of)
    def test_conforms(check: conformance.Check, tmp_path: Path) -> None:
        with TestHost(tmp_path, HostSpec((CARD,)), enabled_plugins=["acme"]) as host:
            check(host, "acme")
"""

from __future__ import annotations

from typing import Final

from os_acc.testing.conformance.common import Check, RuleBroken
from os_acc.testing.conformance.concurrency import concurrent_plugs_share_no_unit
from os_acc.testing.conformance.discovery import (
    devices_are_valid,
    discovery_is_stable,
    discovery_only_reads,
    names_ignore_usable_functions,
    names_survive_restart,
    names_survive_vfs,
)
from os_acc.testing.conformance.failures import (
    crashes_lose_nothing,
    refused_writes_lose_nothing,
    vanished_functions_lose_nothing,
)
from os_acc.testing.conformance.steps import (
    nothing_is_left_open,
    prepare_is_idempotent,
    release_is_idempotent,
    release_needs_no_prepare,
    release_undoes_a_failed_prepare,
    steps_end_at_the_deadline,
    unplug_restores_the_host,
)

__all__ = [
    "CHECKS",
    "KILLS",
    "QUICK",
    "Check",
    "RuleBroken",
    "crashes_lose_nothing",
    "name_of",
    "refused_writes_lose_nothing",
    "rule_of",
]

#: The checks that need few plugs.
QUICK: Final[tuple[Check, ...]] = (
    devices_are_valid,
    discovery_is_stable,
    discovery_only_reads,
    names_survive_restart,
    names_ignore_usable_functions,
    names_survive_vfs,
    unplug_restores_the_host,
    prepare_is_idempotent,
    release_is_idempotent,
    release_needs_no_prepare,
    release_undoes_a_failed_prepare,
    steps_end_at_the_deadline,
    nothing_is_left_open,
    vanished_functions_lose_nothing,
    concurrent_plugs_share_no_unit,
)
#: The checks that plug once for each touch of the host.
KILLS: Final[tuple[Check, ...]] = (crashes_lose_nothing, refused_writes_lose_nothing)
CHECKS: Final[tuple[Check, ...]] = QUICK + KILLS


def name_of(check: Check) -> str:
    """Return the name of a check, for reports and for the ids of tests."""
    return getattr(check, "__name__", repr(check))


def rule_of(check: Check) -> str:
    """Return the rule that a check is about, as one sentence."""
    return (check.__doc__ or "").partition("\n")[0]
