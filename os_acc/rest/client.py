# SPDX-License-Identifier: Apache-2.0

"""Requests to an OpenStack service, its options, and the errors of its failures."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oslo_config import cfg

from os_acc import deadlines, exception
from os_acc.rest import responses

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter
    from requests import Response

    from os_acc.rest.session import Call

_T = TypeVar("_T")

#: Calls that may run after their deadline, until the client makes no further call.
MOST_ABANDONED: Final = 8

# Defaults of every service that differ from keystoneauth1's: without them, a
# request has no timeout, and the first refused connection fails it.
_PATIENCE: Final[Mapping[str, Any]] = {
    "valid_interfaces": ["internal", "public"],
    "timeout": 60,
    "connect_retries": 3,
    "status_code_retries": 3,
}
# Adapter options that are not offered: the code determines the API version.
_VERSIONS: Final = ("version", "min_version", "max_version")
# The least values of the options in seconds.
_SECONDS: Final = {
    "timeout": 0.001,
    "connect_retry_delay": 0.0,
    "status_code_retry_delay": 0.0,
}
# Two of the many ways to authenticate, for generators and documentation.
_LISTED = ("password", "v3applicationcredential")


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """An OpenStack service.

    :ivar name: the name in messages.
    :ivar group: the option group.
    :ivar version: the version suffix of the service's endpoints, where it is
        optional and every requested path contains it; else empty.
    :ivar spoken: the reason why the API version cannot be configured.
    :ivar failing: the error for a service that reports a failure of its own.
    :ivar patience: the option or argument that sets the deadline.
    """

    name: str
    group: cfg.OptGroup
    version: str
    spoken: str
    service_type: exception.ServiceType
    failing: type[exception.ServiceUnavailable] = exception.ServiceUnavailable
    patience: str = "the operation's own timeout"

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; registering twice is harmless.

        keystoneauth1 registers the options of the auth plugin when it loads it.
        """
        from keystoneauth1 import loading

        # See os_acc.conf.register().
        conf.register_group(copy.deepcopy(self.group))
        conf.register_opts(self._options(), group=self.group.name)
        loading.register_auth_conf_options(conf, self.group.name)

    def list_opts(self) -> list[cfg.Opt]:
        """Return the options for oslo-config-generator."""
        from keystoneauth1 import loading

        options = [
            *loading.get_auth_common_conf_options(),
            *(each for each in self._options() if each.dest not in _VERSIONS),
        ]
        for name in _LISTED:
            options += loading.get_auth_plugin_conf_options(name)
        # The two plugins share most of their options.
        return list({each.dest: each for each in reversed(options)}.values())[::-1]

    def _options(self) -> list[cfg.Opt]:
        from keystoneauth1 import loading

        options = [
            *loading.get_session_conf_options(),
            *loading.get_adapter_conf_options(include_deprecated=False),
        ]
        cfg.set_defaults(options, service_type=self.service_type.value, **_PATIENCE)
        return options

    def adapter(self, conf: cfg.ConfigOpts) -> Callable[[], Adapter]:
        """Return a factory of adapters as the options describe; send nothing.

        Each call needs an adapter of its own: one that is older than a step of the
        clock into the past waits until that time comes again, past any deadline.

        :raises InvalidConfiguration: options are missing or invalid.
        """
        from keystoneauth1 import adapter, loading
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import session

        name = self.group.name
        # cfg.Error: values of the wrong type. TypeError: combinations that
        # keystoneauth1 rejects. OSError: unknown TLS ciphers.
        unusable = (cfg.Error, ksa.ClientException, TypeError, ValueError, OSError)
        try:
            self.register(conf)
            auth = loading.load_auth_from_conf_options(conf, name)
            if auth is None:
                raise exception.InvalidConfiguration(
                    f"[{name}] auth_type is not set",
                    reason=exception.ConfigurationReason.NOT_CONFIGURED,
                    hint="set it and the other credentials, or set auth_section to a "
                    "section with credentials, such as placement",
                )
            where = self._where(conf[name])
            made = loading.load_session_from_conf_options(
                conf,
                name,
                session=session.http_session(conf[name]),
                # Of the requests to Keystone; the adapter has those of the service.
                connect_retries=where.get("connect_retries") or 0,
            )
        except exception.InvalidConfiguration:
            raise
        except unusable as error:
            raise exception.InvalidConfiguration(
                f"[{name}] cannot be used: {error}",
                hint="see the documentation of keystoneauth1's options",
            ) from error
        return functools.partial(adapter.Adapter, made, auth=auth, **where)

    def _where(self, group: cfg.ConfigOpts.GroupAttr) -> dict[str, Any]:
        """Return the endpoint and the retries, arguments of a keystoneauth1 adapter."""
        from keystoneauth1 import loading

        for name in _VERSIONS:
            if group[name]:
                raise exception.InvalidConfiguration(
                    f"[{self.group.name}] {name} is {group[name]}",
                    hint=f"leave it out: {self.spoken}",
                )
        for name, least in _SECONDS.items():
            # "not >=" also rejects a NaN.
            if group[name] is not None and not group[name] >= least:
                raise exception.InvalidConfiguration(
                    f"[{self.group.name}] {name} is {group[name]}",
                    hint=f"set it to at least {least} seconds, or leave it out",
                )
        where: dict[str, Any] = {}
        loading.adapter.process_conf_options(group, where)
        if self.version and (override := where["endpoint_override"]):
            # Every requested path contains the version.
            suffix = rf"/{self.version}(\.\d+)?/*$"
            where["endpoint_override"] = re.sub(suffix, "", override)
        return where


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
        self._made: Callable[[], Adapter] | None = None
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

        def question(adapter: Adapter) -> _T:
            # raise_exc=False: the exceptions of keystoneauth1 come from Keystone alone.
            answer = adapter.request(path, method, raise_exc=False, **arguments)
            if answer.status_code >= 300:
                raise self.rejection(answer, about, refused(answer))
            return take(answer)

        return self.call(question, about, deadline)

    def call(
        self, question: Callable[[Adapter], _T], about: str, deadline: float
    ) -> _T:
        """Send requests with the adapter of the service, and return the result.

        :param question: sends them; raises one of
            :data:`os_acc.rest.responses.NOT_THEIRS` for a malformed response.
        :raises OsAccError: as in :meth:`ask`, or raised by ``question``.
        """
        from keystoneauth1 import exceptions as ksa

        from os_acc.rest import session

        with self._lock:
            if self._made is None:
                self._made = self.service.adapter(self._conf)
            made = self._made
        call = session.Call(deadline)

        def run() -> _T:
            session.thread.call = call
            return question(made())

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
        self, answer: Response, about: str, refused: exception.OsAccError | None
    ) -> Exception:
        """Return the exception for a response of the service with an error status.

        :param refused: the error if the service rejects the request; None stands
            for an invalid request.
        """
        detail = responses.refusal(answer)
        if _is_temporary(answer.status_code) or answer.status_code == 401:
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
