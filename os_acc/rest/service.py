# SPDX-License-Identifier: Apache-2.0

"""The services that os_acc calls, and the options of their endpoints."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from os_acc import exception

#: Defaults of every service that differ from keystoneauth1's: without them, a
#: request has no timeout, and the first refused connection fails it.
PATIENCE: Final[Mapping[str, Any]] = {
    "valid_interfaces": ["internal", "public"],
    "timeout": 60,
    "connect_retries": 3,
    "status_code_retries": 3,
}
#: Adapter options that are not offered: the code determines the API version.
VERSIONS: Final = ("version", "min_version", "max_version")
# Two of the many ways to authenticate, for generators and documentation.
_LISTED = ("password", "v3applicationcredential")


def register(
    conf: cfg.ConfigOpts, group: cfg.OptGroup, defaults: Mapping[str, Any]
) -> None:
    """Register a service's options; registering twice is harmless.

    keystoneauth1 registers the options of the auth plugin when it loads it.

    :param defaults: values that differ from keystoneauth1's defaults.
    """
    from keystoneauth1 import loading

    # See os_acc.conf.register().
    conf.register_group(copy.deepcopy(group))
    conf.register_opts(_options(defaults), group=group.name)
    loading.register_auth_conf_options(conf, group.name)


def list_opts(defaults: Mapping[str, Any]) -> list[cfg.Opt]:
    """Return a service's options for oslo-config-generator."""
    from keystoneauth1 import loading

    options = [
        *loading.get_auth_common_conf_options(),
        *(option for option in _options(defaults) if option.dest not in VERSIONS),
    ]
    for name in _LISTED:
        options += loading.get_auth_plugin_conf_options(name)
    # The two plugins share most of their options.
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
    """An OpenStack service.

    :ivar name: the name in messages.
    :ivar group: the option group.
    :ivar defaults: option defaults that differ from keystoneauth1's.
    :ivar version: the version suffix of the service's endpoints, where it is
        optional and every requested path contains it; else empty.
    :ivar spoken: the reason why the API version cannot be configured.
    :ivar unavailable: the error for a service that does not answer in time.
    :ivar failing: the error for a service that reports a failure of its own.
    :ivar patience: the option or argument that sets the deadline.
    :ivar missing: the error for missing credentials.
    """

    name: str
    group: cfg.OptGroup
    defaults: Mapping[str, Any]
    version: str
    spoken: str
    service_type: exception.ServiceType
    failing: type[exception.ServiceUnavailable] = exception.ServiceUnavailable
    patience: str = "the operation's own timeout"

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; registering twice is harmless."""
        register(conf, self.group, self.defaults)

    def list_opts(self) -> list[cfg.Opt]:
        """Return the options for oslo-config-generator."""
        return list_opts(self.defaults)
