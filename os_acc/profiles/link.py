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


"""Requests to a service of OpenStack's, and what their failures mean."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.rest import options

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter
    from requests import Response

    from os_acc.rest.retries import Retries

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Who is asked.

    :ivar name: as messages have it.
    :ivar group: of the options to reach it with.
    :ivar defaults: of theirs that differ from keystoneauth1's.
    :ivar version: the last part of its endpoints, where it may be left out
        and every path that is asked for has it; or empty.
    :ivar spoken: why no version can be chosen.
    :ivar unavailable: to raise where it does not answer.
    """

    name: str
    group: cfg.OptGroup
    defaults: Mapping[str, Any]
    version: str
    spoken: str
    unavailable: type[exception.OsAccError]

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; a second time changes nothing."""
        options.register(conf, self.group, self.defaults)

    def list_opts(self) -> list[cfg.Opt]:
        """For oslo-config-generator."""
        return options.list_opts(self.defaults)


class Link:
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
        question: Callable[[Adapter], Response],
        take: Callable[[Any], _T],
        about: str,
        deadline: float,
        refused: Callable[[int, str], exception.OsAccError | None] = (
            lambda _code, _told: None
        ),
    ) -> _T:
        """What is taken of the answer, which is JSON.

        :param take: raises KeyError, TypeError or ValueError where the answer
            is not this service's.
        :param about: what is asked for: "the device profiles".
        :param refused: what a status means, and what was told with it; None:
            what it means everywhere.
        :raises InvalidConfiguration: it does not let us in, or is not there.
        :raises OsAccError: it does not answer, or refuses.
        """
        from os_acc.rest import failures, retries

        adapter, patience = self._link()

        def translated(
            error: Exception, code: int | None, about: str, deadline: float
        ) -> exception.OsAccError:
            known = None if code is None else refused(code, _told(error))
            return known or self._translated(error, code, about, deadline)

        return retries.ask(
            lambda: take(_json(question(adapter))),
            patience,
            retries.Failures(_raised(), failures.is_connection, translated),
            about,
            deadline,
        )

    def _link(self) -> tuple[Adapter, Retries]:
        from keystoneauth1 import adapter

        from os_acc.rest.access import access

        service = self._service
        with self._lock:
            if self._made is None:
                found = access(
                    self._conf,
                    service.register,
                    service.group.name,
                    service.spoken,
                    exception.InvalidConfiguration,
                )
                where = found.where
                if service.version and (override := where["endpoint_override"]):
                    where["endpoint_override"] = override.rstrip("/").removesuffix(
                        f"/{service.version}"
                    )
                self._made = (
                    adapter.Adapter(found.session, auth=found.auth, **where),
                    found.retries,
                )
            return self._made

    def _translated(
        self, error: Exception, code: int | None, about: str, deadline: float
    ) -> exception.OsAccError:
        from os_acc.rest import failures

        name, group = self._service.name, self._service.group.name
        told = f"{about}: {failures.told(error)}"
        if time.monotonic() >= deadline:
            return self._service.unavailable(
                f"{name} did not answer in time for {told}",
                hint="raise the operation's own timeout if this is usual",
            )
        if failures.is_connection(error):
            return self._service.unavailable(
                f"nobody answers for {told}", hint=f"see that Keystone and {name} run"
            )
        if code is not None and (code >= 500 or code in (408, 429)):
            return self._service.unavailable(
                f"{name} cannot answer for {told}", hint="its own log says more"
            )
        if isinstance(error, ValueError | KeyError | TypeError):
            return exception.InvalidConfiguration(
                f"what answers for {about} is not {name}",
                hint=f"see endpoint_override in [{group}]",
            )
        return exception.InvalidConfiguration(
            f"cannot ask for {told}",
            hint=failures.where_to_look(error, group)
            or f"see endpoint_override in [{group}]",
        )


def _json(answer: Response) -> Any:
    return answer.json() if answer.content else None


def _told(error: Exception) -> str:
    """What a service says of its refusal, which keystoneauth1 does not read."""
    from os_acc.rest import failures

    try:
        (about,) = error.response.json().values()  # type: ignore[attr-defined]
        return " ".join(str(about["message"]).split())
    except (AttributeError, KeyError, TypeError, ValueError):
        return failures.told(error)


def _raised() -> tuple[type[Exception], ...]:
    from keystoneauth1 import exceptions as ksa

    return (ksa.ClientException, OSError, ValueError, KeyError, TypeError)
