# SPDX-License-Identifier: Apache-2.0

"""The options of ``[os_acc]`` and for Nova's services, and the list of all options.

Generators and the documentation read the list. The rooms ``bitstreams`` and
``profiles`` declare theirs in ``options.py``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Self

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.options import STATE_PATH
from os_acc.objects.numa import NUMAPolicy

GROUP = cfg.OptGroup(
    "os_acc",
    title="os_acc",
    help="Discovery of accelerators, the record of their leases, and timeouts.",
)

# A day, in seconds; larger values may overflow the clock.
LONGEST = 86_400.0

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Devices that os_acc manages, in the syntax of Nova's [pci] "
        "device_spec: one JSON object, or a list of objects, per value. "
        "In addition to Nova's keys, it accepts resource_class, traits, num_vfs, "
        "prebound, allow_no_reset, allow_no_erase, numa_policy, mdev_types, vgpu_type, "
        "vfio_driver, qat_services, function and trust_guest_contents; any other key "
        "is an error. By default, os_acc manages no device.",
    ),
    cfg.StrOpt(
        "helper_command",
        help="Command that starts each privileged helper, such as 'sudo "
        "/opt/nova/bin/privsep-helper --config-file /etc/nova/nova.conf'; the option "
        "of this name in the group of one helper overrides it. Default: the "
        "privsep-helper beside the running Python, by sudo, or that of nova-rootwrap.",
    ),
    cfg.ListOpt(
        "enabled_plugins",
        default=[],
        help="Plugins to use, by the names of their entry points; the others are not "
        "imported. Default: all installed plugins.",
    ),
    STATE_PATH,
    cfg.StrOpt(
        "node_name",
        sample_default="<host name>",
        help="Name of this compute node in Placement; the names and UUIDs of "
        "resource providers are derived from it. It must not change while "
        "instances have accelerators. Default: the name that the service passes to "
        "os_acc.initialize(), else the host name.",
    ),
    cfg.FloatOpt(
        "initialize_timeout",
        default=60.0,
        min=1.0,
        max=LONGEST,
        help="Seconds after which initialize() fails.",
    ),
    cfg.FloatOpt(
        "plug_timeout",
        default=300.0,
        min=1.0,
        max=LONGEST,
        help="Seconds after which a plug fails and is rolled back.",
    ),
    cfg.FloatOpt(
        "unplug_timeout",
        default=120.0,
        min=1.0,
        max=LONGEST,
        help="Seconds after which an unplug fails; devices that are not released "
        "stay leased.",
    ),
    cfg.FloatOpt(
        "write_timeout",
        default=60.0,
        min=0.1,
        max=600.0,
        help="Seconds that one round trip of privileged writes may take. A reset "
        "alone may take 60 seconds by the PCI specification. A plugin's own "
        "privileged step may take as long as the plug or unplug that it is part of, "
        "and 10 minutes at most, but no longer than this in the erasure of a device or "
        "in a retry of a failed release.",
    ),
    cfg.FloatOpt(
        "helper_start_timeout",
        default=60.0,
        min=1.0,
        max=LONGEST,
        help="Seconds that the start of a privileged helper may take; the next "
        "call starts another one. An operation waits no longer than its own "
        "deadline. Raise the value if sudo or rootwrap is slow.",
    ),
    cfg.FloatOpt(
        "release_retry_interval",
        default=60.0,
        min=1.0,
        max=LONGEST,
        help="Seconds between two attempts of a service to complete failed releases "
        "whose cause may be temporary, such as a process that still has the "
        "device open. Each plug also starts an attempt.",
    ),
    cfg.IntOpt(
        "max_uncorrectable_errors",
        default=-1,
        min=-1,
        max=2**31 - 1,
        help="A free device with more uncorrectable PCIe errors than this is not "
        "offered. They are counted since the kernel found the device: until a reboot, "
        "or until the device is removed and found again. Default: -1, any number. The "
        "guest of a device can cause some, too.",
    ),
)

DRIVER = cfg.OptGroup(
    "os_acc_driver",
    title="The virt driver of os_acc",
    help="Options of nova-compute with [DEFAULT] compute_driver = "
    "os_acc.LibvirtDriver.",
)
DRIVER_OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.FloatOpt(
        "initialize_interval",
        default=30.0,
        min=0.1,
        max=LONGEST,
        help="Seconds between two attempts to initialize os_acc. Until one succeeds, "
        "nova-compute refuses servers with accelerators.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=60.0,
        min=0.1,
        max=LONGEST,
        help="Seconds between two comparisons of the leases with libvirt's domains and "
        "Placement's allocations.",
    ),
    cfg.FloatOpt(
        "reconcile_age",
        default=600.0,
        min=0.0,
        help="Seconds after which a lease without a domain and without an allocation "
        "is released. It has to be longer than a server takes to build.",
    ),
    cfg.BoolOpt(
        "golden_images",
        default=False,
        help="Whether a server with accelerators may boot the snapshot of another one "
        "whose image has the property os_acc_golden=true. The snapshot may depend on a "
        "state of the other server's accelerators.",
    ),
    cfg.BoolOpt(
        "iommufd",
        default=False,
        help="Whether guests get PCI functions of os_acc through iommufd instead of "
        "their IOMMU groups, as guests with encrypted memory have to. It needs libvirt "
        "12.1, and a kernel with CONFIG_VFIO_DEVICE_CDEV. libvirt has no iommufd for "
        "mediated devices.",
    ),
)

SCHEDULER = cfg.OptGroup(
    "os_acc_scheduler",
    title="The filter and the weigher of os_acc",
    help="Options of nova-scheduler with a filter of os_acc.nova.filters or a weigher "
    "of os_acc.nova.weighers.",
)
SCHEDULER_OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "numa_policy",
        default=NUMAPolicy.LEGACY.value,
        choices=[each.value for each in NUMAPolicy],
        help="The NUMA policy of accelerators for which neither the flavor nor the "
        "image has one. If numa_policy in a device_spec or in [pci] alias sets others "
        "on the compute nodes, use the least strict of them.",
    ),
    cfg.FloatOpt(
        "trait_lifetime",
        default=60.0,
        min=0.0,
        max=LONGEST,
        help="Seconds for which NUMA cells and functions of a host's accelerators are "
        "used before Placement is asked again.",
    ),
    cfg.FloatOpt(
        "usage_lifetime",
        default=5.0,
        min=0.0,
        max=LONGEST,
        help="Seconds for which the weigher uses the number of a host's free "
        "accelerators before Placement is asked again.",
    ),
    cfg.IntOpt(
        "cached_hosts",
        default=10_000,
        min=1,
        help="Hosts whose accelerators are cached at most.",
    ),
    cfg.FloatOpt(
        "placement_timeout",
        default=5.0,
        min=0.1,
        max=600.0,
        help="Seconds that the filter, and the weigher, may wait for Placement for one "
        "server. Hosts without an answer pass the filter.",
    ),
    cfg.FloatOpt(
        "accelerator_weight_multiplier",
        default=1.0,
        help="The weight of hosts with many free accelerators. A positive value "
        "spreads servers with accelerators over the hosts, a negative one packs them. "
        "The metadata accelerator_weight_multiplier of a host aggregate overrides it.",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The options as typed values, read once per initialize().

    :ivar nova_mdev_types: the mdev types for which Nova claims every device
        that supports them.
    """

    device_spec: tuple[str, ...]
    enabled_plugins: tuple[str, ...]
    state_path: str
    node_name: str
    initialize_timeout: float
    plug_timeout: float
    unplug_timeout: float
    write_timeout: float
    helper_start_timeout: float
    release_retry_interval: float
    max_uncorrectable_errors: int
    nova_device_spec: tuple[str, ...]
    nova_aliases: tuple[str, ...]
    nova_mdev_addresses: tuple[str, ...]
    nova_mdev_types: tuple[str, ...]

    @classmethod
    def load(cls, conf: cfg.ConfigOpts, default_node_name: str | None = None) -> Self:
        """Read the options, and Nova's options that may claim devices.

        :param default_node_name: the node's name unless ``node_name`` is set; None:
            the host name.
        :raises InvalidConfiguration: a value is invalid, or ``state_path`` is no
            absolute path.
        """
        with _reading(conf) as group:
            mdev_types, mdev_addresses = _nova_mdevs(conf)
            return cls(
                device_spec=tuple(group.device_spec or ()),
                enabled_plugins=tuple(group.enabled_plugins or ()),
                state_path=_absolute(group.state_path),
                node_name=_name(group, default_node_name),
                initialize_timeout=number(group, "initialize_timeout"),
                plug_timeout=number(group, "plug_timeout"),
                unplug_timeout=number(group, "unplug_timeout"),
                write_timeout=number(group, "write_timeout"),
                helper_start_timeout=number(group, "helper_start_timeout"),
                release_retry_interval=number(group, "release_retry_interval"),
                max_uncorrectable_errors=int(number(group, "max_uncorrectable_errors")),
                nova_device_spec=tuple(_option(conf, "pci", "device_spec") or ()),
                nova_aliases=tuple(_option(conf, "pci", "alias") or ()),
                nova_mdev_addresses=mdev_addresses,
                nova_mdev_types=mdev_types,
            )


@dataclasses.dataclass(frozen=True, slots=True)
class DriverSettings:
    """The options of ``[os_acc_driver]``; the times are in seconds."""

    initialize_interval: float
    reconcile_interval: float
    reconcile_age: float
    golden_images: bool
    iommufd: bool

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Register and read the options of nova-compute.

        :raises InvalidConfiguration: a value is invalid.
        """
        return cls(**_values(conf, DRIVER, DRIVER_OPTIONS))


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The options of ``[os_acc_scheduler]``; the times are in seconds."""

    numa_policy: NUMAPolicy
    trait_lifetime: float
    usage_lifetime: float
    placement_timeout: float
    cached_hosts: int
    accelerator_weight_multiplier: float

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Register and read the options of nova-scheduler.

        :raises InvalidConfiguration: a value is invalid.
        """
        values = _values(conf, SCHEDULER, SCHEDULER_OPTIONS)
        return cls(**{**values, "numa_policy": NUMAPolicy(values["numa_policy"])})


def _values(
    conf: cfg.ConfigOpts, group: cfg.OptGroup, options: Sequence[cfg.Opt]
) -> dict[str, Any]:
    with _reading(conf, group, options) as found:
        return {
            each.dest: found[each.dest]
            if isinstance(each, cfg.StrOpt | cfg.BoolOpt)
            else number(found, each.dest, section=group.name)
            for each in options
        }


def node_name(conf: cfg.ConfigOpts, given: str | None) -> str:
    """Return the name of the node; other options may be invalid.

    :param given: the name that a caller passes, used unless the option is set; None:
        the host name.
    :raises InvalidInput: the caller's name is not valid text for Placement.
    :raises InvalidConfiguration: ``[os_acc] node_name`` is invalid.
    """
    if given is not None and not (
        isinstance(given, str) and given and given.isprintable()
    ):
        raise exception.InvalidInput(
            f"node_name is {exception.show(given)}, not the name of a compute node"
        )
    with _reading(conf) as group:
        return _name(group, given)


def state_path(conf: cfg.ConfigOpts) -> str:
    """Return the state directory; other options may be invalid.

    :raises InvalidConfiguration: ``[os_acc] state_path`` is no absolute path.
    """
    with _reading(conf) as group:
        return _absolute(group.state_path)


@contextlib.contextmanager
def _reading(
    conf: cfg.ConfigOpts,
    group: cfg.OptGroup = GROUP,
    options: Sequence[cfg.Opt] = OPTIONS,
) -> Iterator[cfg.ConfigOpts.GroupAttr]:
    register(conf, group, options)
    try:
        yield conf[group.name]
    # Also raised for a reference ("$name") to an unknown option.
    except cfg.Error as error:
        raise exception.InvalidConfiguration(str(error)) from error


def _absolute(state_path: str | None) -> str:
    if not state_path or not os.path.isabs(state_path) or not _is_path(state_path):
        raise exception.InvalidConfiguration(
            f"[os_acc] state_path is {exception.show(state_path)}, not an absolute path"
        )
    return state_path


def _is_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _name(group: cfg.ConfigOpts.GroupAttr, default: str | None) -> str:
    name: str = group.node_name or ""
    if not name.isprintable():
        raise exception.InvalidConfiguration(
            f"[os_acc] node_name is {exception.show(name)}, which is not "
            "valid text for Placement"
        )
    return name or default or socket.gethostname()


def number(
    group: cfg.ConfigOpts.GroupAttr, name: str, section: str = GROUP.name
) -> float:
    """Return the value of an option that is a number.

    :raises InvalidConfiguration: the value is empty or not a number.
    """
    # oslo.config reads an empty value as None, and accepts NaN within any range.
    value: float | None = group[name]
    if value is None or math.isnan(value):
        raise exception.InvalidConfiguration(
            f"[{section}] {name} is {exception.show(value)}, not a number"
        )
    return value


def register(
    conf: cfg.ConfigOpts,
    group: cfg.OptGroup = GROUP,
    options: Sequence[cfg.Opt] = OPTIONS,
) -> None:
    """Register the options of a group; registering twice is harmless."""
    # ConfigOpts does not copy a group's contents: two ConfigOpts objects would
    # share the values of one group.
    conf.register_group(copy.deepcopy(group))
    conf.register_opts(options, group=group.name)


def list_opts(
    enabled: Sequence[str] = (),
) -> list[tuple[str | cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator (``oslo.config.opts``).

    :param enabled: the plugins to import for their options; empty: all.
    """
    from oslo_privsep import priv_context

    from os_acc.bitstreams import glance
    from os_acc.bitstreams import options as bitstreams
    from os_acc.numa import network_options
    from os_acc.placement import client as placement
    from os_acc.plugins import loader
    from os_acc.profiles import flavors, sources
    from os_acc.profiles import options as profiles

    return [
        (GROUP, list(OPTIONS)),
        (DRIVER, list(DRIVER_OPTIONS)),
        (SCHEDULER, list(SCHEDULER_OPTIONS)),
        (bitstreams.GROUP, list(bitstreams.OPTIONS)),
        (glance.GROUP, glance.SERVICE.list_opts()),
        (placement.GROUP, placement.list_opts()),
        (profiles.GROUP, list(profiles.OPTIONS)),
        (profiles.CYBORG, sources.SERVICE.list_opts()),
        (profiles.NOVA, flavors.SERVICE.list_opts()),
        *((section, list(priv_context.OPTS)) for section in PRIVSEP_GROUPS),
        *loader.list_opts(enabled),
        *network_options.list_opts(),
    ]


#: The groups of the privilege contexts in :mod:`os_acc.privsep`.
PRIVSEP_GROUPS = (
    *("os_acc_base", "os_acc_inspect"),
    *("os_acc_image", "os_acc_nvme_helper"),
)


def _option(conf: cfg.ConfigOpts, group: str, name: str) -> Any:
    """Return the value of an option of Nova, or None if it is not registered."""
    try:
        return conf[group][name]
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
        return None


def _nova_mdevs(conf: cfg.ConfigOpts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mdev types that Nova claims on all parents, and the parents it names.

    Nova uses only the first type of all, with or without addresses, and ignores the
    others. They are claimed as well: an operator who corrects that configuration must
    not find their devices attached to instances.
    """
    enabled: Sequence[str] = _option(conf, "devices", "enabled_mdev_types") or ()
    addresses = {
        name: _option(conf, f"mdev_{name}", "device_addresses") or ()
        for name in enabled
    }
    bare = [name for name, places in addresses.items() if not places]
    types = tuple(dict.fromkeys((enabled[0], *bare))) if bare else ()
    return types, tuple(itertools.chain(*addresses.values()))
