# SPDX-License-Identifier: Apache-2.0

"""Requests to an OpenStack service, and the translation of their failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg

from os_acc import exception
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
        **told: Any,
    ) -> _T:
        """Send a request and return the parsed response.

        :param take: parses the response; raises one of
            :data:`os_acc.rest.errors.NOT_THEIRS` if the service did not send it.
        :param about: the operation, for messages: "list the device profiles".
        :param refused: returns the error for a rejected request; None stands for
            an invalid request.
        :param told: further arguments of keystoneauth1's adapter.
        :raises InvalidConfiguration: the service rejects the credentials, or the
            endpoint is wrong.
        :raises OsAccError: the service does not answer, or rejects the request.
        """
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import errors, retries

        adapter, patience = self._link()

        def question() -> _T:
            # raise_exc=False: the exceptions of keystoneauth1 come from Keystone alone.
            answer = adapter.request(path, method, raise_exc=False, **told)
            return take(self._checked(answer, about, refused))

        raised = (ksa.ClientException, OSError, *errors.NOT_THEIRS, _Failing)
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
        from os_acc.rest import responses

        status = answer.status_code
        if status < 300:
            return answer
        told = responses.refusal(answer)
        if _may_pass(status) or status == 401:
            raise _Failing(told)
        raise refused(answer) or exception.InvalidConfiguration(
            f"cannot {about}: {told}", hint=self._endpoint
        )

    @property
    def _endpoint(self) -> str:
        group = self._service.group.name
        return f"see endpoint_override and the catalogue's entry for [{group}]"

    def _translated(
        self, error: Exception, code: int | None, about: str, deadline: float
    ) -> exception.OsAccError:
        from os_acc.rest import errors

        service = self._service
        told = f"{about}: {errors.told(error)}"
        if time.monotonic() >= deadline:
            return exception.ServiceUnavailable(
                f"{service.name} did not answer in time to {told}",
                service=service.service_type,
                hint=f"raise {service.patience} if this is usual",
            )
        if errors.is_connection(error):
            return exception.ServiceUnavailable(
                f"cannot reach {service.name} to {told}",
                service=service.service_type,
                hint=f"see that Keystone and {service.name} run",
            )
        if code == 401:
            return exception.InvalidConfiguration(
                f"the credentials are refused to {told}",
                hint="see auth_type, auth_url and what else it needs in "
                f"[{service.group.name}]",
            )
        if isinstance(error, _Failing):
            return service.failing(
                f"{service.name} cannot answer to {told}",
                service=service.service_type,
                hint="its own log says more",
            )
        if code is not None and _may_pass(code):
            return exception.ServiceUnavailable(
                f"Keystone cannot answer to {told}",
                service=service.service_type,
                hint="its own log says more",
            )
        if isinstance(error, errors.ResponseUnread):
            return exception.ServiceUnavailable(
                f"cannot read the answer to {told}",
                service=service.service_type,
                hint=f"see {service.name}, and what is between it and this host",
            )
        if hint := errors.where_to_look(error, service.group.name):
            return exception.InvalidConfiguration(f"cannot {told}", hint=hint)
        return exception.InvalidConfiguration(
            f"what answers to {about} is not {service.name}: {errors.told(error)}",
            hint=self._endpoint,
        )


def _may_pass(status: int) -> bool:
    """Return whether the status is that of a temporary failure."""
    return status >= 500 or status in (408, 429)
