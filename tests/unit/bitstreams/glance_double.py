# SPDX-License-Identifier: Apache-2.0

"""A Keystone and a Glance, with faults, in one small HTTP server.

It answers as Keystone 30 and Glance 33 do; tests/functional/openstack sends those the
same requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from typing import Any

from oslo_config import cfg

from os_acc.bitstreams import glance
from os_acc.bitstreams.glance import Glance
from os_acc.objects.bitstream import Image
from tests.unit import keystone_double
from tests.unit.keystone_double import Handler, serving, soon

#: Data for an image: more than one piece.
DATA = bytes(range(256)) * 4096 * 3
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclasses.dataclass
class Stored:
    """An image and its data; None: no data yet."""

    about: dict[str, Any]
    data: bytes | None


class Double(ThreadingHTTPServer):
    """The server; its attributes control its answers.

    :ivar failures: statuses of Glance's next answers, as from a gateway before it.
    :ivar refusals: how many connections to drop without an answer.
    :ivar drop_after: bytes of data after which to end the connection, once.
    :ivar stored: bytes of each image that the store still has.
    :ivar drips: seconds between the single bytes of every answer of Glance's.
    :ivar ranges: whether it supports Range.
    :ivar lie: a Content-Range to answer with.
    :ivar encoding: a Content-Encoding to answer data with.
    :ivar page: maximum number of images on a page.
    :ivar not_json: a text to answer every request with.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.password = "not a secret"
        self.images: dict[str, Stored] = {}
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.failures: list[int] = []
        self.refusals = 0
        self.drop_after: int | None = None
        self.stored: int | None = None
        self.drips = 0.0
        self.ranges = True
        self.lie = ""
        self.encoding = ""
        self.page = 1000
        self.not_json = ""
        self.ended = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have left."""

    def add(self, data: bytes | None = b"", **about: Any) -> str:
        """Add an image, and return its id; None: a value that Glance does not know."""
        image_id = str(uuid.uuid4())
        self.images[image_id] = Stored(
            {
                "id": image_id,
                "name": "image",
                "status": "queued" if data is None else "active",
                "visibility": "private",
                "os_hidden": False,
                "protected": False,
                "owner": "service",
                "size": None if data is None else len(data),
                "disk_format": "raw",
                "container_format": "bare",
                "os_hash_algo": None,
                "os_hash_value": None,
                "checksum": None,
                "min_disk": 0,
                "tags": [],
                "self": f"/v2/images/{image_id}",
                "file": f"/v2/images/{image_id}/file",
                "schema": "/v2/schemas/image",
                **about,
            },
            data,
        )
        return image_id

    def conf(self, **options: object) -> cfg.ConfigOpts:
        """Return the options to reach it with."""
        return keystone_double.config(glance.SERVICE, self.credentials() | options)

    def credentials(self) -> dict[str, object]:
        """Return the credentials of its user."""
        return {
            **keystone_double.credentials(self.url, self.password),
            "connect_retry_delay": 0.01,
            "status_code_retry_delay": 0.01,
        }

    def count(self, begin: str) -> int:
        """Return the number of requests that begin with this."""
        return sum(line.startswith(begin) for line in self.asked)


@contextlib.contextmanager
def listening() -> Iterator[Double]:
    """Run a server that listens."""
    server = Double()
    with serving(server, server.ended):
        yield server


def received(source: Glance, image: Image, offset: int = 0) -> tuple[int, bytes]:
    """Return the offset of the data of an image, and the data."""
    with source.data(image, offset, soon()) as data:
        return data.offset, b"".join(data)


class _Handler(Handler):
    server: Double

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(f"POST {self.path}")
        user = json.loads(content)["auth"]["identity"]["password"]["user"]
        if user["password"] != self.server.password:
            self._say(401, {"error": {"code": 401, "message": "no"}})
            return
        token = uuid.uuid4().hex
        self.server.tokens.add(token)
        content = keystone_double.token({"image": self.server.url})
        self._say(201, content, {"X-Subject-Token": token})

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(f"GET {self.path} {self.headers.get('Range', '-')}")
        url = urllib.parse.urlsplit(self.path)
        if server.not_json:
            self._send(200, server.not_json.encode(), {"Content-Type": "text/html"})
        elif url.path == "/identity/v3":
            self._say(200, keystone_double.version(server.url))
        elif server.refusals:
            server.refusals -= 1
            self.close_connection = True
        elif server.failures:
            self._say(server.failures.pop(0), {"message": "on purpose"})
        elif self.headers.get("X-Auth-Token") not in server.tokens:
            self._say(401, {"message": "This token is worth nothing"})
        elif url.path == "/v2/schemas/image":
            self._say(200, {"name": "image", "properties": {}})
        elif url.path == "/v2/images":
            self._list(dict(urllib.parse.parse_qsl(url.query)))
        else:
            self._image(url.path)

    def _list(self, asked: dict[str, str]) -> None:
        limit = min(int(asked.pop("limit")), self.server.page)
        marker = asked.pop("marker", None)
        visibility = asked.pop("visibility", "")
        found = [
            stored.about
            for stored in self.server.images.values()
            if not stored.about["os_hidden"]
            and _is_listed(stored.about, visibility)
            and all(_matches(stored.about, *pair) for pair in asked.items())
        ]
        ids = [about["id"] for about in found]
        if marker is not None and marker not in self.server.images:
            self._refuse(404, f"Image {marker} could not be found.")
            return
        begin = ids.index(marker) + 1 if marker else 0
        body: dict[str, Any] = {"images": found[begin : begin + limit]}
        if begin + limit < len(found):
            onward = {**asked, "limit": limit, "marker": ids[begin + limit - 1]}
            if visibility:
                onward["visibility"] = visibility
            body["next"] = f"/v2/images?{urllib.parse.urlencode(onward)}"
        self._say(200, body)

    def _image(self, path: str) -> None:
        _, _, _, image_id, *rest = path.split("/")
        stored = self.server.images.get(image_id)
        if stored is None:
            self._refuse(404, f"No image found with ID {image_id}")
        elif not rest:
            self._say(200, stored.about)
        elif stored.about["status"] == "deactivated":
            self._refuse(403, "The requested image has been deactivated.")
        elif stored.data is None:
            self._send(204, b"", {})
        else:
            self._file(stored.data)

    def _file(self, data: bytes) -> None:
        server = self.server
        headers = {"Content-Type": "application/octet-stream"}
        if server.encoding:
            headers["Content-Encoding"] = server.encoding
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or not server.ranges:
            self._send(200, data, headers, server.stored)
            return
        begin = int(asked[1])
        if begin >= len(data):
            self._say(416, {"message": "no"})
            return
        content = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        headers["Content-Range"] = server.lie or content
        left = None if server.stored is None else max(0, server.stored - begin)
        self._send(206, data[begin:], headers, left)

    def _refuse(self, status: int, why: str) -> None:
        """Reject a request as webob does."""
        if self.headers["Accept"] == "application/json":
            self._say(status, {"message": f"{why}<br /><br />", "code": f"{status}"})
        else:
            self._send(status, why.encode(), {"Content-Type": "text/plain"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        there: int | None = None,
    ) -> None:
        """Send an answer with only `there` bytes of the body, if given."""
        self._begin(status, len(body), headers)
        if self.server.drips and not self.path.startswith("/identity"):
            for at in range(len(body)):
                if self.server.ended.is_set():
                    break
                self.wfile.write(body[at : at + 1])
                self.wfile.flush()
                time.sleep(self.server.drips)
            return
        short = self.server.drop_after
        if short is not None and headers.get("Content-Type", "").endswith("stream"):
            self.server.drop_after = None
            self.wfile.write(body[:short])
            self.close_connection = True
            return
        self.wfile.write(body[:there])
        if there is not None and there < len(body):
            self.close_connection = True


def _is_listed(about: dict[str, Any], visibility: str) -> bool:
    """Return whether an image is listed for the project "service"."""
    if visibility:
        return visibility in ("all", about["visibility"])
    return about["visibility"] != "community" or about["owner"] == "service"


def _matches(about: dict[str, Any], name: str, wanted: str) -> bool:
    if name == "tag":
        return wanted in about["tags"]
    value = str(about.get(name))
    if name == "name" and wanted.startswith('in:"'):
        return value == wanted[4:-1]
    # MySQL's usual collation takes A for a.
    return value.lower() == wanted.lower()
