# SPDX-License-Identifier: Apache-2.0

"""The options for Glance: those of keystoneauth1, in the group ``os_acc_glance``."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

from os_acc import exception
from os_acc.rest.service import Service

GROUP = cfg.OptGroup(
    "os_acc_glance",
    title="Glance, as a source of bitstreams",
    help="Endpoint and credentials of the Image service, for bitstreams of FPGAs. "
    "os_acc never uses a tenant's token: it sees the images that this user "
    "sees. auth_section can name another section with these credentials, such "
    "as [placement] or [service_user].",
)

SERVICE: Final = Service(
    name="Glance",
    group=GROUP,
    version="v2",
    spoken="version 2 is the only one",
    service_type=exception.ServiceType.IMAGE,
)
