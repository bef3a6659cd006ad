# SPDX-License-Identifier: Apache-2.0

"""Session with Glance, from its options."""

from __future__ import annotations

import dataclasses
from typing import Any

from glanceclient.common import http as glance_http
from keystoneauth1 import adapter
from oslo_config import cfg

from os_acc.bitstreams.glance.options import SERVICE
from os_acc.rest.retries import Retries
from os_acc.rest.session import access


@dataclasses.dataclass(frozen=True, slots=True)
class GlanceSession:
    """The clients of Glance.

    :ivar client: glanceclient's HTTP client, for the metadata of images.
    :ivar http: an adapter for image data, which glanceclient can neither request
        from an offset nor always return in pieces.
    """

    client: Any
    http: adapter.Adapter
    retries: Retries


def link(conf: cfg.ConfigOpts) -> GlanceSession:
    """Read the options, without any request.

    :raises InvalidConfiguration: options are missing or invalid.
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
