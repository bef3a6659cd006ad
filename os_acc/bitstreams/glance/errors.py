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
    *responses.NOT_THEIRS,
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
    detail = errors.summary(error)
    if time.monotonic() >= deadline:
        return exception.ServiceUnavailable(
            f"cannot get {about}: Glance did not answer in time: {detail}",
            hint="check the load of Glance, or raise the operation's own timeout",
            service=exception.ServiceType.IMAGE,
        )
    if is_connection(error):
        return exception.ServiceUnavailable(
            f"cannot reach Glance for {about}: {detail}",
            hint="check that Keystone and Glance run, and the network to them",
            service=exception.ServiceType.IMAGE,
        )
    if any(isinstance(each, responses.ResponseUnread) for each in errors.chain(error)):
        return exception.ServiceUnavailable(
            f"cannot get {about}: the response cannot be read: {detail}",
            hint="check Glance, and the proxies between it and this host",
            service=exception.ServiceType.IMAGE,
        )
    if code is None or code < 400:
        return _misconfigured(error, about, detail)
    return _answered(error, code, about, detail)


def _answered(
    error: Exception, code: int, about: str, detail: str
) -> exception.OsAccError:
    if code >= 500 or code in (408, 429):
        return exception.ServiceUnavailable(
            f"cannot get {about}: the service failed: {detail}",
            hint="see the logs of Glance and Keystone",
            service=exception.ServiceType.IMAGE,
        )
    if code == 401:
        return exception.InvalidConfiguration(
            f"cannot get {about}: the credentials are rejected: {detail}",
            hint=f"check auth_url, user, project and password in [{GROUP.name}]",
        )
    if code == 403 and isinstance(error, _REFUSED):
        return exception.ImageNotFound(
            f"Glance denies access to {about}: {detail}",
            hint=f"check the roles of the user in [{GROUP.name}]",
        )
    if code == 404 and isinstance(error, _REFUSED):
        return exception.ImageNotFound(
            f"Glance has no {about}: {detail}",
            hint="it does not exist, or another project owns it, and it is "
            "neither public nor shared with the project in "
            "[os_acc_glance]",
        )
    return exception.InvalidConfiguration(
        f"cannot get {about}: the endpoint is not Glance's: {detail}", hint=_ENDPOINT
    )


def _misconfigured(
    error: Exception, about: str, detail: str
) -> exception.InvalidConfiguration:
    hint = errors.where_to_look(error, GROUP.name) or _ENDPOINT
    return exception.InvalidConfiguration(f"cannot get {about}: {detail}", hint=hint)


_ENDPOINT = (
    f"check endpoint_override and auth_url in [{GROUP.name}]; "
    "endpoint_override is Glance's URL without a version"
)

FAILURES = Failures(RAISED, is_connection, translated)
