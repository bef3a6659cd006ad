# SPDX-License-Identifier: Apache-2.0

"""How a service is reached: keystoneauth1's own options, in a group of ours."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

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
