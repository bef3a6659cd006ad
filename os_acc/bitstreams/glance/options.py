# SPDX-License-Identifier: Apache-2.0

"""The options for Glance: those of keystoneauth1, in the group ``os_acc_glance``."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from os_acc import exception
from os_acc.rest import service
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
    defaults={"service_type": "image", **service.PATIENCE},
    version="v2",
    spoken="version 2 is spoken, and there is no other",
    unavailable=exception.ImageServiceUnavailable,
    failing=exception.ImageServiceUnavailable,
    missing=exception.ImageServiceNotConfigured,
)
register, list_opts = SERVICE.register, SERVICE.list_opts
