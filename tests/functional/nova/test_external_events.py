# SPDX-License-Identifier: Apache-2.0

"""Nova's API accepts the events of accelerator requests."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref import simple_server

import pytest
from nova import context, objects
from nova.tests.functional.api import client
from oslo_config import cfg
from oslo_utils import uuidutils

from os_acc import exception
from os_acc.attach import serialize
from os_acc.attach.external_events import SERVICE, NovaEvents
from os_acc.objects.accelerator_request import (
    RESOLVED,
    AcceleratorRequest,
    RequestBinding,
    RequestState,
)

#: The first microversion of Nova that has the event.
FIRST = "2.82"
PLACE = "/os-server-external-events"


@pytest.fixture(params=[FIRST, "latest"])
def api(compute_api: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return Nova's API at a microversion with events of accelerator requests."""
    compute_api.microversion = request.param
    yield compute_api
    compute_api.microversion = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Request(AcceleratorRequest):
    """A request in a given state, without the data of that state."""

    reached: RequestState = RequestState.INITIAL

    @property
    def state(self) -> RequestState:
        return self.reached


def in_state(state: RequestState) -> _Request:
    """Return a request of an instance."""
    instance, provider = uuidutils.generate_uuid(), uuidutils.generate_uuid()
    return _Request(
        uuidutils.generate_uuid(),
        binding=RequestBinding("node1", provider, instance),
        reached=state,
    )


def test_nova_takes_what_is_told_of_every_request_that_is_resolved(api):
    body = serialize.events(in_state(state) for state in RequestState)
    assert len(body["events"]) == len(RESOLVED)
    answer = api.api_post(PLACE, body, check_response_status=[207])
    # Nova has parsed each event, and has no such server.
    answered = [(each["tag"], each["code"]) for each in answer.body["events"]]
    assert answered == [(each["tag"], 404) for each in body["events"]]


def test_nova_takes_no_body_without_events(api):
    body = serialize.events([in_state(RequestState.INITIAL)])
    with pytest.raises(client.OpenStackApiException) as caught:
        api.api_post(PLACE, body)
    assert caught.value.response.status_code == 400


def test_an_older_nova_knows_no_such_event(compute_api):
    body = serialize.events([in_state(RequestState.BOUND)])
    compute_api.microversion = "2.81"
    try:
        with pytest.raises(client.OpenStackApiException) as caught:
            compute_api.api_post(PLACE, body)
    finally:
        compute_api.microversion = None
    assert caught.value.response.status_code == 400
    assert "accelerator-request-bound" in caught.value.response.text


# -- by os_acc's own client ---------------------------------------------------------


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@contextlib.contextmanager
def listening(app: Callable[..., Any], roles: str) -> Iterator[str]:
    """Serve Nova's API on loopback for a user with these roles; yield its URL.

    Nova's fixture replaces Keystone's middleware by headers of its own; to it, the
    user "admin" is an administrator.
    """
    user = {
        "HTTP_X_AUTH_USER": "admin" if roles == "admin" else "os_acc",
        "HTTP_X_AUTH_PROJECT_ID": "service",
        "HTTP_X_ROLES": roles,
    }

    def authenticated(environ: dict[str, Any], start_response: Any) -> Any:
        return app(environ | user, start_response)

    server = simple_server.make_server(
        "127.0.0.1", 0, authenticated, handler_class=_Handler
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v2.1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def sender(compute_app: Any) -> Iterator[Callable[[str], NovaEvents]]:
    """Return a function that makes os_acc's client of a user with these roles."""
    with contextlib.ExitStack() as stack:

        def make(roles: str) -> NovaEvents:
            url = stack.enter_context(listening(compute_app, roles))
            conf = cfg.ConfigOpts()
            conf([], default_config_files=[], default_config_dirs=[])
            SERVICE.register(conf)
            for name, value in (("auth_type", "none"), ("endpoint_override", url)):
                conf.set_override(name, value, SERVICE.group.name)
            return NovaEvents(conf)

        yield make


def server_on(host: str | None) -> str:
    """Record a server in the cell of Nova's fixture; return its UUID."""
    admin = context.get_admin_context()
    uuid = uuidutils.generate_uuid()
    (cell,) = (
        each for each in objects.CellMappingList.get_all(admin) if not each.is_cell0()
    )
    with context.target_cell(admin, cell) as within:
        objects.Instance(
            within, uuid=uuid, host=host, project_id="p", user_id="u"
        ).create()
    objects.InstanceMapping(
        admin, instance_uuid=uuid, cell_mapping=cell, project_id="p"
    ).create()
    return uuid


def bound_to(server: str) -> _Request:
    request = in_state(RequestState.BOUND)
    assert request.binding
    binding = dataclasses.replace(request.binding, instance_uuid=server)
    return dataclasses.replace(request, binding=binding)


def soon() -> float:
    return time.monotonic() + 60.0


def test_nova_receives_what_os_acc_sends(sender):
    here, nowhere = bound_to(server_on("node1")), bound_to(server_on(None))
    unknown, waiting = in_state(RequestState.BOUND), in_state(RequestState.INITIAL)
    report = sender("admin").notify((here, nowhere, unknown, waiting), soon())
    assert report["sent"] == [here.uuid]
    assert {each["uuid"]: each["code"] for each in report["refused"]} == {
        nowhere.uuid: 422,
        unknown.uuid: 404,
    }
    assert report["unresolved"] == [waiting.uuid]


def test_nova_denies_external_events_to_users(sender):
    request = bound_to(server_on("node1"))
    with pytest.raises(exception.ServiceRefused) as caught:
        sender("member,reader").notify([request], soon())
    assert "role admin" in caught.value.hint


def test_nova_finds_no_server_of_another_project_for_the_role_service(sender):
    """Its policy admits the role; the query for the servers is a user's."""
    request = bound_to(server_on("node1"))
    (refused,) = sender("service").notify([request], soon())["refused"]
    assert refused["code"] == 404
    assert "administrator" in refused["error"]
