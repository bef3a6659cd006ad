# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""How Glance is reached: keystoneauth1's own options, in a group of ours."""

from __future__ import annotations

import copy

from oslo_config import cfg

GROUP = cfg.OptGroup(
    "os_acc_glance",
    title="Glance, as os_acc uses it",
    help="How the Image service is reached for the bitstreams of FPGAs, and as "
    "whom. Nobody's token is handed on: os_acc sees the images that this user "
    "sees. auth_section names another section that has these credentials "
    "already, as [placement] or [service_user] do.",
)

#: What differs from keystoneauth1's defaults. It waits for ever, and gives up
#: at the first refused connection.
DEFAULTS = {
    "service_type": "image",
    "valid_interfaces": ["internal", "public"],
    "timeout": 60,
    "connect_retries": 3,
    "status_code_retries": 3,
}
#: Options of an adapter that cannot be chosen: glanceclient speaks version 2.
VERSIONS = ("version", "min_version", "max_version")
# Two of the many ways to authenticate, for generators and documentation.
_LISTED = ("password", "v3applicationcredential")


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second time changes nothing.

    Those of the plugin that ``auth_type`` names come when it is loaded.
    """
    from keystoneauth1 import loading

    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(_options(), group=GROUP.name)
    loading.register_auth_conf_options(conf, GROUP.name)


def list_opts() -> list[cfg.Opt]:
    """For oslo-config-generator."""
    from keystoneauth1 import loading

    options = [
        *loading.get_auth_common_conf_options(),
        *(option for option in _options() if option.dest not in VERSIONS),
    ]
    for name in _LISTED:
        options += loading.get_auth_plugin_conf_options(name)
    # The two have most of theirs in common.
    return list({option.dest: option for option in reversed(options)}.values())[::-1]


def _options() -> list[cfg.Opt]:
    from keystoneauth1 import loading

    options = [
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(include_deprecated=False),
    ]
    cfg.set_defaults(options, **DEFAULTS)
    return options
