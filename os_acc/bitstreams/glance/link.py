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

"""A session with Keystone and Glance, made from the options."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

import requests
from glanceclient.v2 import client as glance_client
from keystoneauth1 import adapter, loading
from keystoneauth1 import exceptions as ksa
from keystoneauth1.loading import adapter as adapter_loading
from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.glance import errors, options, transport

# Seconds: keystoneauth1's own, where no delay is set.
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Retries:
    """How often, and after how long, the same is asked for again.

    keystoneauth1 could do it, but sleeps beyond every deadline.

    :ivar connect: for a connection that was refused, dropped or silent.
    :ivar status: for an answer with one of the codes.
    """

    connect: int
    connect_delay: float | None
    status: int
    status_delay: float | None
    codes: frozenset[int]

    def begin(self) -> Trial:
        """For one request."""
        return Trial(
            {"connect": self.connect, "status": self.status},
            {
                "connect": _delays(self.connect_delay),
                "status": _delays(self.status_delay),
            },
            self.codes,
        )


@dataclasses.dataclass(slots=True)
class Trial:
    """What is left of the retries of one request."""

    left: dict[str, int]
    delays: dict[str, Iterator[float]]
    codes: frozenset[int]

    def delay(self, error: Exception, code: int | None) -> float | None:
        """Seconds after which to ask again; None not to.

        :param code: the status of the last answer, where there is one.
        """
        if errors.is_connection(error):
            kind = "connect"
        elif code in self.codes:
            kind = "status"
        else:
            return None
        self.left[kind] -= 1
        return next(self.delays[kind]) if self.left[kind] >= 0 else None


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What to ask Glance with.

    :ivar client: glanceclient's, for what is known of images.
    :ivar http: for their data, which glanceclient can neither begin in the
        middle nor always give back in pieces.
    """

    client: Any
    http: adapter.Adapter
    retries: Retries


def link(conf: cfg.ConfigOpts) -> Link:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    try:
        options.register(conf)
        group = conf[options.GROUP.name]
        _check_timeout(group.timeout)
        auth = loading.load_auth_from_conf_options(conf, options.GROUP.name)
        if auth is None:
            raise exception.ImageServiceNotConfigured(
                f"[{options.GROUP.name}] auth_type is not set",
                hint="set it with the rest of the credentials, or auth_section to "
                "a section that has them, such as placement",
            )
        session = loading.load_session_from_conf_options(
            conf, options.GROUP.name, session=_http(group)
        )
        where = _where(group)
        retries = _retries(where)
    except exception.InvalidConfiguration:
        raise
    # cfg.Error: values of the wrong type. TypeError: combinations that
    # keystoneauth1 refuses. OSError: ssl's, for ciphers that nobody knows.
    except (cfg.Error, ksa.ClientException, TypeError, ValueError, OSError) as error:
        raise exception.InvalidConfiguration(
            f"[{options.GROUP.name}] cannot be used: {error}",
            hint="its options are keystoneauth1's",
        ) from error
    return Link(
        client=glance_client.Client(session=session, auth=auth, **where),
        http=adapter.Adapter(session, auth=auth, **where),
        retries=retries,
    )


def _check_timeout(seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise exception.InvalidConfiguration(
            f"[{options.GROUP.name}] timeout is {seconds}",
            hint="it is a number of seconds, or left out",
        )


def _http(group: cfg.ConfigOpts.GroupAttr) -> requests.Session:
    # The options for TLS are younger than the oldest keystoneauth1 we take.
    tls = {
        name: getattr(group, name)
        for name in ("tls_ciphers", "tls_min_version")
        if getattr(group, name, None)
    }
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, transport.Adapter(**tls))
    return session


def _where(group: cfg.ConfigOpts.GroupAttr) -> dict[str, Any]:
    for name in options.VERSIONS:
        if group[name]:
            raise exception.InvalidConfiguration(
                f"[{options.GROUP.name}] {name} is {group[name]}",
                hint="leave it out: version 2 is spoken, and there is no other",
            )
    where: dict[str, Any] = {}
    adapter_loading.process_conf_options(group, where)
    override = where["endpoint_override"]
    if override:
        # Every path that is asked for has the version in it.
        where["endpoint_override"] = re.sub(r"/v2(\.\d+)?/*$", "", override)
    return where


def _retries(where: dict[str, Any]) -> Retries:
    """Take the retries out of what an adapter is made with."""
    codes = where.pop("retriable_status_codes", None)
    return Retries(
        connect=where.pop("connect_retries", None) or 0,
        connect_delay=_delay(where, "connect_retry_delay"),
        status=where.pop("status_code_retries", None) or 0,
        status_delay=_delay(where, "status_code_retry_delay"),
        codes=frozenset(codes or (503,)),
    )


def _delay(where: dict[str, Any], name: str) -> float | None:
    seconds: float | None = where.pop(name, None)
    # Not below: a nan is neither.
    if seconds is not None and not seconds >= 0:
        raise exception.InvalidConfiguration(
            f"[{options.GROUP.name}] {name} is {seconds}",
            hint="it is a number of seconds, or left out",
        )
    return seconds


def _delays(fixed: float | None) -> Iterator[float]:
    if fixed is not None:
        return itertools.repeat(fixed)
    return (min(_FIRST_DELAY * 2**n, _LONGEST_DELAY) for n in itertools.count())
