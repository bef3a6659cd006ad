# SPDX-License-Identifier: Apache-2.0

"""Where device profiles come from, as an operator says it."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterator
from typing import Final, Protocol, Self, TypeAlias

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.profile import DeviceProfile
from os_acc.rest import service

#: A profile, or why it cannot be used.
Judged: TypeAlias = DeviceProfile | exception.OsAccError


class ProfileSource(Protocol):
    """Somebody who has device profiles."""

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """The profile of this name, or with this uuid.

        :param deadline: on :func:`time.monotonic`.
        :raises ProfileNotFound: there is none.
        :raises InvalidProfile: it is none that anybody can have.
        :raises ProfilesUnavailable: nobody answers.
        """

    def judged(self, deadline: float) -> Iterator[tuple[str, Judged]]:
        """Everything that there is, with its place, in no order.

        :raises ProfilesUnavailable: nobody answers.
        """


GROUP = cfg.OptGroup(
    "os_acc_profiles",
    title="Device profiles of os_acc",
    help="Where the device profiles come from that a flavor may name in "
    "accel:device_profile.",
)
#: Of Cyborg's options.
CYBORG = cfg.OptGroup(
    "os_acc_cyborg",
    title="Cyborg, as os_acc uses it",
    help="How the Accelerator service is reached for its device profiles, and as "
    "whom. Used where [os_acc_profiles] source is cyborg, and by nothing else. "
    "auth_section names another section that has these credentials already, as "
    "[placement] or [service_user] do.",
)
CYBORG_DEFAULTS: Final = {"service_type": "accelerator", **service.PATIENCE}
#: Of Nova's options.
NOVA = cfg.OptGroup(
    "os_acc_nova",
    title="Nova's API, as os_acc uses it",
    help="How the Compute service is reached by 'os-acc profile apply --set', and "
    "as which administrator; by nothing else. auth_section names another section "
    "that has these credentials already.",
)
NOVA_DEFAULTS: Final = {"service_type": "compute", **service.PATIENCE}

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "source",
        default="catalogue",
        choices=[
            ("catalogue", "a file of this host, or a directory of such files"),
            ("cyborg", "the Accelerator service; see [os_acc_cyborg]"),
        ],
        help="Where device profiles are.",
    ),
    cfg.StrOpt(
        "catalogue",
        default="/etc/os_acc/device_profiles.yaml",
        help="The YAML file with the device profiles, or a directory with several "
        "that end in .yaml, where source is catalogue. What has been changed "
        "there is used at once. Once this is set, it has to be there.",
    ),
)
#: Where a value comes from that no operator has given.
_DEFAULTS: Final = frozenset({cfg.Locations.opt_default, cfg.Locations.set_default})


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileSettings:
    """The options as typed values.

    :ivar is_set: whether somebody has said where the catalogue is.
    """

    source: str
    catalogue: str
    is_set: bool

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options.

        :raises InvalidConfiguration: one of them cannot be used.
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
    """Register the options; a second time changes nothing."""
    # See os_acc.conf.register().
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTIONS, group=GROUP.name)
