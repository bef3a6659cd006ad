# SPDX-License-Identifier: Apache-2.0

"""Responses of Keystone 30, and the base of the doubles of all services."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from keystoneauth1 import loading
from oslo_config import cfg

from os_acc.rest.client import Service
from os_acc.testing.test_host import config_of


def credentials(url: str, password: str) -> dict[str, object]:
    """Return the credentials of the user ``os_acc`` for Keystone at this address."""
    return {
        "auth_type": "password",
        "auth_url": f"{url}/identity/v3",
        "username": "os_acc",
        "password": password,
        "project_name": "service",
        "user_domain_id": "default",
        "project_domain_id": "default",
    }


def config(service: Service, values: Mapping[str, object]) -> cfg.ConfigOpts:
    """Return a configuration with the options of a service.

    :param values: values of options in the service's group.
    """
    conf = config_of()
    group = service.group.name
    service.register(conf)
    conf.register_opts(loading.get_auth_plugin_conf_options("password"), group)
    for name, value in values.items():
        conf.set_override(name, value, group)
    return conf


def version(url: str) -> dict[str, Any]:
    """Return the answer of ``GET /identity/v3``."""
    links = [{"rel": "self", "href": f"{url}/identity/v3"}]
    return {"version": {"id": "v3.14", "status": "stable", "links": links}}


def token(places: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer to a request for a token.

    :param places: the address of each type of service.
    """
    endpoint = {"interface": "public", "region": "lab", "region_id": "lab", "id": "1"}
    return {
        "token": {
            "methods": ["password"],
            "user": {"id": "u", "name": "os_acc", "domain": {"id": "default"}},
            "project": {"id": "service", "name": "service"},
            "expires_at": "2999-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "catalog": [
                {
                    "type": kind,
                    "name": kind,
                    "id": kind,
                    "endpoints": [{**endpoint, "url": url}],
                }
                for kind, url in places.items()
            ],
        }
    }


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, and writes no log."""

    protocol_version = "HTTP/1.1"
    # Else a body waits 40 ms for the acknowledgement of the header before it.
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """Write no log."""

    def _say(
        self, status: int, body: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a body as JSON; None: an empty body."""
        data = b"" if body is None else json.dumps(body).encode()
        values = {"Content-Type": "application/json", **(headers or {})}
        self._send(status, data, values)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._begin(status, len(body), headers)
        self.wfile.write(body)

    def _begin(self, status: int, size: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer, ended: threading.Event) -> Iterator[None]:
    """Run a server.

    :param ended: set at the end, for threads that wait for it.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def soon() -> float:
    """Return a deadline that no response misses."""
    return time.monotonic() + 60.0
