# SPDX-License-Identifier: Apache-2.0

"""Options of the connection to Placement and of direct publication."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Final, Self

from oslo_config import cfg

from os_acc import exception
from os_acc.placement.api_model import ServerFailed
from os_acc.rest.service import Service

GROUP = cfg.OptGroup(
    "os_acc_placement",
    title="Placement, for direct publication by os_acc",
    help="Endpoint and credentials of Placement for 'os-acc provider sync' and "
    "os_acc.sync_placement(). auth_section can name another section with these "
    "credentials, such as [placement]. A site where Nova's virt driver calls "
    "os_acc.update_provider_tree() does not need this section.",
)

SERVICE: Final = Service(
    name="Placement",
    group=GROUP,
    version="",
    spoken="the microversion is negotiated with the server",
    service_type=exception.ServiceType.PLACEMENT,
    failing=ServerFailed,
    patience=f"[{GROUP.name}] sync_timeout",
)

OWN: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "node_provider",
        help="Name or UUID of this compute node's resource provider, the parent "
        "of os_acc's providers. Default: [os_acc] node_name.",
    ),
    cfg.FloatOpt(
        "sync_timeout",
        default=120.0,
        min=1.0,
        max=86_400.0,
        help="Seconds after which one synchronization with Placement stops; the "
        "next one continues.",
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The options of os_acc in this section.

    :ivar node_provider: the parent provider; '' for the node's name.
    """

    node_provider: str
    sync_timeout: float

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options, without those of keystoneauth1.

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
    """Register the options; registering twice is harmless."""
    SERVICE.register(conf)
    conf.register_opts(OWN, group=GROUP.name)


def list_opts() -> list[cfg.Opt]:
    """Return the options for oslo-config-generator."""
    return [*OWN, *SERVICE.list_opts()]
