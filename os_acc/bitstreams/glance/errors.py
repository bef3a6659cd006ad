# SPDX-License-Identifier: Apache-2.0

"""Translation of errors of glanceclient, keystoneauth1 and requests."""

from __future__ import annotations

import http.client
import time

from glanceclient import exc as glance
from keystoneauth1 import exceptions as ksa
from requests import Response

from os_acc import exception
from os_acc.bitstreams.glance.options import GROUP
from os_acc.rest import errors, responses
from os_acc.rest.retries import Failures


class GlanceRefused(Exception):
    """Glance, not Keystone, returned an error status."""


#: Every exception of an access to an image. OSError is the base of requests' errors;
#: the last group are glanceclient's errors for a response that is not Glance's.
RAISED = (
    ksa.ClientException,
    glance.BaseException,
    glance.ClientException,
    OSError,
    GlanceRefused,
    *errors.NOT_THEIRS,
)
# glanceclient's errors for a connection that was refused, dropped or timed out.
_NETWORK = (glance.CommunicationError, glance.InvalidEndpoint)
_REFUSED = (GlanceRefused, glance.HTTPException)


def is_connection(error: BaseException) -> bool:
    """Return whether the connection failed, rather than the response."""
    return errors.is_connection(error, _NETWORK)


def check(answer: Response) -> Response:
    """Return a successful response.

    :raises GlanceRefused: it has an error status.
    """
    if answer.status_code >= 300:
        raise GlanceRefused(responses.refusal(answer))
    return answer


def is_cut_short(error: BaseException) -> bool:
    """Return whether a response ended before its announced length."""
    return any(
        isinstance(cause, http.client.IncompleteRead) for cause in errors.chain(error)
    )


def translated(
    error: Exception, code: int | None, about: str, deadline: float
) -> exception.OsAccError:
    """Return the os_acc error for an exception.

    :param code: the status of the last response, if there is one.
    :param about: the requested object: "image <id>", "the images".
    """
    told = f"{about}: {errors.told(error)}"
    if time.monotonic() >= deadline:
        return exception.ServiceUnavailable(
            f"Glance did not answer in time for {told}",
            hint="raise the operation's own timeout if this is usual",
            service=exception.ServiceType.IMAGE,
        )
    if is_connection(error):
        return exception.ServiceUnavailable(
            f"cannot reach Glance for {told}",
            hint="see that Keystone and Glance run",
            service=exception.ServiceType.IMAGE,
        )
    if any(isinstance(each, errors.ResponseUnread) for each in errors.chain(error)):
        return exception.ServiceUnavailable(
            f"cannot read the answer for {told}",
            hint="see Glance, and what is between it and this host",
            service=exception.ServiceType.IMAGE,
        )
    if code is None or code < 400:
        return _misconfigured(error, told)
    return _answered(error, code, told)


def _answered(error: Exception, code: int, told: str) -> exception.OsAccError:
    if code >= 500 or code in (408, 429):
        return exception.ServiceUnavailable(
            f"the service cannot answer for {told}",
            hint="its own log says more",
            service=exception.ServiceType.IMAGE,
        )
    if code == 401:
        return exception.InvalidConfiguration(
            f"the credentials are refused for {told}",
            hint=f"see auth_url, user, project and password in [{GROUP.name}]",
        )
    if code == 403 and isinstance(error, _REFUSED):
        return exception.ImageNotFound(
            f"Glance does not let us have {told}",
            hint=f"see the roles of the user in [{GROUP.name}]",
        )
    if code == 404 and isinstance(error, _REFUSED):
        return exception.ImageNotFound(
            f"Glance has no {told}",
            hint="it does not exist, or is another project's and neither public "
            "nor shared with ours",
        )
    return exception.InvalidConfiguration(
        f"what answers cannot be asked for {told}", hint=_ENDPOINT
    )


def _misconfigured(error: Exception, told: str) -> exception.InvalidConfiguration:
    hint = errors.where_to_look(error, GROUP.name) or _ENDPOINT
    return exception.InvalidConfiguration(f"cannot ask for {told}", hint=hint)


_ENDPOINT = (
    f"see endpoint_override and auth_url in [{GROUP.name}]: Glance's is the "
    f"address without a version"
)

FAILURES = Failures(RAISED, is_connection, translated)
