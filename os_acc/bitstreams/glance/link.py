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

"""What Glance is asked with, made from the options."""

from __future__ import annotations

import dataclasses
from typing import Any

from glanceclient.common import http as glance_http
from keystoneauth1 import adapter
from oslo_config import cfg

from os_acc.bitstreams.glance.options import SERVICE
from os_acc.rest.access import access
from os_acc.rest.retries import Retries


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What to ask Glance with.

    :ivar client: glanceclient's, for the metadata of images.
    :ivar http: for their data, which glanceclient can neither begin in the
        middle nor always give back in pieces.
    """

    client: Any
    http: adapter.Adapter
    retries: Retries


def link(conf: cfg.ConfigOpts) -> Link:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    found = access(conf, SERVICE)
    where = found.where
    return Link(
        client=glance_http.SessionClient(
            session=found.session, auth=found.auth, **where
        ),
        http=adapter.Adapter(found.session, auth=found.auth, **where),
        retries=found.retries,
    )
