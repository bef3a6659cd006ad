# SPDX-License-Identifier: Apache-2.0

"""How Placement is reached, and what is published there directly."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Final, Self

from oslo_config import cfg

from os_acc import exception
from os_acc.placement.api_model import ServerFailed
from os_acc.rest import service
from os_acc.rest.service import Service

GROUP = cfg.OptGroup(
    "os_acc_placement",
    title="Placement, as os_acc publishes there itself",
    help="How Placement is reached by 'os-acc provider sync' and "
    "os_acc.sync_placement(), and as whom. auth_section names another section "
    "that has these credentials already, as [placement] does. A site where "
    "Nova's virt driver calls os_acc.update_provider_tree() needs none of this.",
)

SERVICE: Final = Service(
    name="Placement",
    group=GROUP,
    defaults={"service_type": "placement", **service.PATIENCE},
    version="",
    spoken="the microversion is agreed on with the server",
    unavailable=exception.PlacementUnavailable,
    failing=ServerFailed,
    patience=f"[{GROUP.name}] sync_timeout",
    missing=exception.PlacementNotConfigured,
)

OWN: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "node_provider",
        help="The name or the UUID of this compute node's resource provider, "
        "below which those of os_acc are put. Default: [os_acc] node_name.",
    ),
    cfg.FloatOpt(
        "sync_timeout",
        default=120.0,
        min=1.0,
        max=86_400.0,
        help="Seconds after which one synchronization with Placement gives up; "
        "what it has not changed by then is left to the next one.",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Our own options.

    :ivar node_provider: '' for the name of the node.
    """

    node_provider: str
    sync_timeout: float

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options; nothing of keystoneauth1's is needed for it.

        :raises InvalidConfiguration: a value cannot be used.
        """
        # See os_acc.conf.register().
        conf.register_group(copy.deepcopy(GROUP))
        conf.register_opts(OWN, group=GROUP.name)
        try:
            group = conf[GROUP.name]
            seconds = group.sync_timeout
            name = group.node_provider or ""
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error
        if seconds is None or math.isnan(seconds):
            raise exception.InvalidConfiguration(
                f"[{GROUP.name}] sync_timeout is {exception.show(seconds)}, not a "
                "number of seconds"
            )
        return cls(name, seconds)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second time changes nothing."""
    SERVICE.register(conf)
    conf.register_opts(OWN, group=GROUP.name)


def list_opts() -> list[cfg.Opt]:
    """For oslo-config-generator."""
    return [*OWN, *SERVICE.list_opts()]
