# SPDX-License-Identifier: Apache-2.0

"""A session with Keystone, and where a service is, from its options."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import requests
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from keystoneauth1.loading import adapter as adapter_loading
from oslo_config import cfg

from os_acc import exception
from os_acc.rest import transport
from os_acc.rest.retries import Retries
from os_acc.rest.service import VERSIONS, Service


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceAccess:
    """What to ask a service with.

    :ivar session: whose connections end at the deadlines of their users.
    :ivar auth: who asks.
    :ivar where: the service's place, as an adapter takes it.
    """

    session: Any
    auth: Any
    where: dict[str, Any]
    retries: Retries


def access(conf: cfg.ConfigOpts, service: Service) -> ServiceAccess:
    """Read the options; nothing is asked for yet.

    :raises InvalidConfiguration: there are too few, or some make no sense.
    """
    group_name = service.group.name
    try:
        service.register(conf)
        group = conf[group_name]
        _check_timeout(group_name, group.timeout)
        auth = loading.load_auth_from_conf_options(conf, group_name)
        if auth is None:
            raise service.missing(
                f"[{group_name}] auth_type is not set",
                hint="set it with the rest of the credentials, or auth_section to "
                "a section that has them, such as placement",
            )
        session = loading.load_session_from_conf_options(
            conf, group_name, session=_http(group)
        )
        where = _where(service, group)
        retries = _retries(group_name, where)
    except exception.InvalidConfiguration:
        raise
    # cfg.Error: values of the wrong type. TypeError: combinations that
    # keystoneauth1 refuses. OSError: ssl's, for ciphers that nobody knows.
    except (cfg.Error, ksa.ClientException, TypeError, ValueError, OSError) as error:
        raise exception.InvalidConfiguration(
            f"[{group_name}] cannot be used: {error}",
            hint="its options are keystoneauth1's",
        ) from error
    return ServiceAccess(session, auth, where, retries)


def _check_timeout(group_name: str, seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise exception.InvalidConfiguration(
            f"[{group_name}] timeout is {seconds}",
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


def _where(service: Service, group: cfg.ConfigOpts.GroupAttr) -> dict[str, Any]:
    for name in VERSIONS:
        if group[name]:
            raise exception.InvalidConfiguration(
                f"[{service.group.name}] {name} is {group[name]}",
                hint=f"leave it out: {service.spoken}",
            )
    where: dict[str, Any] = {}
    adapter_loading.process_conf_options(group, where)
    if service.version and (override := where["endpoint_override"]):
        # Every path that is asked for has the version in it.
        where["endpoint_override"] = re.sub(
            rf"/{service.version}(\.\d+)?/*$", "", override
        )
    return where


def _retries(group_name: str, where: dict[str, Any]) -> Retries:
    """Take the retries out of what an adapter is made with."""
    codes = where.pop("retriable_status_codes", None)
    return Retries(
        connect=where.pop("connect_retries", None) or 0,
        connect_delay=_delay(group_name, where, "connect_retry_delay"),
        status=where.pop("status_code_retries", None) or 0,
        status_delay=_delay(group_name, where, "status_code_retry_delay"),
        codes=frozenset(codes or (503,)),
    )


def _delay(group_name: str, where: dict[str, Any], name: str) -> float | None:
    seconds: float | None = where.pop(name, None)
    # Not below: a nan is neither.
    if seconds is not None and not seconds >= 0:
        raise exception.InvalidConfiguration(
            f"[{group_name}] {name} is {seconds}",
            hint="it is a number of seconds, or left out",
        )
    return seconds
