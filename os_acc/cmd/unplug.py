# SPDX-License-Identifier: Apache-2.0

"""``os-acc unplug``: what Nova does after a guest has ended, by hand."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

from os_acc import exception, service
from os_acc.cmd import arguments, base
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store import readonly


class Unplug(base.Showing):
    """Give back all accelerators of an instance.

    Ends with 1 where a device of the instance stays quarantined.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "uuid", metavar="UUID", type=arguments.uuid, help="of the instance"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Any]]:
        before = self._recorded(parsed_args.uuid)
        manager = self.manager()
        try:
            manager.unplug({"uuid": parsed_args.uuid})
        finally:
            left = manager.store.leases(parsed_args.uuid)
            self._report(left)
        released = before - {lease.uuid for lease in left}
        return ("Consumer", "Released"), (parsed_args.uuid, len(released))

    def _report(self, left: Sequence[Lease]) -> None:
        """Name each device that waits for an operator, and the way out."""
        for lease in left:
            if lease.state is LeaseState.QUARANTINED:
                self.is_failed = True
                self.remark(f"{lease.address} is quarantined: {lease.reason}")
                self.app.stderr.write(f"hint: os-acc device release {lease.address}\n")

    def _recorded(self, consumer: str) -> set[str]:
        # An unplug that was begun earlier is finished as soon as there is a
        # manager, and would not count.
        with contextlib.suppress(exception.StateUnavailable):
            found = readonly.read(self.settings.state_path, service.STORE_SECONDS)
            return {each.uuid for each in found.leases if each.consumer == consumer}
        return set()
