# SPDX-License-Identifier: Apache-2.0

"""Keystone session and endpoint of a service, from its options."""

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
    """The session, credentials and endpoint of a service.

    :ivar session: a keystoneauth1 session whose connections obey deadlines.
    :ivar auth: the auth plugin.
    :ivar where: endpoint arguments of a keystoneauth1 adapter.
    """

    session: Any
    auth: Any
    where: dict[str, Any]
    retries: Retries


def access(conf: cfg.ConfigOpts, service: Service) -> ServiceAccess:
    """Read the options, without any request.

    :raises InvalidConfiguration: options are missing or invalid.
    """
    group_name = service.group.name
    try:
        service.register(conf)
        group = conf[group_name]
        _check_timeout(group_name, group.timeout)
        auth = loading.load_auth_from_conf_options(conf, group_name)
        if auth is None:
            raise exception.InvalidConfiguration(
                f"[{group_name}] auth_type is not set",
                reason=exception.ConfigurationReason.NOT_CONFIGURED,
                hint="set it and the other credentials, or set auth_section to a "
                "section with credentials, such as placement",
            )
        session = loading.load_session_from_conf_options(
            conf, group_name, session=_http(group)
        )
        where = _where(service, group)
        retries = _retries(group_name, where)
    except exception.InvalidConfiguration:
        raise
    # cfg.Error: values of the wrong type. TypeError: combinations that
    # keystoneauth1 rejects. OSError: unknown TLS ciphers.
    except (cfg.Error, ksa.ClientException, TypeError, ValueError, OSError) as error:
        raise exception.InvalidConfiguration(
            f"[{group_name}] cannot be used: {error}",
            hint="see the documentation of keystoneauth1's options",
        ) from error
    return ServiceAccess(session, auth, where, retries)


def _check_timeout(group_name: str, seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise exception.InvalidConfiguration(
            f"[{group_name}] timeout is {seconds}",
            hint="set a number of seconds, or leave it out",
        )


def _http(group: cfg.ConfigOpts.GroupAttr) -> requests.Session:
    # The oldest supported keystoneauth1 lacks the TLS options.
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
        # Every requested path contains the version.
        where["endpoint_override"] = re.sub(
            rf"/{service.version}(\.\d+)?/*$", "", override
        )
    return where


def _retries(group_name: str, where: dict[str, Any]) -> Retries:
    """Remove the retry options from the adapter's arguments and return them."""
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
    # "not >=" also rejects a NaN.
    if seconds is not None and not seconds >= 0:
        raise exception.InvalidConfiguration(
            f"[{group_name}] {name} is {seconds}",
            hint="set a number of seconds, or leave it out",
        )
    return seconds
