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

from typing import Final

from oslo_config import cfg

from os_acc import exception
from os_acc.rest import options
from os_acc.rest.service import Service

GROUP = cfg.OptGroup(
    "os_acc_glance",
    title="Glance, as os_acc uses it",
    help="How the Image service is reached for the bitstreams of FPGAs, and as "
    "whom. Nobody's token is handed on: os_acc sees the images that this user "
    "sees. auth_section names another section that has these credentials "
    "already, as [placement] or [service_user] do.",
)

SERVICE: Final = Service(
    name="Glance",
    group=GROUP,
    defaults={"service_type": "image", **options.PATIENCE},
    version="v2",
    spoken="version 2 is spoken, and there is no other",
    unavailable=exception.ImageServiceUnavailable,
    failing=exception.ImageServiceUnavailable,
    missing=exception.ImageServiceNotConfigured,
)
register, list_opts = SERVICE.register, SERVICE.list_opts
