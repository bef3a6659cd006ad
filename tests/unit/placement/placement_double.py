# SPDX-License-Identifier: Apache-2.0

"""A server that responds as Placement does, and misbehaves on request.

The implemented part of Placement 16 responds the same to os_acc's requests; the
lane ``openstack`` runs Placement itself.
"""

from __future__ import annotations

import dataclasses
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from os_acc.placement import client
from os_acc.testing.test_host import config_of
from tests.unit import keystone_double

NODE = "10000000-9999-4999-8999-999999999999"
_STALE = "placement.concurrent_update"


@dataclasses.dataclass
class Provider:
    """One provider."""

    uuid: str
    name: str
    parent: str | None
    generation: int = 0
    inventories: dict[str, Any] = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)
    allocated: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    aggregates: set[str] = dataclasses.field(default_factory=set)


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, code: str = "", detail: str = "no") -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"errors": [{"status": status, "code": code, "detail": detail}]}


@dataclasses.dataclass
class Trouble:
    """A failure of a number of requests.

    :ivar status: None: the connection is cut.
    """

    method: str
    path: str
    times: int
    status: int | None = None
    code: str = ""
    done: bool = False

    def strikes(self, method: str, path: str) -> bool:
        if not self.times or method != self.method or not re.search(self.path, path):
            return False
        self.times -= 1
        return True


class Double:
    """Placement, in memory, with one compute node.

    :ivar requests: "method path" of each request received.
    """

    def __init__(self, name: str = "node1", version: str = "1.39") -> None:
        self.version = version
        self.providers = {NODE: Provider(NODE, name, None)}
        self.traits = {"HW_NIC_SRIOV"}
        self.classes = {"VCPU", "PGPU"}
        self.requests: list[str] = []
        self._troubles: list[Trouble] = []
        self._lock = threading.Lock()
        double = self

        class Handler(keystone_double.Handler):
            def _serve(self) -> None:
                double._serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = _serve

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        serve = self._server.serve_forever
        # The end of a server waits for the end of its interval.
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def config(self, **values: object) -> cfg.ConfigOpts:
        """Return a configuration with the address of the server."""
        conf = config_of()
        client.register(conf)
        about = {
            "auth_type": "none",
            "endpoint_override": self.url,
            "connect_retry_delay": 0.001,
            "status_code_retry_delay": 0.001,
            **values,
        }
        for name, value in about.items():
            conf.set_override(name, value, group=client.GROUP.name)
        return conf

    def trouble(
        self,
        method: str,
        path: str,
        status: int | None = None,
        *,
        code: str = "",
        times: int = 1,
        done: bool = False,
    ) -> None:
        """Make requests fail.

        :param done: the requests are carried out nevertheless.
        """
        self._troubles.append(Trouble(method, path, times, status, code, done))

    def writes(self) -> list[str]:
        """Return the requests for changes."""
        return [each for each in self.requests if not each.startswith("GET")]

    # -- one request -------------------------------------------------------------

    def _serve(self, handler: keystone_double.Handler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        raw = handler.rfile.read(length)
        body = json.loads(raw) if raw else None
        method, path = handler.command, handler.path
        with self._lock:
            self.requests.append(f"{method} {path}")
            trouble = next(
                (each for each in self._troubles if each.strikes(method, path)), None
            )
            status, answer = 0, None
            if trouble is None or trouble.done:
                status, answer = self._answered(method, path, body)
            if trouble is not None and trouble.status is not None:
                status = trouble.status
                answer = Refused(status, trouble.code).body
        if trouble is not None and trouble.status is None:
            handler.close_connection = True
            handler.connection.close()
            return
        handler._say(status, answer)

    def _answered(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        where, _, query = path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        parts = where.strip("/").split("/")
        try:
            match [method, *parts]:
                case ["GET", ""]:
                    versions = {"min_version": "1.0", "max_version": self.version}
                    return 200, {"versions": [{"id": "v1.0", **versions}]}
                case ["GET", "resource_providers"]:
                    return 200, {"resource_providers": self._listed(asked)}
                case ["POST", "resource_providers"]:
                    return 200, self._create(body)
                case ["PUT", "resource_providers", uuid]:
                    self._at(uuid).parent = body["parent_provider_uuid"]
                    return 200, _shown(self._at(uuid))
                case ["DELETE", "resource_providers", uuid]:
                    return self._delete(uuid)
                case ["GET", "resource_providers", uuid, what]:
                    return 200, self._what(self._at(uuid), what)
                case ["PUT", "resource_providers", uuid, what]:
                    return 200, self._replace(self._at(uuid), what, body)
                case ["GET", "traits"]:
                    names = set(asked["name"].removeprefix("in:").split(","))
                    return 200, {"traits": sorted(names & self.traits)}
                case ["GET", "resource_classes"]:
                    return 200, {
                        "resource_classes": [{"name": each} for each in self.classes]
                    }
                case ["PUT", kind, name]:
                    known = self._names(kind)
                    status = 204 if name in known else 201
                    known.add(name)
                    return status, None
                case ["DELETE", kind, name]:
                    return self._delete_name(kind, name)
            raise Refused(404)
        except Refused as error:
            return error.status, error.body

    def _listed(self, asked: dict[str, str]) -> list[dict[str, Any]]:
        tests: dict[str, Callable[[Provider, str], bool]] = {
            "in_tree": lambda each, root: self._top(each) == self._top_of(root),
            "name": lambda each, name: each.name == name,
            "uuid": lambda each, uuid: each.uuid == uuid,
        }
        return [
            _shown(each)
            for each in self.providers.values()
            if all(tests[name](each, value) for name, value in asked.items())
        ]

    def _top(self, of: Provider) -> str:
        while of.parent in self.providers:
            of = self.providers[of.parent]
        return of.uuid

    def _top_of(self, uuid: str) -> str | None:
        return self._top(self.providers[uuid]) if uuid in self.providers else None

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        uuid, name = body["uuid"], body["name"]
        if uuid in self.providers or self._listed({"name": name}):
            raise Refused(409, "placement.duplicate_name")
        self._at(body["parent_provider_uuid"])
        made = Provider(uuid, name, body["parent_provider_uuid"])
        self.providers[uuid] = made
        return _shown(made)

    def _delete(self, uuid: str) -> tuple[int, Any]:
        if self._at(uuid).allocated:
            raise Refused(409, "placement.resource_provider.inuse")
        if any(each.parent == uuid for each in self.providers.values()):
            raise Refused(409, "placement.resource_provider.cannot_delete_parent")
        del self.providers[uuid]
        return 204, None

    def _what(self, of: Provider, what: str) -> dict[str, Any]:
        values: dict[str, Any] = {
            "inventories": of.inventories,
            "traits": sorted(of.traits),
            "aggregates": sorted(of.aggregates),
            "allocations": {
                consumer: {"resources": amounts}
                for consumer, amounts in of.allocated.items()
            },
        }
        return {what: values[what], "resource_provider_generation": of.generation}

    def _replace(self, of: Provider, what: str, body: dict[str, Any]) -> Any:
        if body["resource_provider_generation"] != of.generation:
            raise Refused(409, _STALE)
        known = self.traits if what == "traits" else self.classes
        if not set(body[what]) <= known:
            raise Refused(400)
        if what == "traits":
            of.traits = set(body[what])
        else:
            of.inventories = body[what]
        of.generation += 1
        return self._what(of, what)

    def _delete_name(self, kind: str, name: str) -> tuple[int, Any]:
        known = self._names(kind)
        if name not in known:
            raise Refused(404)
        if any(name in {*p.traits, *p.inventories} for p in self.providers.values()):
            raise Refused(409)
        known.remove(name)
        return 204, None

    def _names(self, kind: str) -> set[str]:
        return self.traits if kind == "traits" else self.classes

    def _at(self, uuid: str) -> Provider:
        if uuid not in self.providers:
            raise Refused(404)
        return self.providers[uuid]


def _shown(each: Provider) -> dict[str, Any]:
    return {
        "uuid": each.uuid,
        "name": each.name,
        "generation": each.generation,
        "parent_provider_uuid": each.parent,
        "root_provider_uuid": NODE,
    }
