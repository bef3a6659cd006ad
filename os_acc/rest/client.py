# SPDX-License-Identifier: Apache-2.0

"""Requests to an OpenStack service, and the translation of their failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.rest import responses
from os_acc.rest.service import Service

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter
    from requests import Response

    from os_acc.rest.retries import Retries

_T = TypeVar("_T")


class _Failing(Exception):
    """The service cannot answer now (408, 429, 5xx), or it rejects the user (401).

    Any other exception with a status comes from Keystone.
    """


def _not_judged(_answer: Response) -> exception.OsAccError | None:
    return None


class ServiceClient:
    """A client of one service; thread-safe.

    keystoneauth1 is imported at the first request.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts, service: Service) -> None:
        self._conf = conf
        self._service = service
        self._lock = threading.Lock()
        self._made: tuple[Adapter, Retries] | None = None

    def ask(
        self,
        method: str,
        path: str,
        take: Callable[[Response], _T],
        about: str,
        deadline: float,
        refused: Callable[[Response], exception.OsAccError | None] = _not_judged,
        **arguments: Any,
    ) -> _T:
        """Send a request and return the parsed response.

        :param take: parses the response; raises one of
            :data:`os_acc.rest.responses.NOT_THEIRS` if the service did not send it.
        :param about: the operation, for messages: "list the device profiles".
        :param refused: returns the error for a rejected request; None stands for
            an invalid request.
        :param arguments: further arguments of keystoneauth1's adapter.
        :raises InvalidConfiguration: the service rejects the credentials, or the
            endpoint is wrong.
        :raises OsAccError: the service does not answer, or rejects the request.
        """
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import errors, retries

        adapter, patience = self._link()

        def question() -> _T:
            # raise_exc=False: the exceptions of keystoneauth1 come from Keystone alone.
            answer = adapter.request(path, method, raise_exc=False, **arguments)
            return take(self._checked(answer, about, refused))

        raised = (ksa.ClientException, OSError, *responses.NOT_THEIRS, _Failing)
        return retries.ask(
            question,
            patience,
            retries.Failures(raised, errors.is_connection, self._translated),
            about,
            deadline,
        )

    def _link(self) -> tuple[Adapter, Retries]:
        from keystoneauth1 import adapter

        from os_acc.rest.session import access

        with self._lock:
            if self._made is None:
                found = access(self._conf, self._service)
                self._made = (
                    adapter.Adapter(found.session, auth=found.auth, **found.where),
                    found.retries,
                )
            return self._made

    def _checked(
        self,
        answer: Response,
        about: str,
        refused: Callable[[Response], exception.OsAccError | None],
    ) -> Response:
        """Return a successful response.

        :raises _Failing: the request failed and may be retried.
        """
        status = answer.status_code
        if status < 300:
            return answer
        detail = responses.refusal(answer)
        if _may_pass(status) or status == 401:
            raise _Failing(detail)
        raise refused(answer) or exception.InvalidConfiguration(
            f"cannot {about}: {detail}", hint=self._endpoint
        )

    @property
    def _endpoint(self) -> str:
        group = self._service.group.name
        return f"check endpoint_override in [{group}] and the service catalog"

    def _translated(
        self, error: Exception, code: int | None, about: str, deadline: float
    ) -> exception.OsAccError:
        from os_acc.rest import errors

        service = self._service
        detail = errors.summary(error)
        if time.monotonic() >= deadline:
            return exception.ServiceUnavailable(
                f"cannot {about}: {service.name} did not answer in time: {detail}",
                service=service.service_type,
                hint=f"check the load of {service.name}, or raise {service.patience}",
            )
        if errors.is_connection(error):
            return exception.ServiceUnavailable(
                f"cannot reach {service.name} to {about}: {detail}",
                service=service.service_type,
                hint=f"check that Keystone and {service.name} run, and the network "
                "to them",
            )
        if code == 401:
            return exception.InvalidConfiguration(
                f"cannot {about}: the credentials are rejected: {detail}",
                hint="check auth_type, auth_url and the credentials in "
                f"[{service.group.name}]",
            )
        if isinstance(error, _Failing):
            return service.failing(
                f"cannot {about}: {service.name} failed: {detail}",
                service=service.service_type,
                hint=f"see the log of {service.name}",
            )
        if code is not None and _may_pass(code):
            return exception.ServiceUnavailable(
                f"cannot {about}: Keystone failed: {detail}",
                service=service.service_type,
                hint="see the log of Keystone",
            )
        if isinstance(error, responses.ResponseUnread):
            return exception.ServiceUnavailable(
                f"cannot {about}: the response cannot be read: {detail}",
                service=service.service_type,
                hint=f"check {service.name}, and the proxies between it and this host",
            )
        if hint := errors.where_to_look(error, service.group.name):
            return exception.InvalidConfiguration(
                f"cannot {about}: {detail}", hint=hint
            )
        return exception.InvalidConfiguration(
            f"cannot {about}: the response is not from {service.name}: {detail}",
            hint=self._endpoint,
        )


def _may_pass(status: int) -> bool:
    """Return whether the status is that of a temporary failure."""
    return status >= 500 or status in (408, 429)
