# SPDX-License-Identifier: Apache-2.0

"""Responses are limited, so that a hostile service cannot exhaust memory."""

import gzip
import http.server
import itertools
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams import glance
from os_acc.bitstreams.glance import Glance
from os_acc.placement import client as placement
from os_acc.placement.client import Client
from os_acc.profiles import flavors, sources
from os_acc.profiles.flavors import Flavors
from os_acc.profiles.sources import Cyborg
from os_acc.rest import client, session
from os_acc.rest.client import Service
from tests.expected_errors import raises
from tests.unit import keystone_double
from tests.unit.keystone_double import soon
from tests.unit.placement.placement_double import NODE

MEBIBYTE = 1 << 20
IMAGE = "d5ca2f11-3108-4426-a11c-a959987565df"
UNAVAILABLE = {
    "Glance": exception.ServiceType.IMAGE,
    "Placement": exception.ServiceType.PLACEMENT,
    "Cyborg": exception.ServiceType.ACCELERATOR,
    "Nova": exception.ServiceType.COMPUTE,
    "Keystone": exception.ServiceType.ACCELERATOR,
}

#: The adapter of the services and Keystone's plugin read bodies.
CLIENTS = ("Cyborg", "Keystone")

#: Writes an entire response.
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server(http.server.ThreadingHTTPServer):
    """Sends the same response to every request.

    :ivar sent: number of bytes sent of endless responses.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer: Answer = of(b"{}")
        self.codings: list[str | None] = []
        self.sent = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have disconnected."""

    def conf(self, service: Service, **declared: object) -> cfg.ConfigOpts:
        given = {
            "auth_type": "none",
            "endpoint_override": self.url,
            "connect_retries": 0,
            **declared,
        }
        return keystone_double.config(service, given)

    def ask(self, name: str) -> Any:
        """Send a request as a client of the named service."""
        if name == "Glance":
            return Glance(self.conf(glance.SERVICE)).image(IMAGE, soon())
        if name == "Placement":
            return Client(self.conf(placement.SERVICE)).tree(NODE, soon())
        if name == "Nova":
            return Flavors(self.conf(flavors.SERVICE)).apply("7", {}, "_", soon())
        declared = {}
        if name == "Keystone":
            declared = keystone_double.credentials(self.url, "x")
        return list(Cyborg(self.conf(sources.SERVICE, **declared)).checked(soon()))


class _Handler(keystone_double.Handler):
    server: Server

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.codings.append(self.headers.get("Accept-Encoding"))
        self.close_connection = True
        self.server.answer(self)

    do_POST = do_GET


def of(body: bytes, status: int = 200, **fields: str) -> Answer:
    """Return a response with this body."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        named.setdefault("Content-Type", "application/json")
        framing = {"Content-Length": str(len(body)), "Connection": "close"}
        for name, value in (named | framing).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(begin: bytes, again: bytes) -> Answer:
    """Return an endless response that begins with ``begin`` and repeats ``again``."""

    def answer(handler: Any) -> None:
        handler.wfile.write(begin)
        # The response ends, so that an unlimited client does not exhaust the host.
        while handler.server.sent < 256 * MEBIBYTE:
            handler.wfile.write(again)
            handler.server.sent += len(again)

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with keystone_double.serving(made, threading.Event()):
        yield made


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """Return a function that returns the peak of Python's memory in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_an_answer_without_end_is_not_read(server, name):
    server.answer = raw(b"HTTP/1.1 200 OK\r\n\r\n", b" " * MEBIBYTE)
    with raises(UNAVAILABLE[name], match="more than 16777216 bytes"):
        server.ask(name)
    assert server.sent < 64 * MEBIBYTE


@pytest.mark.parametrize("name", CLIENTS)
def test_an_answer_of_millions_of_values_is_not_read(server, name, peak):
    server.answer = of(b"[" + b"[]," * (5 * MEBIBYTE) + b"[]]")
    with raises(UNAVAILABLE[name], match="more than 1048576 values"):
        server.ask(name)
    assert peak() < 80 * MEBIBYTE


@pytest.mark.parametrize("coding", ["gzip", "x"])
def test_no_coding_is_requested_and_none_decoded(server, coding):
    packed = gzip.compress(json.dumps({"device_profiles": []}).encode())
    server.answer = of(packed, Content_Encoding=coding)
    with raises(exception.ServiceType.ACCELERATOR, match="it is encoded"):
        server.ask("Cyborg")
    assert server.codings == ["identity"]


def test_json_is_utf_8_whatever_a_server_says(server):
    """Some of Python's codecs take quadratic time in the size."""
    declared = "application/json; charset=punycode"
    server.answer = of(b'{"device_profiles": []}', Content_Type=declared)
    assert server.ask("Cyborg") == []


@pytest.mark.parametrize("name", UNAVAILABLE)
@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
        (b"HTTP/1.1 200 ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0" * 4096),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;", b"x" * 4096),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX:",
            b"x" * 4096,
        ),
    ],
    ids=["header", "status", "headers", "chunk", "extension", "trailer"],
)
def test_a_line_without_end_is_not_read(server, name, begin, again):
    server.answer = raw(begin, again)
    with pytest.raises(exception.OsAccError):
        server.ask(name)
    assert server.sent < 64 * MEBIBYTE


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "text",
    ["[" * 1_000_000, '{"a":' * 1_000_000, "9" * 1_000_000, "", "\ufeff", '"\\ud800"'],
    ids=lambda text: text[:4],
)
def test_what_python_does_not_read_is_told(server, name, text):
    server.answer = of(text.encode())
    with pytest.raises(exception.OsAccError) as caught:
        server.ask(name)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("name", CLIENTS)
def test_a_refusal_of_megabytes_is_told_in_a_line(server, name):
    text = "no " * MEBIBYTE
    for body in (
        {"errors": [{"code": "x", "detail": text, "title": text}]},
        {"error": {"message": text}},
    ):
        for status in (400, 403, 404, 409, 500):
            server.answer = of(json.dumps(body).encode(), status)
            with pytest.raises(exception.OsAccError) as caught:
                server.ask(name)
            assert len(str(caught.value)) < 2_000


def test_a_server_does_not_set_the_pause_before_a_retry(server):
    answers = iter([of(b"", 503, Retry_After="86400"), of(b'{"device_profiles": []}')])
    server.answer = lambda handler: next(answers)(handler)
    options = {"status_code_retries": 1, "status_code_retry_delay": 0.001}
    source = Cyborg(server.conf(sources.SERVICE, **options))
    assert list(source.checked(soon())) == []


def test_a_clock_that_goes_back_delays_no_request(server, monkeypatch):
    server.answer = of(b'{"device_profiles": []}')
    source = Cyborg(server.conf(sources.SERVICE))
    assert list(source.checked(soon())) == []
    before = time.time
    monkeypatch.setattr(time, "time", lambda: before() - 7_200)
    assert list(source.checked(time.monotonic() + 10)) == []


def test_calls_that_do_not_end_are_bounded(server):
    ended = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not ended.wait(0.01):
            handler.wfile.write(b" ")
        handler.wfile.write(b'{"device_profiles": []}')

    source = Cyborg(server.conf(sources.SERVICE))
    server.answer = drip
    calls = source._link
    # On a slow host, a call may end before it has reached the server.
    while sum(not each.done() for each in calls._abandoned) < client.MOST_ABANDONED:
        with raises(exception.ServiceType.ACCELERATOR, match="in time"):
            list(source.checked(time.monotonic() + 0.2))
    asked = len(server.codings)
    with raises(exception.ServiceType.ACCELERATOR, match="8 earlier requests"):
        list(source.checked(soon()))
    assert len(server.codings) == asked
    ended.set()
    futures.wait(calls._abandoned, 60.0)
    assert list(source.checked(soon())) == []


def test_a_listing_of_images_has_an_end(server):
    numbers = itertools.count()

    def page(handler: http.server.BaseHTTPRequestHandler) -> None:
        ids = [f"{next(numbers):08x}{IMAGE[8:]}" for _ in range(200)]
        body = {"images": [{"id": each} for each in ids], "next": "/v2/images"}
        of(json.dumps(body).encode())(handler)

    server.answer = page
    with raises(exception.ServiceType.IMAGE, match="more than 10000"):
        list(Glance(server.conf(glance.SERVICE)).images({}, soon()))


def test_what_a_large_cloud_answers_is_read():
    """Ten times the usual numbers use less than half of each limit."""
    links = [{"rel": "r" * 12, "href": "x" * 80}] * 7
    provider = {"uuid": NODE, "name": "n" * 60, "generation": 9, "links": links}
    answers = [
        {"resource_providers": [provider] * 5_000},
        {
            "device_profiles": [{"groups": [{"x" * 60: "1"}] * 4, "links": links}]
            * 5_000
        },
        {"images": [{f"property{n}": "x" * 255 for n in range(100)}] * 200},
    ]
    for answer in answers:
        text = json.dumps(answer)
        assert len(text) < session.MOST_BYTES / 2
        assert sum(map(text.count, ",[{")) < session.MOST_VALUES / 2
