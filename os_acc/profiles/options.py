# SPDX-License-Identifier: Apache-2.0

"""Options of device profiles, and the interface of their sources."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Final, Self

from oslo_config import cfg

from os_acc import exception

GROUP = cfg.OptGroup(
    "os_acc_profiles",
    title="Device profiles of os_acc",
    help="Source of the device profiles that flavors name in accel:device_profile.",
)
CYBORG = cfg.OptGroup(
    "os_acc_cyborg",
    title="Cyborg, as a source of device profiles",
    help="Endpoint and credentials of the Accelerator service, used only for its "
    "device profiles, if [os_acc_profiles] source is cyborg. auth_section can "
    "name another section with these credentials, such as [placement] or "
    "[service_user].",
)
NOVA = cfg.OptGroup(
    "os_acc_nova",
    title="Nova's API, for flavors and external events",
    help="Endpoint and credentials of the Compute service, used only by "
    "'os-acc profile apply --set', os_acc.requests.notify() and 'os-acc request "
    "notify'; the user is an administrator. auth_section can name another section "
    "with these credentials.",
)

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "source",
        default="catalogue",
        choices=[
            ("catalogue", "a file of this host, or a directory of such files"),
            ("cyborg", "the Accelerator service; see [os_acc_cyborg]"),
        ],
        help="Source of device profiles.",
    ),
    cfg.StrOpt(
        "catalogue",
        default="/etc/os_acc/device_profiles.yaml",
        help="YAML file with device profiles, or a directory of files that end in "
        ".yaml, if source is catalogue. Changes take effect at once. If this "
        "option is set, the file or directory must exist.",
    ),
)
#: Locations of values that no operator has set.
_DEFAULTS: Final = frozenset({cfg.Locations.opt_default, cfg.Locations.set_default})


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileSettings:
    """The options as typed values.

    :ivar is_set: whether an operator has set the catalogue.
    """

    source: str
    catalogue: str
    is_set: bool

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options.

        :raises InvalidConfiguration: an option is invalid.
        """
        register(conf)
        try:
            group = conf[GROUP.name]
            where = conf.get_location("catalogue", GROUP.name)
            is_set = where is not None and where.location not in _DEFAULTS
            settings = cls(group.source, group.catalogue, is_set)
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error
        if not settings.catalogue or not os.path.isabs(settings.catalogue):
            raise exception.InvalidConfiguration(
                f"[{GROUP.name}] catalogue is {exception.show(settings.catalogue)}, "
                "not an absolute path"
            )
        return settings


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; registering twice is harmless."""
    # See os_acc.conf.register().
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTIONS, group=GROUP.name)
