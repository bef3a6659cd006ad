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


"""Requests to Placement over keystoneauth1, and what their failures mean."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from keystoneauth1 import adapter
from keystoneauth1 import exceptions as ksa
from oslo_config import cfg
from requests import Response

from os_acc import exception
from os_acc.placement import client, options
from os_acc.placement.known import Version
from os_acc.rest import failures, retries
from os_acc.rest.access import access

_T = TypeVar("_T")

_GROUP: Final = options.GROUP.name
_SPOKEN: Final = "the microversion is agreed on with the server"
_ENDPOINT: Final = f"see endpoint_override and the catalogue's entry for [{_GROUP}]"

#: Everything that is raised on the way; ValueError and KeyError by an answer
#: that is not Placement's.
_RAISED = (ksa.ClientException, OSError, ValueError, KeyError, TypeError)


class Answered(exception.PlacementRefused):
    """Placement does not do what it is asked to.

    :ivar status: of HTTP.
    :ivar code: Placement's own, such as ``placement.duplicate_name``.
    """

    def __init__(self, message: str, *, status: int, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


class Broken(exception.PlacementUnavailable):
    """Placement says that it has failed; others of its answers may be sound."""


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What to ask Placement with."""

    http: adapter.Adapter
    retries: retries.Retries

    def version(self, deadline: float) -> Version:
        """The newest microversion that both sides know.

        :raises PlacementTooOld: the server's is older than is needed.
        """

        about = "ask for its version"

        def question() -> Version:
            told = _checked(self.http.get("/", raise_exc=False), about)
            return Version.parse(told.json()["versions"][0]["max_version"])

        newest = retries.ask(question, self.retries, _FAILURES, about, deadline)
        if newest < client.NEEDED:
            raise exception.PlacementTooOld(
                f"Placement knows microversion {newest}, {client.NEEDED} is needed"
            )
        return min(newest, client.NEWEST)

    def ask(
        self,
        method: str,
        path: str,
        version: Version,
        deadline: float,
        about: str,
        take: Callable[[Response], _T],
        body: object = None,
    ) -> _T:
        """What is taken of the answer to one request.

        :param about: what it is for, as a message has it: "make x".
        :param take: raises KeyError, TypeError or ValueError where the answer
            is not Placement's.
        :raises OsAccError: see :class:`os_acc.placement.client.Client`.
        """
        headers = {
            "Accept": "application/json",
            "OpenStack-API-Version": f"placement {version}",
        }
        told: dict[str, Any] = {} if body is None else {"json": body}

        def question() -> _T:
            answer = self.http.request(
                path, method, headers=headers, raise_exc=False, **told
            )
            return take(_checked(answer, about))

        return retries.ask(question, self.retries, _FAILURES, about, deadline)


def link(conf: cfg.ConfigOpts) -> Link:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    found = access(
        conf, options.register, _GROUP, _SPOKEN, exception.PlacementNotConfigured
    )
    return Link(
        adapter.Adapter(found.session, auth=found.auth, **found.where), found.retries
    )


def _checked(answer: Response, about: str) -> Response:
    """An answer that is one.

    :raises HttpError: it is none, so that it may be asked for again.
    """
    status = answer.status_code
    if status < 300:
        return answer
    if status >= 500 or status in (401, 408, 429):
        raise ksa.from_response(answer, answer.request.method or "", answer.url)
    code, detail = _told(answer)
    if code == "placement.concurrent_update":
        raise exception.PlacementConflict(f"cannot {about}: {detail}")
    if status == 403:
        raise Answered(
            f"Placement does not let us {about}: {detail}",
            status=status,
            code=code,
            hint=f"give the user in [{_GROUP}] the role service or admin",
        )
    raise Answered(f"Placement does not {about}: {detail}", status=status, code=code)


def _told(answer: Response) -> tuple[str, str]:
    """(code, detail) of a refusal; HTTP's own where it is not Placement's."""
    try:
        (error, *_) = answer.json()["errors"]
        return error.get("code", ""), " ".join(error["detail"].split())
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", f"HTTP {answer.status_code}"


def _translated(
    error: Exception, code: int | None, about: str, deadline: float
) -> exception.OsAccError:
    told = f"{about}: {failures.told(error)}"
    if time.monotonic() >= deadline:
        return exception.PlacementUnavailable(
            f"Placement did not answer in time to {told}",
            hint=f"raise [{_GROUP}] sync_timeout if this is usual",
        )
    if failures.is_connection(error):
        return exception.PlacementUnavailable(
            f"nobody answers to {told}", hint="see that Keystone and Placement run"
        )
    if code == 401:
        return exception.InvalidConfiguration(
            f"the credentials are refused to {told}",
            hint=f"see auth_url, user, project and password in [{_GROUP}]",
        )
    if code is not None and (code >= 500 or code in (408, 429)):
        return Broken(f"the service fails to {told}", hint="its own log says more")
    hint = failures.where_to_look(error, _GROUP) or _ENDPOINT
    return exception.InvalidConfiguration(f"cannot {told}", hint=hint)


_FAILURES = retries.Failures(_RAISED, failures.is_connection, _translated)
