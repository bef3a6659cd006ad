# SPDX-License-Identifier: Apache-2.0

"""Doubles of Keystone, Cyborg and Nova that may misbehave.

The implemented requests get the responses of Cyborg 17 and Nova 34.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from os_acc.rest.client import Service
from tests.unit import keystone_double
from tests.unit.keystone_double import serving

_TOKEN = "a token"


@dataclasses.dataclass
class Cloud:
    """The contents of the cloud, and its failures.

    :ivar profiles: Cyborg's device profiles.
    :ivar flavors: (id, name) to extra specs.
    :ivar servers: the host of each of Nova's servers; '': on none.
    :ivar events: the external events that Nova has accepted.
    :ivar places: addresses of services elsewhere, for Keystone's catalog.
    :ivar page: number of flavors on a page.
    :ivar bad: keys that Nova refuses.
    :ivar statuses: statuses of Cyborg's and Nova's next responses.
    :ivar keystone: status of Keystone's refusal of tokens; 0: it grants them.
    :ivar refusals: number of connections to drop.
    :ivar silent: whether the services never respond.
    :ivar text: response body instead of JSON.
    :ivar oldest: whether Nova rejects every requested microversion.
    :ivar asked: the requests to Cyborg and Nova, as "method path".
    :ivar microversions: the requested microversions.
    """

    profiles: list[Any] = dataclasses.field(default_factory=list)
    flavors: dict[tuple[str, str], dict[str, str]] = dataclasses.field(
        default_factory=dict
    )
    servers: dict[str, str] = dataclasses.field(default_factory=dict)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    page: int = 2
    bad: str = ""
    statuses: list[int] = dataclasses.field(default_factory=list)
    keystone: int = 0
    refusals: int = 0
    silent: bool = False
    text: str | None = None
    oldest: bool = False
    asked: list[str] = dataclasses.field(default_factory=list)
    microversions: set[str | None] = dataclasses.field(default_factory=set)
    url: str = ""
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    def conf(self, service: Service, **values: object) -> cfg.ConfigOpts:
        """Return a configuration with the addresses of this cloud."""
        return keystone_double.config(service, self.credentials() | values)

    def credentials(self) -> dict[str, object]:
        """Return the credentials of a user of this cloud."""
        return {
            **keystone_double.credentials(self.url, "secret"),
            "connect_retry_delay": 0.001,
            "status_code_retry_delay": 0.001,
        }

    # -- responses --------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the response of Cyborg or Nova."""
        where, _, query = path.partition("?")
        parts = [urllib.parse.unquote(each) for each in where.strip("/").split("/")]
        match [method, *parts]:
            case ["GET", "accelerator", "v2", "device_profiles"]:
                return 200, {"device_profiles": self.profiles}
            case ["GET", "compute", "v2.1", "flavors"]:
                return 200, {"flavors": self._listed(urllib.parse.parse_qs(query))}
            case [_, "compute", "v2.1", "flavors", flavor, "os-extra_specs", *key]:
                return self._specs(method, flavor, body, *key)
            case ["POST", "compute", "v2.1", "os-server-external-events"]:
                return self._external_events(body["events"])
        return 404, {"error": "there is no such path"}

    def _external_events(self, sent: list[dict[str, Any]]) -> tuple[int, Any]:
        if not sent:
            why = "Invalid input for field/attribute events. Value: []. [] is too short"
            return 400, {"badRequest": {"code": 400, "message": why}}
        answered = []
        for event in sent:
            host = self.servers.get(event["server_uuid"])
            code = 404 if host is None else 200 if host else 422
            if code == 200:
                self.events.append(event)
            status = "completed" if code == 200 else "failed"
            answered.append({**event, "status": status, "code": code})
        accepted = all(each["code"] == 200 for each in answered)
        return 200 if accepted else 207, {"events": answered}

    def _listed(self, asked: dict[str, list[str]]) -> list[dict[str, str]]:
        assert asked["is_public"] == ["None"]
        ids = [each for each, _name in self.flavors]
        begin = ids.index(asked["marker"][0]) + 1 if "marker" in asked else 0
        chosen = list(self.flavors)[begin : begin + self.page]
        return [{"id": each, "name": name} for each, name in chosen]

    def _specs(
        self, method: str, flavor: str, body: Any, key: str = ""
    ) -> tuple[int, Any]:
        found = [specs for (each, _), specs in self.flavors.items() if each == flavor]
        if not found or (key and key not in found[0]):
            return 404, {"itemNotFound": {"code": 404, "message": "not there"}}
        (specs,) = found
        if method == "DELETE":
            del specs[key]
            return 200, None
        if method == "POST":
            new = body["extra_specs"]
            if self.bad in new:
                why = f"Validation failed; extra spec {self.bad} does not exist"
                return 400, {"badRequest": {"code": 400, "message": why}}
            specs |= new
        return 200, {"extra_specs": specs}


@contextlib.contextmanager
def running(**what: Any) -> Iterator[Cloud]:
    """Run a cloud."""
    cloud = Cloud(**what)

    class Handler(_Handler):
        it = cloud

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server, cloud.ended):
        yield cloud


class _Handler(keystone_double.Handler):
    it: Cloud

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/identity"):
            self._keystone()
            return
        cloud = self.it
        cloud.asked.append(f"{self.command} {self.path}")
        if self.path.startswith("/compute"):
            cloud.microversions.add(self.headers.get("OpenStack-API-Version"))
        if cloud.silent:
            cloud.ended.wait()
            self.close_connection = True
        elif cloud.refusals:
            cloud.refusals -= 1
            self.close_connection = True
        elif cloud.statuses:
            self._say(cloud.statuses.pop(0), {"message": "on purpose"})
        elif cloud.text is not None:
            self._send(200, cloud.text.encode(), {"Content-Type": "text/html"})
        elif self.headers.get("X-Auth-Token") != _TOKEN:
            self._say(401, {"message": "nobody"})
        elif cloud.oldest and self.headers.get("OpenStack-API-Version"):
            self._say(406, {"computeFault": {"message": "not supported"}})
        else:
            body = json.loads(raw) if raw else None
            self._say(*cloud.answer(self.command, self.path, body))

    do_GET = do_POST = do_DELETE = _serve

    def _keystone(self) -> None:
        url = self.it.url
        if self.command == "GET":
            self._say(200, keystone_double.version(url))
            return
        if self.it.keystone:
            self._say(self.it.keystone, {"error": {"message": "on purpose"}})
            return
        places = {"accelerator": f"{url}/accelerator", "compute": f"{url}/compute/v2.1"}
        token = keystone_double.token(places | self.it.places)
        self._say(201, token, {"X-Subject-Token": _TOKEN})
