# SPDX-License-Identifier: Apache-2.0

"""What Glance is asked with, made from the options."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from glanceclient.common import http as glance_http
from keystoneauth1 import adapter
from oslo_config import cfg

from os_acc import exception
from os_acc.rest import service
from os_acc.rest.retries import Retries
from os_acc.rest.service import Service
from os_acc.rest.session import access

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


@dataclasses.dataclass(frozen=True, slots=True)
class GlanceSession:
    """What to ask Glance with.

    :ivar client: glanceclient's, for the metadata of images.
    :ivar http: for their data, which glanceclient can neither begin in the
        middle nor always give back in pieces.
    """

    client: Any
    http: adapter.Adapter
    retries: Retries


def link(conf: cfg.ConfigOpts) -> GlanceSession:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    found = access(conf, SERVICE)
    where = found.where
    return GlanceSession(
        client=glance_http.SessionClient(
            session=found.session, auth=found.auth, **where
        ),
        http=adapter.Adapter(found.session, auth=found.auth, **where),
        retries=found.retries,
    )
