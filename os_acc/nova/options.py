# SPDX-License-Identifier: Apache-2.0

"""The options of the virt driver."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup(
    "os_acc_driver",
    title="The virt driver of os_acc",
    help="Options of nova-compute with [DEFAULT] compute_driver = "
    "os_acc.LibvirtDriver.",
)
OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.FloatOpt(
        "initialize_interval",
        default=30.0,
        min=0.1,
        help="Seconds between two attempts to initialize os_acc. Until one succeeds, "
        "nova-compute refuses servers with accelerators.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=60.0,
        min=0.1,
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
)


def register(config: cfg.ConfigOpts) -> None:
    """Register the options; registering twice is harmless."""
    config.register_group(GROUP)
    config.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator (``oslo.config.opts``)."""
    return [(GROUP, list(OPTIONS))]
