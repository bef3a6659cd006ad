# SPDX-License-Identifier: Apache-2.0

"""What Glance is asked with, made from the options."""

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
