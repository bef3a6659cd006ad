# SPDX-License-Identifier: Apache-2.0

"""Flavors with the groups of a device profile, through Nova's API.

``/flavors`` and ``/flavors/{id}/os-extra_specs`` of
https://docs.openstack.org/api-ref/compute/, with microversion 2.86, in which Nova
validates extra specs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.profiles.options import NOVA
from os_acc.rest import responses
from os_acc.rest.client import Service, ServiceClient

if TYPE_CHECKING:
    from requests import Response

_T = TypeVar("_T")

MICROVERSION: Final = "2.86"
SERVICE: Final = Service(
    name="Nova",
    group=NOVA,
    version="",
    spoken="os_acc requests the microversions itself",
    service_type=exception.ServiceType.COMPUTE,
)
_VERBS: Final = {"GET": "read", "POST": "change", "DELETE": "change"}


@dataclasses.dataclass(frozen=True, slots=True)
class FlavorUpdate:
    """The result of an update of a flavor.

    :ivar removed: keys of an earlier profile with the same prefix.
    :ivar properties: all properties after the update.
    """

    name: str
    removed: tuple[str, ...]
    properties: Mapping[str, str]


class Flavors:
    """The flavors of a cloud, for administrators.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._link = ServiceClient(conf, SERVICE)

    def apply(
        self, flavor: str, properties: Mapping[str, str], prefix: str, deadline: float
    ) -> FlavorUpdate:
        """Set a profile's properties, and remove those of an earlier profile.

        Properties that are set already are not sent. New properties are set before
        old ones are removed: if Nova rejects them, the flavor is unchanged.

        :param flavor: the flavor's ID or name.
        :param prefix: the prefix of the suffixes of the profile's groups.
        :raises NotFound: the flavor does not exist.
        :raises ServiceRefused: Nova rejects the properties.
        :raises ServiceUnavailable: Nova does not answer.
        :raises InvalidConfiguration: Nova denies access, or the endpoint is wrong.
        """
        found_id, name = self._found(flavor, deadline)
        path = f"/flavors/{urllib.parse.quote(found_id, safe='')}/os-extra_specs"
        about = f"the properties of flavor {exception.show(name)}"
        before = self._ask("GET", path, about, _specs, deadline)
        if not properties.items() <= before.items():
            body = {"extra_specs": dict(properties)}
            self._ask("POST", path, about, _specs, deadline, json=body)
        ours = re.compile(rf"(?:resources|trait|os_acc){re.escape(prefix)}\d+:.+")
        stale = filter(ours.fullmatch, before.keys() - properties.keys())
        removed = tuple(sorted(stale))
        for key in removed:
            where = f"{path}/{urllib.parse.quote(key, safe='')}"
            # Another client may have removed it.
            with contextlib.suppress(exception.NotFound):
                self._ask("DELETE", where, about, lambda _empty: None, deadline)
        kept = {key: value for key, value in before.items() if key not in removed}
        return FlavorUpdate(name, removed, {**kept, **properties})

    def _found(self, flavor: str, deadline: float) -> tuple[str, str]:
        """Return the ID and name of a flavor; an ID takes precedence over a name."""
        named = []
        for found_id, name in self._flavors(deadline):
            if found_id == flavor:
                return found_id, name
            if name == flavor:
                named.append((found_id, name))
        if named:
            return named[0]
        raise exception.NotFound(
            f"Nova has no flavor {exception.show(flavor)}",
            hint="'openstack flavor list --all' lists the existing ones",
            kind=exception.ObjectKind.FLAVOR,
        )

    def _flavors(self, deadline: float) -> Iterator[tuple[str, str]]:
        # is_public=None lists private flavors, too.
        marker, before = "", set()
        while True:
            asked = {"is_public": "None", **({"marker": marker} if marker else {})}
            path = f"/flavors?{urllib.parse.urlencode(asked)}"
            page = self._ask("GET", path, "the flavors", _page, deadline)
            yield from page
            # A marker that repeats would lead to an endless loop.
            if not page or page[-1][0] in before:
                return
            marker = page[-1][0]
            before.add(marker)

    def _ask(
        self,
        method: str,
        path: str,
        about: str,
        take: Callable[[Response], _T],
        deadline: float,
        **arguments: Any,
    ) -> _T:
        return self._link.ask(
            method,
            path,
            take,
            f"{_VERBS[method]} {about}",
            deadline,
            lambda answer: _refused(path, about, answer),
            microversion=MICROVERSION,
            **arguments,
        )


def _refused(path: str, about: str, answer: Response) -> exception.OsAccError | None:
    code, why = answer.status_code, responses.refusal(answer)
    if code == 406:
        return exception.ServiceRefused(
            f"Nova does not support microversion {MICROVERSION}, which validates extra "
            "specs",
            hint="upgrade Nova to 21.0.0 (Ussuri) or later, or set the properties that "
            "'os-acc profile apply' prints without --set",
            service=exception.ServiceType.COMPUTE,
        )
    if code == 403:
        return exception.ServiceRefused(
            f"Nova denies access to {about}: {why}",
            hint=f"give the user in [{NOVA.name}] the role admin",
            service=exception.ServiceType.COMPUTE,
        )
    if code == 404 and "os-extra_specs" in path:
        return exception.NotFound(
            f"Nova no longer has {about}: {why}", kind=exception.ObjectKind.FLAVOR
        )
    if code in (400, 409):
        return exception.ServiceRefused(
            f"Nova rejects {about}: {why}",
            hint="'os-acc check' shows whether Nova validates the keys of os_acc",
            service=exception.ServiceType.COMPUTE,
        )
    return None


def _specs(answer: Response) -> dict[str, str]:
    specs = responses.document(answer)["extra_specs"]
    return {key: value.text() for key, value in specs.items()}


def _page(answer: Response) -> list[tuple[str, str]]:
    return [
        (each["id"].text(), each["name"].text())
        for each in responses.document(answer)["flavors"]
    ]
