# SPDX-License-Identifier: Apache-2.0

"""Checks of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.cmd import configuration as files
from os_acc.cmd.checks import option_names as names
from os_acc.cmd.checks.context import (
    CheckContext,
    Finding,
    failed,
    ok,
    unknown_name,
    warning,
)
from os_acc.host import numa
from os_acc.numa import network_options
from os_acc.objects.device_spec import DeviceSpec, DeviceSpecEntry
from os_acc.objects.numa import NUMACell


def configuration(context: CheckContext) -> Iterator[Finding]:
    """Check that the options can be read; report their files."""
    state_path = context.settings.state_path
    read = files.read_files(context.config)
    if read:
        # Only root may be able to read them.
        context.written  # noqa: B018
        yield ok(f"{', '.join(read)}; state_path is {state_path}")
        return
    yield warning(
        "no configuration file found: the defaults apply",
        files.NAME_IT,
    )


def option_names(context: CheckContext) -> Iterator[Finding]:
    """Check that each name in the sections of os_acc is the name of an option."""
    found = list(names.unknown(context.written, context.config))
    yield from map(unknown_name, found)
    if not found:
        yield ok("each option in the sections of os_acc is known")


def device_spec(context: CheckContext) -> Iterator[Finding]:
    """Check that ``device_spec`` parses, and that each entry matches a device."""
    if not context.named.entries:
        yield warning(
            "device_spec is empty: os_acc manages no device",
            "set [os_acc] device_spec",
        )
        return
    idle = [
        number
        for number, entry in enumerate(context.named.entries, 1)
        if not _names_any(entry, context)
    ]
    for number in idle:
        yield warning(
            f"entry {number} of {len(context.named.entries)} matches no "
            "device of this host",
            "compare the entry with 'lspci -nn -D'",
        )
    if not idle:
        yield ok(f"each of the {len(context.named.entries)} entries matches a device")


def plugins(context: CheckContext) -> Iterator[Finding]:
    """Report the loaded plugins, and the ones set aside."""
    for aside in context.plugins.set_aside:
        yield failed(
            f"plugin {aside.name} is set aside: {aside.reason}",
            "repair or remove the package, or leave it out of [os_acc] enabled_plugins",
        )
    names = ", ".join(plugin.name for plugin in context.plugins.loaded)
    if names:
        yield ok(f"loaded: {names}")
    else:
        yield failed("no plugin is loaded", "reinstall os_acc, which contains a plugin")


def networks(context: CheckContext) -> Iterator[Finding]:
    """Check that the NUMA nodes of physical networks and tunnels exist."""
    context.settings  # noqa: B018  (reports invalid options first)
    affinity = network_options.NetworkAffinity.load(context.config)
    host = affinity.on(numa.read_topology(context.root))
    idle = network_options.idle_sections(context.config)
    for section in idle:
        yield warning(
            f"section [{section}] exists, but its network is not in [neutron] physnets",
            "add the network to [neutron] physnets, or remove the section",
        )
    if not idle:
        networks = "; ".join(filter(None, map(_networks_of, host.cells)))
        yield ok(networks or "no network is tied to a NUMA node")


def _networks_of(cell: NUMACell) -> str:
    info = cell.network_info
    names = [*sorted(info.physnets), *(["tunnels"] if info.tunneled else [])]
    return f"NUMA node {cell.id}: {', '.join(names)}" if names else ""


def _names_any(entry: DeviceSpecEntry, context: CheckContext) -> bool:
    alone = DeviceSpec((entry,))
    host = context.host
    return any(
        alone.match(function, host.netdevs, host.functions) is not None
        for function in host.functions.values()
    )
