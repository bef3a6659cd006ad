# SPDX-License-Identifier: Apache-2.0

"""Checks of the configuration, and of the names in its files."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from oslo_config import cfg

from os_acc import conf, exception, service
from os_acc.cmd import environment
from os_acc.cmd.checks import CheckContext, Finding, Sections, failed, ok, warning
from os_acc.host import mdev, numa
from os_acc.host.attributes import function_path, read_text
from os_acc.numa import network_options
from os_acc.objects.device_spec import DeviceSpec, DeviceSpecEntry, objects_of
from os_acc.objects.numa import NUMACell
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.placement import capacity
from os_acc.plugins import loader

_OWN_SECTION = re.compile(r"os[_-]?acc", re.IGNORECASE)
#: Options that os_acc reads in sections of Nova, with their deprecated names. Nova's
#: other options there are not known here.
_NOVAS: Mapping[str, Set[str]] = {
    "devices": {"enabled_mdev_types", "enabled_vgpu_types"},
    "neutron": {"physnets"},
    "pci": {"alias", "device_spec", "passthrough_whitelist"},
}
# Seconds for the answers of Placement.
_PATIENCE = 30.0
_ENDPOINT = "check endpoint_override in [os_acc_placement] and the service catalog"
_NUMA_NODES: Set[str] = {network_options.NUMA_NODES.name}


def configuration(context: CheckContext) -> Iterator[Finding]:
    """Check that the options can be read; report their files."""
    state_path = context.settings.state_path
    read = environment.read_files(context.config)
    if read:
        # Only root may be able to read them.
        context.written  # noqa: B018
        yield ok(f"{', '.join(read)}; state_path is {state_path}")
        return
    yield warning(
        "no configuration file found: the defaults apply", environment.NAME_IT
    )


def option_names(context: CheckContext) -> Iterator[Finding]:
    """Check that each name in the sections of os_acc is the name of an option."""
    fine = ok("each option in the sections of os_acc is known")
    yield from list(unknown_names(context.written, context.config)) or [fine]


def device_spec(context: CheckContext) -> Iterator[Finding]:
    """Check that ``device_spec`` parses, and that each entry matches a device."""
    if not context.named.entries:
        yield warning(
            "device_spec is empty: os_acc manages no device",
            "set [os_acc] device_spec",
        )
        return
    entries = context.named.entries
    texts = map(
        json.dumps, itertools.chain(*map(objects_of, context.settings.device_spec))
    )
    idle = [
        warning(
            f"entry {place} of {len(entries)} matches no device of this host: {text}",
            _without_device(entry, context),
        )
        for place, (entry, text) in enumerate(zip(entries, texts, strict=True), 1)
        if not _names_any(entry, context)
    ]
    yield from idle or [ok(f"each of the {len(entries)} entries matches a device")]


def placement(context: CheckContext) -> Iterator[Finding]:
    """Check that Placement answers and has the inventory, if os_acc may ask it."""
    publisher = service.new_publisher(context.config, context.settings)
    look = context.look
    found = capacity.capacities(look.inventory.providers.values(), look.recorded)
    names, deadline = look.recorded.published_names, time.monotonic() + _PATIENCE
    try:
        plan = publisher.difference(found, names, deadline)
    except exception.InvalidConfiguration as error:
        if error.reason is not exception.ConfigurationReason.NOT_CONFIGURED:
            raise
        if any("os_acc_placement" in each for each in context.written.values()):
            yield warning(error.message, error.hint)
            return
        yield ok("[os_acc_placement] is not set: nova-compute publishes the inventory")
        return
    except exception.ServiceError as error:
        yield failed(error.message, error.hint or _ENDPOINT)
        return
    for refusal in plan.refused:
        text = f"not published: {refusal.what}: {refusal.error.message}"
        yield warning(text, refusal.error.hint)
    if plan.steps:
        yield warning(
            f"Placement lacks changes of this host's inventory: {len(plan.steps)}",
            "os-acc provider sync",
        )
    elif not plan.refused:
        yield ok("Placement answers, and has the inventory of this host")


def plugins(context: CheckContext) -> Iterator[Finding]:
    """Report the loaded plugins, and the ones set aside."""
    for aside in context.plugins.set_aside:
        yield failed(
            f"plugin {aside.name} is set aside: {aside.reason}",
            "repair or remove the package, or leave it out of [os_acc] enabled_plugins",
        )
    names = ", ".join(map(context.plugins.name_of, context.plugins.loaded))
    if names:
        yield ok(f"loaded: {names}")
    else:
        yield failed("no plugin is loaded", "reinstall os_acc, which contains a plugin")


def networks(context: CheckContext) -> Iterator[Finding]:
    """Check that the NUMA nodes of physical networks and tunnels exist."""
    affinity = network_options.NetworkAffinity.load(context.config)
    host = affinity.on(numa.read_topology(context.root))
    networks = "; ".join(filter(None, map(_networks_of, host.cells)))
    yield from [
        warning(
            f"section [{section}] exists, but its network is not in [neutron] physnets",
            "add the network to [neutron] physnets, or remove the section",
        )
        for section in network_options.idle_sections(context.config)
    ] or [ok(networks or "no network is tied to a NUMA node")]


def _networks_of(cell: NUMACell) -> str:
    info = cell.network_info
    names = [*sorted(info.physnets), *(["tunnels"] if info.tunneled else [])]
    return f"NUMA node {cell.id}: {', '.join(names)}" if names else ""


def _without_device(entry: DeviceSpecEntry, context: CheckContext) -> str:
    """Return the hint for an entry that may name VFs which do not exist yet."""
    for pf in context.host.functions.values():
        if pf.total_vfs and not pf.vfs and _can_name_vfs(entry, pf, context.root):
            return (
                f"{pf.address} can make {pf.total_vfs} such VFs: name it in an entry "
                f'{{"address": "{pf.address}", "num_vfs": NUMBER}}'
            )
    return "compare the entry with 'lspci -nn -D'"


def _can_name_vfs(entry: DeviceSpecEntry, pf: PciFunction, root: str) -> bool:
    """Return whether an entry names VFs that a PF does not have.

    Single Root I/O Virtualization Specification 1.1, 2.1.2, for their addresses.
    """
    path = function_path(root, pf.address)
    product, offset, stride = (
        read_text(f"{path}/sriov_{name}") or "0"
        for name in ("vf_device", "offset", "stride")
    )
    if entry.vendor not in (None, pf.identity.vendor):
        return False
    domain, bus, slot, function = pf.address.parts
    first = (bus << 8 | slot << 3 | function) + int(offset)
    numbers = (first + int(stride) * index for index in range(pf.total_vfs))
    return entry.product in (None, int(product, 16)) and any(
        entry.place.matches(
            PciAddress(domain, each >> 8 & 0xFF, each >> 3 & 0x1F, each & 7)
        )
        for each in numbers
    )


def _names_any(entry: DeviceSpecEntry, context: CheckContext) -> bool:
    alone = DeviceSpec((entry,))
    host = context.host
    return not alone.parent_names.isdisjoint(mdev.parents(context.root)) or any(
        alone.match(function, host.netdevs, host.functions) is not None
        for function in host.functions.values()
    )


# -- names without effect ---------------------------------------------------


def unknown_names(
    written: Mapping[str, Sections], config: cfg.ConfigOpts
) -> Iterator[Finding]:
    """Yield a finding for each unknown name in the sections of os_acc.

    Accepts the options that are registered in the configuration, too: vendors'
    plugins have such options. Those of a plugin that is not enabled, or cannot be
    imported, are not known. In the sections of Nova, only names that resemble an
    option that os_acc reads are unknown.

    :param written: the sections of each configuration file.
    """
    known = _known(config[conf.GROUP.name].enabled_plugins)
    of_plugins = {loader.section_of(each.name) for each in loader.installed()}
    with_auth = {
        name
        for sections in written.values()
        for values in sections.values()
        for name in values.get("auth_section", ())
    }
    for file, sections in written.items():
        for section, values in sections.items():
            group = section.lower()
            if section in with_auth:
                continue
            if not _OWN_SECTION.match(section):
                yield from _unknown_of_nova(file, section, values.keys())
            elif group in known or group in config:
                names = known.get(group, set()) | _of_auth_type(values)
                names |= set(config[group]) if group in config else set()
                for name in sorted(values.keys() - names):
                    yield _ignored(file, section, name, names)
            elif group not in of_plugins:
                yield _ignored(file, section, "", known)


def _ignored(file: str, section: str, option: str, known: Iterable[str]) -> Finding:
    """Return the finding for an option, or for a section if the option is empty."""
    near = exception.nearest(option or section, known)
    if near and not option:
        near = f"[{near}]"
    return warning(
        f"{file} has [{section}]{option and f' {option}'}, which is ignored",
        f"did you mean {near}?"
        if near
        else "remove it, or see the reference of the options",
    )


def _unknown_of_nova(file: str, section: str, written: Set[str]) -> Iterator[Finding]:
    """Yield the misspelt names in a section of Nova."""
    group = section.lower()
    tunnel, physnet = network_options.TUNNEL, network_options.PHYSNET
    if group == tunnel or group.startswith(physnet):
        # Nova has no other option there.
        for name in sorted(written - _NUMA_NODES):
            yield _ignored(file, section, name, _NUMA_NODES)
    elif group in _NOVAS:
        for name in sorted(written - _NOVAS[group]):
            if exception.nearest(name, _NOVAS[group]):
                yield _ignored(file, section, name, _NOVAS[group])
    elif group.startswith("neutron") and exception.nearest(group, {tunnel}):
        yield _ignored(file, section, "", {tunnel})


def _known(enabled: Sequence[str]) -> dict[str, set[str]]:
    """Return the names that the options of os_acc may have in files, by section."""
    found: dict[str, set[str]] = {}
    for group, options in conf.list_opts(enabled):
        section = group if isinstance(group, str) else group.name
        for option in options:
            found.setdefault(section, set()).add(option.dest)
            for old in option.deprecated_opts:
                names = found.setdefault(old.group or section, set())
                names.add(old.name or option.dest)
    return found


def _of_auth_type(values: Mapping[str, list[str]]) -> set[str]:
    """Return the options of the way to authenticate that a section selects."""
    from keystoneauth1 import exceptions, loading

    found: set[str] = set()
    for name in values.get("auth_type", ()):
        try:
            options = loading.get_auth_plugin_conf_options(name)
        except exceptions.NoMatchingPlugin:
            # The request for a session reports it.
            continue
        for option in options:
            found.add(option.dest)
            found.update(old.name for old in option.deprecated_opts if old.name)
    return found
