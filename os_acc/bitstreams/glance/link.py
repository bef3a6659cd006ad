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

from keystoneauth1 import adapter
from oslo_config import cfg

from os_acc.bitstreams.glance.options import SERVICE
from os_acc.rest.access import access
from os_acc.rest.retries import Retries


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What to ask Glance with.

    glanceclient builds its classes from a schema that the server sends, and does
    not begin in the middle of data.
    """

    http: adapter.Adapter
    retries: Retries


def link(conf: cfg.ConfigOpts) -> Link:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    found = access(conf, SERVICE)
    return Link(
        http=adapter.Adapter(found.session, auth=found.auth, **found.where),
        retries=found.retries,
    )
