# SPDX-License-Identifier: Apache-2.0

"""``os-acc request``: a flavor's request groups, and accelerator requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any
from urllib import parse

from os_acc import exception
from os_acc.attach.external_events import NovaEvents
from os_acc.attach.requests import with_plugged
from os_acc.cmd import arguments, base
from os_acc.objects.accelerator_request import AcceleratorRequest, check_found
from os_acc.objects.request_group import AttachTarget, RequestGroup
from os_acc.profiles import expansion
from os_acc.scheduling import allocation_candidates, extra_specs

_MIB_PER_GIB = 1024


class RequestShow(base.Showing):
    """Show the request groups of a flavor, and Nova's query for them.

    Nova sends this query to Placement when it looks for a host. Nova's own
    additions (for pinned CPUs, ports, PCI devices) are not in it.
    Changes nothing. The device profile of the flavor, if any, is read from
    the source in [os_acc_profiles].
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_properties(
            parser,
            "an extra spec, as of 'openstack flavor set'; may be given several times",
        )
        parser.add_argument(
            "--flavor-file",
            metavar="FILE",
            dest="flavor",
            type=arguments.json_file,
            help="the output of 'openstack flavor show -f json'; '-' reads standard "
            "input. The flavor's VCPUs, memory and disk are requested as well",
        )
        parser.add_argument(
            "--limit",
            metavar="NUMBER",
            type=int,
            default=allocation_candidates.LIMIT,
            help="the largest number of candidates that Nova requests, as in its "
            "[scheduler] max_placement_results; default: 1000",
        )

    def configure(self) -> None:
        """Read no configuration yet; only the lookup of profiles needs it."""

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        given = arguments.distinct(parsed_args.property)
        if not given and parsed_args.flavor is None:
            self._parser.error("give at least one of --property and --flavor-file")
        properties, amounts = _flavor(parsed_args.flavor)
        specs = {**properties, **given}
        # First, since ignored keys may cause later errors.
        for key in extra_specs.overlooked(specs):
            self.remark(
                f"extra spec {exception.show(key)} has no effect: Nova ignores it"
            )
        request = extra_specs.parse(self._expanded(specs))
        if amounts:
            request = allocation_candidates.filled(request, **amounts)
        query = allocation_candidates.query(request, parsed_args.limit)
        for name in allocation_candidates.miscounted(request):
            self.remark(
                "both the unnumbered group and a numbered one request "
                f"{name}: Placement 16 may allocate too much of it, unless "
                "group_policy is none"
            )
        return _COLUMNS, (
            base.Formatted(
                [_values(each) for each in request.groups],
                "\n".join(line for each in request.groups for line in _lines(each)),
            ),
            request.policy.value if request.policy else None,
            allocation_candidates.MICROVERSION,
            base.Formatted(f"{_PATH}?{query}", _query_lines(query)),
        )

    def _expanded(self, specs: Mapping[str, object]) -> object:
        """Return the extra specs, with the groups of the device profile added."""
        if not expansion.named(specs):
            return specs
        self.os_acc.configure()
        profiles = expansion.ProfileLookup(self.os_acc.config)
        found = profiles.expanded(specs, self.deadline())
        if found.unreadable:
            self.remark(
                "not shown: the groups of device profile "
                f"{exception.show(found.unreadable)}, which Nova adds: no source "
                "of device profiles is configured in [os_acc_profiles]"
            )
        return found.specs


def _flavor(printed: Any) -> tuple[Mapping[str, object], dict[str, int]]:
    """Read a flavor as printed by ``openstack flavor show -f json``.

    :param printed: parsed JSON; None for no flavor.
    :return: the extra specs, and the standard resources that Nova requests for each
        server: the root, ephemeral and swap disk together, in GiB.
    :raises InvalidInput: it is no flavor.
    """
    if printed is None:
        return {}, {}
    if not isinstance(printed, Mapping):
        raise _no_flavor(f"{exception.show(printed)} is not a flavor")
    properties = printed.get("properties")
    if not isinstance(properties, Mapping):
        raise _no_flavor(f"the flavor's properties are {exception.show(properties)}")
    disk = _number(printed, "disk")
    disk += _number(printed, "OS-FLV-EXT-DATA:ephemeral")
    # In whole GiB, as Nova rounds it.
    disk += -(-_number(printed, "swap") // _MIB_PER_GIB)
    return properties, {
        "vcpus": _number(printed, "vcpus"),
        "memory_mb": _number(printed, "ram"),
        "disk_gb": disk,
    }


def _number(printed: Mapping[str, object], name: str) -> int:
    # Older clients print nothing for no swap.
    value = printed.get(name) or 0
    if type(value) is not int:
        raise _no_flavor(
            f"the flavor's {name} is {exception.show(value)}, not a number"
        )
    return value


def _no_flavor(message: str) -> exception.InvalidInput:
    hint = "pass what 'openstack flavor show FLAVOR -f json' prints"
    return exception.InvalidInput(message, hint=hint)


def _values(group: RequestGroup) -> dict[str, Any]:
    """Return a group for programs."""
    return {
        "suffix": group.suffix,
        "resources": dict(group.resources),
        "required": sorted(group.required),
        "forbidden": sorted(group.forbidden),
        "programmed_with": str(group.bitstream_request)
        if group.bitstream_request
        else None,
        "attach_target": group.attach_target.value,
        "numa_policy": group.numa_policy and group.numa_policy.value,
    }


def _query_lines(query: str) -> str:
    first, *others = [f"{name}={value}" for name, value in parse.parse_qsl(query)]
    return "\n".join((_PATH, f"  ?{first}", *(f"  &{each}" for each in others)))


def _lines(group: RequestGroup) -> Iterable[str]:
    yield f"group {group.suffix}:" if group.suffix else "unnumbered:"
    for name, amount in group.resources:
        yield f"  {amount} {name}"
    for name in sorted(group.required):
        yield f"  with {name}"
    for name in sorted(group.forbidden):
        yield f"  without {name}"
    if group.bitstream_request:
        yield f"  programmed with {group.bitstream_request}"
    if group.attach_target is not AttachTarget.VM:
        yield f"  attach_target {group.attach_target.value}"
    if group.numa_policy:
        yield f"  numa_policy {group.numa_policy.value}"


_PATH = "/allocation_candidates"
_COLUMNS = ("Groups", "Group Policy", "Microversion", "Query")


class RequestList(base.Listing):
    """List accelerator requests: those of device profiles, and those of plugs.

    Changes nothing, and needs no privileged helper.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--instance",
            **arguments.UUID,
            help="show only requests that are, or were last, bound to this instance",
        )
        parser.add_argument(
            "--long",
            action="store_true",
            help="also show the provider, the host, and the reason of a failure",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        recorded, instance = self.recorded(), parsed_args.instance
        host = self.settings.node_name
        found = with_plugged(recorded.requests, recorded.leases, host)
        return base.table(
            _LISTED | _LONG if parsed_args.long else _LISTED,
            (each for each in found if instance in (None, each.instance)),
        )


_LISTED: base.Columns[AcceleratorRequest] = {
    "UUID": lambda each: each.uuid,
    "State": lambda each: each.state.value,
    "Instance": lambda each: each.instance,
    "Profile": lambda each: each.profile or None,
    "Group": lambda each: each.group,
    "Device": lambda each: str(each.lease.address) if each.lease else None,
}
_LONG: base.Columns[AcceleratorRequest] = {
    "Provider": lambda each: each.binding.device_rp_uuid if each.binding else None,
    "Host": lambda each: each.binding.hostname if each.binding else None,
    "Reason": lambda each: each.reason or None,
}


class RequestNotify(base.Listing):
    """Send the events of accelerator requests to Nova.

    Nova waits for these events before it starts a guest. Each bound request, and
    each one whose binding failed, has an event; an accelerator of a plug has none.
    The command changes no request, may be repeated, and needs no privileged helper.
    The credentials are in [os_acc_nova]. Ends with 1 if Nova refuses an event.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "uuids",
            **arguments.UUID,
            nargs="+",
            help="an accelerator request (see 'os-acc request list')",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        recorded, uuids = self.recorded(), frozenset(parsed_args.uuids)
        found = tuple(each for each in recorded.requests if each.uuid in uuids)
        check_found(uuids, found, recorded.leases)
        report = NovaEvents(self.os_acc.config).notify(found, self.deadline())
        self.is_failed = bool(report["refused"])
        results = dict.fromkeys(report["sent"], "sent")
        results |= dict.fromkeys(report["unresolved"], "no event yet")
        results |= {each["uuid"]: each["error"] for each in report["refused"]}
        return ("UUID", "State", "Instance", "Result"), [
            (each.uuid, each.state.value, each.instance, results[each.uuid])
            for each in found
        ]
