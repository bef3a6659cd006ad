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

from oslo_config import cfg

from os_acc.rest import options

GROUP = cfg.OptGroup(
    "os_acc_glance",
    title="Glance, as os_acc uses it",
    help="How the Image service is reached for the bitstreams of FPGAs, and as "
    "whom. Nobody's token is handed on: os_acc sees the images that this user "
    "sees. auth_section names another section that has these credentials "
    "already, as [placement] or [service_user] do.",
)

#: What differs from keystoneauth1's defaults.
DEFAULTS = {"service_type": "image", **options.PATIENCE}


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second time changes nothing."""
    options.register(conf, GROUP, DEFAULTS)


def list_opts() -> list[cfg.Opt]:
    """For oslo-config-generator."""
    return options.list_opts(DEFAULTS)
