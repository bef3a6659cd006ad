# SPDX-License-Identifier: Apache-2.0

"""Which service is asked, and how an operator says where it is."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from os_acc import exception

#: What differs from keystoneauth1's defaults for every service. It waits for
#: ever, and gives up at the first refused connection.
PATIENCE: Final[Mapping[str, Any]] = {
    "valid_interfaces": ["internal", "public"],
    "timeout": 60,
    "connect_retries": 3,
    "status_code_retries": 3,
}
#: Options of an adapter that cannot be chosen: which version of a service is
#: spoken, is decided by the code that speaks it.
VERSIONS: Final = ("version", "min_version", "max_version")
# Two of the many ways to authenticate, for generators and documentation.
_LISTED = ("password", "v3applicationcredential")


def register(
    conf: cfg.ConfigOpts, group: cfg.OptGroup, defaults: Mapping[str, Any]
) -> None:
    """Register a service's options; a second time changes nothing.

    Those of the plugin that ``auth_type`` names come when it is loaded.

    :param defaults: that differ from keystoneauth1's.
    """
    from keystoneauth1 import loading

    # See os_acc.conf.register().
    conf.register_group(copy.deepcopy(group))
    conf.register_opts(_options(defaults), group=group.name)
    loading.register_auth_conf_options(conf, group.name)


def list_opts(defaults: Mapping[str, Any]) -> list[cfg.Opt]:
    """A service's options for oslo-config-generator."""
    from keystoneauth1 import loading

    options = [
        *loading.get_auth_common_conf_options(),
        *(option for option in _options(defaults) if option.dest not in VERSIONS),
    ]
    for name in _LISTED:
        options += loading.get_auth_plugin_conf_options(name)
    # The two have most of theirs in common.
    return list({option.dest: option for option in reversed(options)}.values())[::-1]


def _options(defaults: Mapping[str, Any]) -> list[cfg.Opt]:
    from keystoneauth1 import loading

    options = [
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(include_deprecated=False),
    ]
    cfg.set_defaults(options, **defaults)
    return options


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Who is asked.

    :ivar name: as messages have it.
    :ivar group: of the options to reach it with.
    :ivar defaults: of theirs that differ from keystoneauth1's.
    :ivar version: the last part of its endpoints, where it may be left out
        and every path that is asked for has it; or empty.
    :ivar spoken: why no version can be chosen.
    :ivar unavailable: to raise where nobody answers, or not in time.
    :ivar failing: to raise where it answers that it cannot now.
    :ivar patience: what to raise where it is never in time.
    :ivar missing: to raise where nobody has said who asks.
    """

    name: str
    group: cfg.OptGroup
    defaults: Mapping[str, Any]
    version: str
    spoken: str
    unavailable: type[exception.OsAccError]
    failing: type[exception.OsAccError]
    patience: str = "the operation's own timeout"
    missing: type[exception.InvalidConfiguration] = exception.InvalidConfiguration

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; a second time changes nothing."""
        register(conf, self.group, self.defaults)

    def list_opts(self) -> list[cfg.Opt]:
        """For oslo-config-generator."""
        return list_opts(self.defaults)
