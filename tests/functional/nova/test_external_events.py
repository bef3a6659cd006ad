# SPDX-License-Identifier: Apache-2.0

"""Nova's API accepts the events of accelerator requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from nova.tests.functional.api import client
from oslo_utils import uuidutils

from os_acc.attach import serialize
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


def test_nova_takes_what_is_told_of_every_request_that_is_resolved(api: Any) -> None:
    body = serialize.events(in_state(state) for state in RequestState)
    assert len(body["events"]) == len(RESOLVED)
    answer = api.api_post(PLACE, body, check_response_status=[207])
    # Nova has parsed each event, and has no such server.
    answered = [(each["tag"], each["code"]) for each in answer.body["events"]]
    assert answered == [(each["tag"], 404) for each in body["events"]]


def test_nova_takes_no_body_without_events(api: Any) -> None:
    body = serialize.events([in_state(RequestState.INITIAL)])
    with pytest.raises(client.OpenStackApiException) as caught:
        api.api_post(PLACE, body)
    assert caught.value.response.status_code == 400


def test_an_older_nova_knows_no_such_event(compute_api: Any) -> None:
    body = serialize.events([in_state(RequestState.BOUND)])
    compute_api.microversion = "2.81"
    try:
        with pytest.raises(client.OpenStackApiException) as caught:
            compute_api.api_post(PLACE, body)
    finally:
        compute_api.microversion = None
    assert caught.value.response.status_code == 400
    assert "accelerator-request-bound" in caught.value.response.text
