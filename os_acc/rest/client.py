# SPDX-License-Identifier: Apache-2.0

"""Requests to a service of OpenStack's, and what their failures mean."""

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
    """The service itself answers that it cannot now, or knows no such user.

    Whatever else has a status was told by Keystone.
    """


def _not_judged(_answer: Response) -> exception.OsAccError | None:
    return None


class ServiceClient:
    """One service, asked by threads that may share this.

    keystoneauth1 is imported when something is first asked.

    :param conf: as it is by then.
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
        """What is taken of the answer.

        :param take: raises one of :data:`os_acc.rest.errors.NOT_THEIRS` where
            the answer is not this service's.
        :param about: what it is asked to do: "list the device profiles".
        :param refused: what its refusal means; None: that it is asked wrongly.
        :param told: what else keystoneauth1's adapter takes for a request.
        :raises InvalidConfiguration: it does not let us in, or is not there.
        :raises OsAccError: it does not answer, or refuses.
        """
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import errors, retries

        adapter, patience = self._link()

        def question() -> _T:
            # What keystoneauth1 raises by itself, Keystone has refused.
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
        """An answer that is one.

        :raises _Failing: it is none, and may be asked for again.
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
            return service.unavailable(
                f"{service.name} did not answer in time to {told}",
                hint=f"raise {service.patience} if this is usual",
            )
        if errors.is_connection(error):
            return service.unavailable(
                f"nobody answers to {told}",
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
                f"{service.name} cannot answer to {told}", hint="its own log says more"
            )
        if code is not None and _may_pass(code):
            return service.unavailable(
                f"Keystone cannot answer to {told}", hint="its own log says more"
            )
        if isinstance(error, errors.ResponseUnread):
            return service.unavailable(
                f"cannot read the answer to {told}",
                hint=f"see {service.name}, and what is between it and this host",
            )
        if hint := errors.where_to_look(error, service.group.name):
            return exception.InvalidConfiguration(f"cannot {told}", hint=hint)
        return exception.InvalidConfiguration(
            f"what answers to {about} is not {service.name}: {errors.told(error)}",
            hint=self._endpoint,
        )


def _may_pass(status: int) -> bool:
    """Whether the same may be answered at another time."""
    return status >= 500 or status in (408, 429)
