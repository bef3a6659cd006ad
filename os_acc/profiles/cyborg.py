# SPDX-License-Identifier: Apache-2.0

"""Device profiles from Cyborg's API, version 2.

``GET /v2/device_profiles``: https://docs.openstack.org/api-ref/accelerator/.
This is the only request to Cyborg, and it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from os_acc import exception
from os_acc.objects.request_group import DeviceProfile
from os_acc.profiles import parser
from os_acc.profiles.options import CYBORG, CheckedProfile
from os_acc.rest import responses
from os_acc.rest.client import ServiceClient
from os_acc.rest.service import Service

if TYPE_CHECKING:
    from requests import Response

SERVICE: Final = Service(
    name="Cyborg",
    group=CYBORG,
    version="v2",
    spoken="version 2 is the only one",
    service_type=exception.ServiceType.ACCELERATOR,
)


class Cyborg:
    """Cyborg as a :class:`os_acc.profiles.options.ProfileSource`; thread-safe.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._link = ServiceClient(conf, SERVICE)

    def profile(self, name: str, deadline: float) -> DeviceProfile:
        """See :meth:`os_acc.profiles.options.ProfileSource.profile`.

        :raises InvalidConfiguration: Cyborg denies access, or the endpoint is wrong.
        """
        for entry in self._listed(deadline):
            if isinstance(entry, Mapping) and parser.is_called(entry, name):
                return parser.read(entry)
        raise exception.NotFound(
            f"Cyborg has no device profile {exception.show(name)}",
            hint="'os-acc profile list' lists the existing ones",
            kind=exception.ObjectKind.PROFILE,
        )

    def checked(self, deadline: float) -> Iterator[tuple[str, CheckedProfile]]:
        """See :meth:`os_acc.profiles.options.ProfileSource.checked`.

        :raises InvalidConfiguration: Cyborg denies access, or the endpoint is wrong.
        """
        for entry in self._listed(deadline):
            try:
                yield SERVICE.name, parser.read(entry)
            except exception.InvalidProfile as error:
                yield SERVICE.name, error

    def _listed(self, deadline: float) -> list[object]:
        # The whole list, as Nova reads it: Cyborg has no pages, and some releases
        # cannot filter by name.
        return self._link.ask(
            "GET",
            "/v2/device_profiles",
            _profiles,
            "list the device profiles",
            deadline,
        )


def _profiles(answer: Response) -> list[object]:
    # Not parsed yet: an invalid profile must not hide the others.
    return [each.found for each in responses.document(answer)["device_profiles"]]
