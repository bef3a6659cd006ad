# SPDX-License-Identifier: Apache-2.0

"""Device profiles are read from Cyborg, and its faulty responses are reported."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.profiles import expansion, options
from os_acc.profiles.sources import SERVICE, Cyborg
from tests.expected_errors import raises
from tests.unit.keystone_double import soon
from tests.unit.profiles.cloud_double import Cloud, running
from tests.unit.profiles.profile_examples import FPGA, profile

UUID = "5518a925-1c2c-49a2-a8bf-0927d9456f3e"
#: The response in Cyborg's API reference.
ANSWERED = profile(
    uuid=UUID,
    description="",
    created_at="2020-03-10 03:52:15+00:00",
    updated_at=None,
    links=[
        {"href": "http://192.0.2.1/accelerator/v2/device_profiles/x", "rel": "self"}
    ],
)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with running(profiles=[ANSWERED]) as cloud:
        yield cloud


@pytest.fixture
def source(cloud: Cloud) -> Cyborg:
    return Cyborg(cloud.conf(SERVICE))


@pytest.mark.parametrize("name", ["fpga-dp1", UUID])
def test_a_profile_is_found_by_name_and_by_uuid(source, name):
    found = source.profile(name, soon())
    assert (found.name, found.uuid) == ("fpga-dp1", UUID)
    assert found.groups[0].request.resources == ((FPGA, 1),)


def test_what_cyborg_does_not_have_is_not_found(source):
    with raises(exception.ObjectKind.PROFILE, match="other"):
        source.profile("other", soon())


@pytest.mark.parametrize("end", ["", "/", "/v2", "/v2/"])
def test_an_endpoint_may_have_its_version_or_not(cloud, end):
    place = f"{cloud.url}/accelerator{end}"
    source = Cyborg(cloud.conf(SERVICE, endpoint_override=place))
    assert source.profile("fpga-dp1", soon()).uuid == UUID
    assert cloud.asked == ["GET /accelerator/v2/device_profiles"]


def test_the_endpoint_of_cyborg_is_located_in_the_catalog(cloud, source):
    """Specification: "locate the Cyborg service"."""
    with running(profiles=[ANSWERED]) as elsewhere:
        cloud.places["accelerator"] = f"{elsewhere.url}/accelerator"
        assert source.profile("fpga-dp1", soon()).uuid == UUID
        assert elsewhere.asked == ["GET /accelerator/v2/device_profiles"]
    assert cloud.asked == []


def test_a_token_is_asked_for_once(cloud, source):
    for _ in range(3):
        source.profile("fpga-dp1", soon())
    assert cloud.asked == ["GET /accelerator/v2/device_profiles"] * 3


@pytest.mark.parametrize("trouble", [{"statuses": [503, 503]}, {"refusals": 2}])
def test_what_passes_is_waited_for(cloud, source, trouble):
    for name, value in trouble.items():
        setattr(cloud, name, value)
    assert source.profile("fpga-dp1", soon()).uuid == UUID


@pytest.mark.parametrize("code", [408, 429, 502])
def test_an_answer_that_may_be_another_one_later(cloud, source, code):
    cloud.statuses = [code] * 9
    with raises(exception.ServiceType.ACCELERATOR, match="Cyborg failed") as error:
        source.profile("fpga-dp1", soon())
    assert error.value.retryable
    assert error.value.__cause__ is not None
    cloud.statuses = []
    assert source.profile("fpga-dp1", soon()).uuid == UUID


@pytest.mark.parametrize("code", [400, 403, 404])
def test_a_wrong_endpoint_is_told_as_one(cloud, source, code):
    cloud.statuses = [code]
    with pytest.raises(exception.InvalidConfiguration) as error:
        source.profile("fpga-dp1", soon())
    assert "endpoint_override in [os_acc_cyborg]" in error.value.hint
    assert "auth_url" not in error.value.hint


@pytest.mark.parametrize("code", [400, 401, 404])
def test_what_keystone_refuses_is_told_as_that(cloud, source, code):
    cloud.keystone = code
    with pytest.raises(exception.InvalidConfiguration, match="auth_url"):
        source.profile("fpga-dp1", soon())


@pytest.mark.parametrize("code", [429, 503])
def test_a_keystone_that_cannot_answer_now(cloud, source, code):
    cloud.keystone = code
    with raises(exception.ServiceType.ACCELERATOR, match="Keystone failed"):
        source.profile("fpga-dp1", soon())


def test_cyborg_that_takes_no_token(cloud, source):
    cloud.statuses = [401] * 9
    with pytest.raises(exception.InvalidConfiguration, match="auth_type"):
        source.profile("fpga-dp1", soon())


def test_nobody_is_there(cloud):
    away = cloud.conf(
        SERVICE, endpoint_override="http://127.0.0.1:1", connect_retries=1
    )
    with raises(exception.ServiceType.ACCELERATOR, match="cannot reach Cyborg"):
        Cyborg(away).profile("fpga-dp1", soon())


def test_one_who_never_answers_is_not_waited_for(cloud, source):
    cloud.silent = True
    with raises(exception.ServiceType.ACCELERATOR, match="in time"):
        source.profile("fpga-dp1", time.monotonic() + 0.3)


@pytest.mark.parametrize(
    "text",
    ["<html>It works!</html>", "", "[]", '{"a": 1}', "[" * 200_000],
    ids=lambda text: text[:9],
)
def test_what_answers_is_not_cyborg(cloud, source, text):
    cloud.text = text
    with pytest.raises(exception.InvalidConfiguration, match="endpoint_override"):
        source.profile("fpga-dp1", soon())


def test_cyborg_is_asked_where_the_configuration_says_so(cloud):
    settings = cloud.conf(SERVICE)
    options.register(settings)
    settings.set_override("source", "cyborg", group=options.GROUP.name)
    specs = {"accel:device_profile": "fpga-dp1"}
    expanded = expansion.ProfileLookup(settings).expanded(specs, soon()).specs
    assert expanded[f"resourcesdevice_profile_0:{FPGA}"] == "1"  # type: ignore[index]
    assert expansion.ProfileLookup(settings).expanded({"hw:x": "1"}, soon()).specs == {
        "hw:x": "1"
    }
    assert len(cloud.asked) == 1


def test_what_cyborg_17_has_answered_is_read(cloud, source):
    """Cyborg's API accepted both profiles; the second has a misspelt key."""
    answered = Path(__file__).with_name("cyborg_17.json").read_text()
    cloud.profiles = json.loads(answered)["device_profiles"]
    assert [each["name"] for each in cloud.profiles] == ["fpga-dp1", "typo"]
    assert (
        source.profile("fpga-dp1", soon()).groups[0].request.bitstream_request
        is not None
    )
    with pytest.raises(exception.InvalidProfile, match="bitstram_id"):
        source.profile("typo", soon())
