# SPDX-License-Identifier: Apache-2.0

"""Requests to an OpenStack service, and the translation of their failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oslo_config import cfg

from os_acc import deadlines, exception
from os_acc.rest import responses
from os_acc.rest.service import Service

if TYPE_CHECKING:
    from requests import Response

    from os_acc.rest.session import Call, ServiceAccess

_T = TypeVar("_T")

#: Calls that may run after their deadline, until the client makes no further call.
MOST_ABANDONED: Final = 8


class _Failing(Exception):
    """The service cannot answer now (408, 429, 5xx), or it rejects the user (401).

    Any other exception with a status comes from Keystone.
    """


class ServiceClient:
    """A client of one service; thread-safe.

    keystoneauth1 is imported at the first request, and makes the retries. It sleeps
    between them, and requests reads a slow response, past any deadline. Each call
    therefore runs in a thread of its own, and is abandoned at its deadline; it sends
    no request after that. A server that sends a byte now and then keeps the thread.

    :param conf: the configuration, read at the first request.
    :ivar service: the service.
    """

    def __init__(self, conf: cfg.ConfigOpts, service: Service) -> None:
        self._conf = conf
        self.service = service
        self.forget_parent()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """Forget the connections and the abandoned calls of the parent process."""
        self._lock = threading.Lock()
        self._made: ServiceAccess | None = None
        self._abandoned: set[futures.Future[Any]] = set()

    def ask(
        self,
        method: str,
        path: str,
        take: Callable[[Response], _T],
        about: str,
        deadline: float,
        refused: Callable[[Response], exception.OsAccError | None] = lambda _: None,
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

        def question(access: ServiceAccess) -> _T:
            # raise_exc=False: the exceptions of keystoneauth1 come from Keystone alone.
            answer = access.adapter().request(
                path, method, raise_exc=False, **arguments
            )
            if answer.status_code >= 300:
                raise self.rejection(
                    answer.status_code,
                    responses.refusal(answer),
                    about,
                    refused(answer),
                )
            return take(answer)

        return self.call(question, about, deadline)

    def call(
        self, question: Callable[[ServiceAccess], _T], about: str, deadline: float
    ) -> _T:
        """Send requests with the session of the service, and return the result.

        :param question: sends them; raises one of
            :data:`os_acc.rest.responses.NOT_THEIRS` for a malformed response.
        :raises OsAccError: as in :meth:`ask`, or raised by ``question``.
        """
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import session

        with self._lock:
            if self._made is None:
                self._made = session.access(self._conf, self.service)
            access = self._made
        call = session.Call(deadline)

        def run() -> _T:
            session.thread.call = call
            return question(access)

        try:
            return self.detached(about, deadline, run)
        except exception.OsAccError:
            raise
        except (ksa.ClientException, OSError, *responses.NOT_THEIRS, _Failing) as error:
            raise self._error(error, call, about) from error

    def detached(
        self, about: str, deadline: float, function: Callable[..., _T], *args: object
    ) -> _T:
        """Call a function, and abandon the call at the deadline.

        :raises TimeoutError: it was abandoned.
        :raises ServiceUnavailable: too many abandoned calls have not ended.
        :raises DeviceStuck: the service has reached its limit of threads.
        """
        with self._lock:
            self._abandoned = {each for each in self._abandoned if not each.done()}
        if len(self._abandoned) >= MOST_ABANDONED:
            raise self._unavailable(
                f"cannot {about}: {MOST_ABANDONED} earlier requests to "
                f"{self.service.name} have neither ended nor failed",
                f"check {self.service.name}, and the proxies between it and this host",
            )
        answer = deadlines.begin(function, *args)
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            with self._lock:
                self._abandoned.add(answer)
            raise

    # -- failures --------------------------------------------------------------

    def rejection(
        self,
        status: int,
        detail: str,
        about: str,
        refused: exception.OsAccError | None,
    ) -> Exception:
        """Return the exception for a response of the service with an error status.

        :param refused: the error if the service rejects the request; None stands
            for an invalid request.
        """
        if _is_temporary(status) or status == 401:
            return _Failing(detail)
        return refused or exception.InvalidConfiguration(
            f"cannot {about}: {detail}", hint=self._endpoint
        )

    def _unavailable(self, message: str, hint: str) -> exception.ServiceUnavailable:
        return exception.ServiceUnavailable(
            message, hint=hint, service=self.service.service_type
        )

    @property
    def _endpoint(self) -> str:
        group = self.service.group.name
        return f"check endpoint_override in [{group}] and the service catalog"

    def _error(self, error: Exception, call: Call, about: str) -> exception.OsAccError:
        from os_acc.rest import session

        service, group, detail = self.service, self.service.group.name, summary(error)
        if time.monotonic() >= call.deadline:
            last = f"; the last response was HTTP {call.status}" if call.status else ""
            return self._unavailable(
                f"cannot {about}: {service.name} did not answer in time{last}",
                f"check the load of {service.name}, or raise {service.patience}",
            )
        if isinstance(error, responses.ResponseUnreadable):
            return self._unavailable(
                f"cannot {about}: the response cannot be read: {detail}",
                f"check {service.name}, and the proxies between it and this host",
            )
        if session.is_connection(error):
            return self._unavailable(
                f"cannot reach {service.name} to {about}: {detail}",
                f"check that Keystone and {service.name} run, and the network to them",
            )
        if call.status == 401:
            return exception.InvalidConfiguration(
                f"cannot {about}: the credentials are rejected: {detail}",
                hint=f"check auth_type, auth_url and the credentials in [{group}]",
            )
        if isinstance(error, _Failing):
            return service.failing(
                f"cannot {about}: {service.name} failed: {detail}",
                service=service.service_type,
                hint=f"see the log of {service.name}",
            )
        if _is_temporary(call.status or 0):
            return self._unavailable(
                f"cannot {about}: Keystone failed: {detail}", "see the log of Keystone"
            )
        if hint := session.where_to_look(error, group):
            return exception.InvalidConfiguration(
                f"cannot {about}: {detail}", hint=hint
            )
        return exception.InvalidConfiguration(
            f"cannot {about}: the response is not from {service.name}: {detail}",
            hint=self._endpoint,
        )


def summary(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class name."""
    first = str(error).strip().partition("\n")[0]
    return first or type(error).__name__


def _is_temporary(status: int) -> bool:
    return status >= 500 or status in (408, 429)
