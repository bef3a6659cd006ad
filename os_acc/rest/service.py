# SPDX-License-Identifier: Apache-2.0

"""The services that os_acc calls, and the options of their endpoints."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from os_acc import exception

# Defaults of every service that differ from keystoneauth1's: without them, a
# request has no timeout, and the first refused connection fails it.
_PATIENCE: Final[Mapping[str, Any]] = {
    "valid_interfaces": ["internal", "public"],
    "timeout": 60,
    "connect_retries": 3,
    "status_code_retries": 3,
}
#: Adapter options that are not offered: the code determines the API version.
VERSIONS: Final = ("version", "min_version", "max_version")
# Two of the many ways to authenticate, for generators and documentation.
_LISTED = ("password", "v3applicationcredential")


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """An OpenStack service.

    :ivar name: the name in messages.
    :ivar group: the option group.
    :ivar version: the version suffix of the service's endpoints, where it is
        optional and every requested path contains it; else empty.
    :ivar spoken: the reason why the API version cannot be configured.
    :ivar failing: the error for a service that reports a failure of its own.
    :ivar patience: the option or argument that sets the deadline.
    """

    name: str
    group: cfg.OptGroup
    version: str
    spoken: str
    service_type: exception.ServiceType
    failing: type[exception.ServiceUnavailable] = exception.ServiceUnavailable
    patience: str = "the operation's own timeout"

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; registering twice is harmless.

        keystoneauth1 registers the options of the auth plugin when it loads it.
        """
        from keystoneauth1 import loading

        # See os_acc.conf.register().
        conf.register_group(copy.deepcopy(self.group))
        conf.register_opts(self._options(), group=self.group.name)
        loading.register_auth_conf_options(conf, self.group.name)

    def list_opts(self) -> list[cfg.Opt]:
        """Return the options for oslo-config-generator."""
        from keystoneauth1 import loading

        options = [
            *loading.get_auth_common_conf_options(),
            *(each for each in self._options() if each.dest not in VERSIONS),
        ]
        for name in _LISTED:
            options += loading.get_auth_plugin_conf_options(name)
        # The two plugins share most of their options.
        return list({each.dest: each for each in reversed(options)}.values())[::-1]

    def _options(self) -> list[cfg.Opt]:
        from keystoneauth1 import loading

        options = [
            *loading.get_session_conf_options(),
            *loading.get_adapter_conf_options(include_deprecated=False),
        ]
        cfg.set_defaults(options, service_type=self.service_type.value, **_PATIENCE)
        return options
