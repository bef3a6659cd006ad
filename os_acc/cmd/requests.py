# SPDX-License-Identifier: Apache-2.0

"""``os-acc request list``: accelerator requests, and how far they are."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from os_acc.attach.requests import with_plugged
from os_acc.cmd import arguments, base
from os_acc.objects.accelerator_request import AcceleratorRequest

_COLUMNS = ("UUID", "State", "Instance", "Profile", "Group", "Device")
_MORE = ("Provider", "Host", "Reason")


class RequestList(base.Listing):
    """List accelerator requests: what was made of profiles, and what was plugged.

    Changes nothing, and needs no privileged helper.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--instance",
            metavar="UUID",
            type=arguments.uuid,
            help="only those that are, or were last, bound to this one",
        )
        parser.add_argument(
            "--long",
            action="store_true",
            help="show the provider, the host, and why a request has failed as well",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        recorded, long = self.recorded(), parsed_args.long
        host = self.settings.node_name
        found = with_plugged(recorded.requests, recorded.leases, host)
        return _COLUMNS + (_MORE if long else ()), [
            _row(each, long)
            for each in found
            if parsed_args.instance in (None, each.instance)
        ]


def _row(request: AcceleratorRequest, long: bool) -> tuple[Any, ...]:
    binding, lease = request.binding, request.lease
    row = (
        request.uuid,
        request.state.value,
        request.instance,
        request.profile or None,
        request.group,
        str(lease.address) if lease else None,
    )
    if not long:
        return row
    provider, host = (
        (binding.device_rp_uuid, binding.hostname) if binding else (None, None)
    )
    return (*row, provider, host, request.reason or None)
