# SPDX-License-Identifier: Apache-2.0

"""Requests to Glance use the configured credentials, endpoint and time limits."""

import http.server
import time
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.bitstreams.glance import Glance
from tests.expected_errors import raises
from tests.unit.bitstreams.glance_double import DATA, received
from tests.unit.keystone_double import soon

UNKNOWN = "00000000-0000-0000-0000-000000000000"


# -- tokens ------------------------------------------------------------------------


def test_many_threads_share_one_token(glance, source):
    ids = [glance.add(DATA) for _ in range(8)]

    def fetched(image_id: str) -> bytes:
        return received(source, source.image(image_id, soon()))[1]

    with futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fetched, ids)) == [DATA] * 8
    assert glance.count("POST") == 1


def test_a_token_that_ends_is_renewed_on_the_way(glance, source):
    image = source.image(glance.add(DATA), soon())
    glance.tokens.clear()
    assert received(source, image, 1000) == (1000, DATA[1000:])
    assert glance.count("POST") == 2


def test_glance_that_takes_no_token_is_asked_twice_and_no_more(glance, source):
    image = source.image(glance.add(DATA), soon())
    glance.failures = [401] * 10
    with pytest.raises(exception.InvalidConfiguration, match="credentials"):
        received(source, image)
    assert len(glance.failures) == 8


def test_a_wrong_password(glance):
    source = Glance(glance.conf(password="wrong"))
    with pytest.raises(exception.InvalidConfiguration, match="credentials") as error:
        source.image(UNKNOWN, soon())
    assert "[os_acc_glance]" in str(error.value)
    assert error.value.__cause__ is not None


# -- options -------------------------------------------------------------------------


def test_no_credentials_at_all(glance):
    source = Glance(glance.conf(auth_type=None))
    with raises(exception.ConfigurationReason.NOT_CONFIGURED, match="auth_type"):
        source.image(UNKNOWN, soon())


@pytest.mark.parametrize(
    "options",
    [
        {"auth_type": "nobody-has-this"},
        {"auth_url": None},
        {"valid_interfaces": ["sideways"]},
        {"version": "1"},
        {"timeout": 0},
        {"connect_retry_delay": -1},
        {"status_code_retry_delay": "nan"},
        {"region_name": "elsewhere"},
        {"valid_interfaces": ["admin"]},
        {"service_type": "painting"},
        {"cafile": "/nonexistent", "endpoint_override": "https://127.0.0.1:1"},
    ],
    ids=str,
)
def test_options_that_lead_nowhere(glance, options):
    source = Glance(glance.conf(**options))
    with pytest.raises(exception.InvalidConfiguration, match="os_acc_glance"):
        source.image(UNKNOWN, soon())


def test_an_endpoint_may_be_given_with_its_version(glance):
    source = Glance(glance.conf(endpoint_override=f"{glance.url}/v2/"))
    image_id = glance.add(DATA)
    assert source.image(image_id, soon()).id == image_id


def test_credentials_may_be_those_of_another_section(glance):
    conf = glance.conf(auth_type=None, auth_section="placement")
    credentials = glance.conf()["os_acc_glance"]
    from keystoneauth1 import loading

    loading.register_auth_conf_options(conf, "placement")
    conf.register_opts(loading.get_auth_plugin_conf_options("password"), "placement")
    for name in ("auth_type", "auth_url", "username", "password", "project_name"):
        conf.set_override(name, credentials[name], "placement")
    conf.set_override("user_domain_id", "default", "placement")
    conf.set_override("project_domain_id", "default", "placement")
    image_id = glance.add(DATA)
    assert Glance(conf).image(image_id, soon()).id == image_id


def test_an_endpoint_that_is_not_glance(glance, source):
    image = source.image(glance.add(DATA), soon())
    glance.not_json = "<html>It works!</html>"
    with pytest.raises(exception.InvalidConfiguration, match="endpoint_override"):
        source.image(image.id, soon())
    with pytest.raises(exception.InvalidConfiguration, match="endpoint_override"):
        list(source.images({}, soon()))


def test_a_certificate_that_nobody_vouches_for(glance):
    # A server without TLS has no certificate either.
    source = Glance(glance.conf(endpoint_override=glance.url.replace("http", "https")))
    with pytest.raises(exception.InvalidConfiguration, match="cafile"):
        source.image(UNKNOWN, soon())


# -- retries and time limits ---------------------------------------------------------


@pytest.mark.parametrize("code", [429, 500])
def test_an_answer_that_may_be_another_one_later(glance, source, code):
    image = source.image(glance.add(DATA), soon())
    glance.failures = [code] * 9
    with raises(exception.ServiceType.IMAGE) as error:
        source.image(image.id, soon())
    assert error.value.retryable
    glance.failures = [code] * 9
    with raises(exception.ServiceType.IMAGE):
        received(source, image)


@pytest.mark.parametrize("trouble", [{"failures": [503, 503]}, {"refusals": 2}])
def test_what_passes_is_waited_for(glance, source, trouble):
    image_id = glance.add(DATA)
    for name, value in trouble.items():
        setattr(glance, name, value)
    assert source.image(image_id, soon()).id == image_id


@pytest.mark.parametrize("trouble", [{"failures": [503] * 99}, {"refusals": 99}])
def test_what_does_not_pass_is_told_after_the_last_retry(glance, trouble):
    for name, value in trouble.items():
        setattr(glance, name, value)
    source = Glance(glance.conf(connect_retries=2, status_code_retries=2))
    with raises(exception.ServiceType.IMAGE):
        source.image(UNKNOWN, soon())
    assert glance.count("GET /v2/images/") == 3


def test_nobody_is_there(glance):
    conf = glance.conf(endpoint_override="http://127.0.0.1:1")
    with raises(exception.ServiceType.IMAGE, match="cannot reach Glance"):
        Glance(conf).image(UNKNOWN, soon())


def test_no_keystone_is_there(glance):
    for url in ("http://127.0.0.1:1", "http://127.0.0.1:1/v3"):
        source = Glance(glance.conf(auth_url=url, connect_retries=0))
        with raises(exception.ServiceType.IMAGE, match="cannot reach Glance"):
            source.image(UNKNOWN, soon())


def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline(
    glance, source
):
    image = source.image(glance.add(DATA), soon())
    glance.drips = 0.05
    with raises(exception.ServiceType.IMAGE, match="in time"):
        source.image(image.id, time.monotonic() + 0.5)
    with (
        source.data(image, 0, time.monotonic() + 0.5) as data,
        raises(exception.ServiceType.IMAGE),
    ):
        list(data)


def test_a_server_that_says_nothing_is_left_at_the_timeout(glance):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *_: None) as silent:
        url = f"http://127.0.0.1:{silent.server_address[1]}"
        conf = glance.conf(endpoint_override=url, timeout=1, connect_retries=0)
        with raises(exception.ServiceType.IMAGE):
            Glance(conf).image(UNKNOWN, soon())


def test_nothing_is_asked_for_after_the_deadline(glance, source):
    with raises(exception.ServiceType.IMAGE, match="in time"):
        source.image(UNKNOWN, time.monotonic() - 1.0)
    assert glance.asked == []
