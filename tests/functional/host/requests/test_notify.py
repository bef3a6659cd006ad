# SPDX-License-Identifier: Apache-2.0

"""Nova receives the events of accelerator requests."""

import json

import pytest

from os_acc import exception, requests, service
from os_acc.attach.external_events import SERVICE, NovaEvents
from os_acc.objects.accelerator_request import RequestState
from os_acc.testing import uuid_of
from os_acc.testing.test_host import config_of
from tests.expected_errors import has, raises
from tests.functional.host.requests.request_states import (
    FPGA,
    GPU,
    NO_REQUEST,
    bind,
    binding,
    states,
)
from tests.unit.profiles.cloud_double import running

GPUS = "resources:CUSTOM_ACCELERATOR_GPU"
POST = "POST /compute/v2.1/os-server-external-events"
NOVA = has(service=exception.ServiceType.COMPUTE)


@pytest.fixture
def cloud():
    with running(servers={uuid_of(1): "node1", uuid_of(2): "node1"}) as cloud:
        yield cloud


@pytest.fixture
def connected(bench, book, cloud):
    """Return the requests of a service with credentials for Nova."""
    bench.manager.nova_events = NovaEvents(cloud.conf(SERVICE))
    return book


def test_the_service_sends_events_with_its_credentials(
    make_bench, tmp_path, cloud, monkeypatch
):
    file, catalogue = tmp_path / "nova.conf", tmp_path / "profiles.yaml"
    lines = [f"{key} = {value}" for key, value in cloud.credentials().items()]
    file.write_text("\n".join(["[os_acc_nova]", *lines]))
    catalogue.write_text(json.dumps([{"name": "one", "groups": [{GPUS: "1"}]}]))
    bench = make_bench(
        read=lambda: config_of(file),
        groups={"os_acc_profiles": {"catalogue": str(catalogue)}},
    )
    monkeypatch.setattr(service, "nodes", service.Nodes(bench.manager))
    (made,) = requests.create("one")
    requests.bind({made["uuid"]: binding(bench, GPU)})
    report = requests.notify([made["uuid"]])
    assert report == {"sent": [made["uuid"]], "refused": [], "unresolved": []}
    assert [each["tag"] for each in cloud.events] == [made["uuid"]]


def test_an_event_notifies_nova_that_a_request_is_bound(bench, connected, cloud, one):
    bind(bench, connected, one)
    report = connected.notify([one.uuid])
    assert report == {"sent": [one.uuid], "refused": [], "unresolved": []}
    assert cloud.events == connected.events([one.uuid])["events"]
    assert cloud.asked == [POST]
    assert cloud.microversions == {"compute 2.82"}
    assert states(connected) == [RequestState.BOUND]


def test_bindings_that_failed_are_reported_as_well(bench, connected, cloud, one):
    (other,) = connected.create("one")
    bind(bench, connected, one)
    with pytest.raises(exception.NoDeviceAvailable):
        bind(bench, connected, other, number=2)
    report = connected.notify([one.uuid, other.uuid])
    assert sorted(report["sent"]) == sorted([one.uuid, other.uuid])
    assert {each["tag"]: each["status"] for each in cloud.events} == {
        one.uuid: "completed",
        other.uuid: "failed",
    }


def test_requests_that_are_not_resolved_have_no_event(connected, cloud, one):
    """Nova rejects a body without events, so none is sent."""
    report = connected.notify([one.uuid])
    assert report == {"sent": [], "refused": [], "unresolved": [one.uuid]}
    assert cloud.asked == []


@pytest.mark.parametrize(
    ("servers", "code", "wording"),
    [
        ({}, 404, f"no server {uuid_of(1)}"),
        ({uuid_of(1): ""}, 422, "on no host"),
    ],
)
def test_an_event_that_nova_refuses_is_in_the_report(
    bench, connected, cloud, one, servers, code, wording
):
    """Nova answers 207, and accepts the others."""
    (other,) = connected.create("reserved")
    bind(bench, connected, one)
    bind(bench, connected, other, number=2, place=FPGA)
    cloud.servers = {**servers, uuid_of(2): "node1"}
    report = connected.notify([one.uuid, other.uuid])
    assert report["sent"] == [other.uuid]
    (refused,) = report["refused"]
    assert (refused["uuid"], refused["code"]) == (one.uuid, code)
    assert wording in refused["error"]


def test_an_event_is_sent_again_when_its_server_has_a_host(
    bench, connected, cloud, one
):
    bind(bench, connected, one)
    cloud.servers = {uuid_of(1): ""}
    assert connected.notify([one.uuid])["sent"] == []
    cloud.servers = {uuid_of(1): "node1"}
    for _ in range(2):
        assert connected.notify([one.uuid])["sent"] == [one.uuid]


# -- failures ---------------------------------------------------------------------


def test_a_request_that_does_not_exist_is_not_found_and_nothing_is_sent(
    bench, connected, cloud, one
):
    bind(bench, connected, one)
    with raises(NO_REQUEST):
        connected.notify([one.uuid, uuid_of(5)])
    assert cloud.asked == []


def test_a_nova_without_such_events_is_too_old(bench, connected, cloud, one):
    bind(bench, connected, one)
    cloud.oldest = True
    with pytest.raises(exception.ServiceRefused, check=NOVA, match=r"2\.82") as caught:
        connected.notify([one.uuid])
    assert "upgrade Nova" in caught.value.hint


def test_events_are_sent_by_an_administrator(bench, connected, cloud, one):
    bind(bench, connected, one)
    cloud.statuses = [403]
    with pytest.raises(exception.ServiceRefused, check=NOVA) as caught:
        connected.notify([one.uuid])
    assert "role admin" in caught.value.hint


def test_a_nova_that_never_answers_changes_no_request(bench, book, cloud, one):
    bind(bench, book, one)
    bench.restart(plug_timeout=1.0)
    bench.manager.nova_events = NovaEvents(cloud.conf(SERVICE))
    cloud.silent = True
    with pytest.raises(exception.ServiceUnavailable, check=NOVA) as caught:
        book.notify([one.uuid])
    assert "plug_timeout" in caught.value.hint
    assert states(book) == [RequestState.BOUND]


@pytest.mark.parametrize(
    "answer", [{"events": []}, {"events": [{"tag": uuid_of(9), "code": 200}]}, []]
)
def test_an_answer_without_the_event_is_not_novas(
    bench, connected, cloud, one, monkeypatch, answer
):
    bind(bench, connected, one)
    monkeypatch.setattr(cloud, "answer", lambda *_: (200, answer))
    with pytest.raises(exception.InvalidConfiguration, match="not from Nova"):
        connected.notify([one.uuid])


def test_without_credentials_the_option_is_named(bench, book, one):
    bind(bench, book, one)
    reason = exception.ConfigurationReason.NOT_CONFIGURED
    with raises(reason, match=r"\[os_acc_nova\] auth_type"):
        book.notify([one.uuid])
