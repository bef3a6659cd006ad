# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Images from Glance: which there are, their data, and what can go wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import fetch
from os_acc.bitstreams.glance.source import Glance
from os_acc.objects.image import Image
from tests.unit.bitstreams.glance_double import Double

DATA = bytes(range(256)) * 4096 * 3
NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def glance() -> Iterator[Double]:
    """A Keystone and a Glance that listen."""
    server = Double()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def source(glance: Double) -> Glance:
    """What is tested."""
    return Glance(glance.conf())


def soon() -> float:
    return time.monotonic() + 60.0


def found(source: Glance, **filters: str) -> list[str]:
    return [image.id for image in source.images(filters, soon())]


def received(source: Glance, image: Image, offset: int = 0) -> tuple[int, bytes]:
    with source.data(image, offset, soon()) as data:
        return data.offset, b"".join(data)


# -- what is known of an image ---------------------------------------------------


def test_an_image_has_what_glance_says_of_it(glance: Double, source: Glance) -> None:
    image_id = glance.add(
        b"1234",
        name="nlb",
        os_hash_algo="sha512",
        os_hash_value="AB" * 64,
        visibility="public",
        tags=["FPGA"],
        **{"accel:function_id": "f"},
    )
    assert source.image(image_id, soon()) == Image(
        id=image_id,
        name="nlb",
        status="active",
        visibility="public",
        hidden=False,
        owner="service",
        size=4,
        disk_format="raw",
        container_format="bare",
        hash_algo="sha512",
        hash_value="ab" * 64,
        tags=frozenset({"FPGA"}),
        properties={"accel:function_id": "f"},
    )


def test_what_glance_does_not_know_is_not_made_up(
    glance: Double, source: Glance
) -> None:
    nothing = {"name": None, "owner": None, "disk_format": None}
    image = source.image(glance.add(None, **nothing), soon())
    assert (image.name, image.owner, image.disk_format) == ("", "", "")
    assert (image.size, image.hash_algo, image.hash_value) == (None, "", "")


def test_no_image_of_that_id(glance: Double, source: Glance) -> None:
    with pytest.raises(exception.ImageNotFound, match=NOBODY):
        source.image(NOBODY, soon())


@pytest.mark.parametrize("text", ["", "nlb", "../../v3/users", f"{NOBODY}?x=y"])
def test_what_is_no_id_never_becomes_an_address(
    glance: Double, source: Glance, text: str
) -> None:
    with pytest.raises(exception.ImageNotFound, match="not the id"):
        source.image(text, soon())
    assert glance.asked == []


# -- which images there are ------------------------------------------------------


def test_every_page_is_listed(glance: Double, source: Glance) -> None:
    glance.page = 3
    ids = [glance.add(name="nlb") for _ in range(11)]
    glance.add(name="another")
    assert found(source, name="nlb") == ids
    assert glance.count("GET /v2/images?") == 4


def test_more_images_than_are_asked_for_at_a_time(
    glance: Double, source: Glance
) -> None:
    ids = [glance.add(name="nlb") for _ in range(450)]
    assert found(source, name="nlb") == ids


def test_images_are_found_by_owner_and_visibility(
    glance: Double, source: Glance
) -> None:
    """So that a search need not see what tenants have."""
    ours = glance.add(owner="fpga-team", visibility="shared")
    public = glance.add(owner="somebody", visibility="public")
    glance.add(owner="FPGA-team", visibility="private")
    assert found(source, owner="fpga-team") == [ours]
    assert found(source, visibility="public") == [public]
    assert found(source, owner="fpga-team", visibility="public") == []


def test_what_an_owner_has_is_found_whatever_its_visibility(
    glance: Double, source: Glance
) -> None:
    """Glance itself lists community images to those who ask for them."""
    wanted = [
        glance.add(owner="fpga-team", name="nlb", visibility=visibility)
        for visibility in ("public", "community", "shared")
    ]
    glance.add(owner="tenant", name="nlb", visibility="community")
    assert found(source, name="nlb", owner="fpga-team") == wanted
    assert found(source, name="nlb") == [wanted[0], wanted[2]]


def test_images_are_found_by_properties_and_tags_together(
    glance: Double, source: Glance
) -> None:
    wanted = glance.add(tags=["FPGA", "x"], **{"accel:function_id": "f"})
    glance.add(tags=["FPGA"], **{"accel:function_id": "g"})
    glance.add(tags=[], **{"accel:function_id": "f"})
    assert found(source, tag="FPGA", **{"accel:function_id": "f"}) == [wanted]


def test_a_value_in_other_letters_is_another_value(
    glance: Double, source: Glance
) -> None:
    glance.add(name="NLB")
    wanted = glance.add(name="nlb")
    assert found(source, name="nlb") == [wanted]


@pytest.mark.parametrize("name", ["nlb:v2", "in:a,b", 'in:"x', "a:\\b", "a&limit=1"])
def test_a_name_is_never_read_as_an_operator(
    glance: Double, source: Glance, name: str
) -> None:
    glance.add(name="a")
    wanted = glance.add(name=name)
    assert found(source, name=name) == [wanted]


def test_a_hidden_image_is_found_by_its_id_alone(
    glance: Double, source: Glance
) -> None:
    image_id = glance.add(name="nlb", os_hidden=True)
    assert found(source, name="nlb") == []
    assert source.image(image_id, soon()).hidden


def test_an_image_that_goes_while_pages_are_listed(
    glance: Double, source: Glance
) -> None:
    for _ in range(201):
        glance.add()
    listing = source.images({}, soon())
    for _ in range(199):
        next(listing)
    del glance.images[next(listing).id]
    with pytest.raises(exception.ImageServiceUnavailable, match="deleted while"):
        list(listing)


# -- data ------------------------------------------------------------------------


def test_data_come_in_pieces_of_a_mebibyte_at_most(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    with source.data(image, 0, soon()) as data:
        pieces = list(data)
    assert b"".join(pieces) == DATA
    assert max(map(len, pieces)) <= 2**20


def test_data_begin_where_they_are_asked_to(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (1000, DATA[1000:])


def test_a_server_that_cannot_begin_there_begins_at_the_start(
    glance: Double, source: Glance
) -> None:
    glance.ranges = False
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (0, DATA)


@pytest.mark.parametrize(
    "lie",
    [
        "",
        "bytes 0-3145727/3145728",
        "bytes 1000-2000/3145728",
        "bytes 1000-3145726/3145727",
        "bytes */3145728",
    ],
)
def test_an_answer_from_elsewhere_is_not_taken(
    glance: Double, source: Glance, lie: str
) -> None:
    glance.lie = lie or " "
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (0, DATA)


def test_what_is_beyond_the_end_begins_at_the_start(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, len(DATA)) == (0, DATA)


def test_a_dropped_connection_is_told_and_gone_on_from(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.drop_after = 2**20 + 5
    arrived = b""
    error = None
    with source.data(image, 0, soon()) as data:
        try:
            for piece in data:
                arrived += piece
        except exception.ImageServiceUnavailable as raised:
            error = raised
    assert error is not None
    assert error.retryable
    assert arrived
    assert DATA.startswith(arrived)
    assert received(source, image, len(arrived)) == (len(arrived), DATA[len(arrived) :])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_store_that_has_lost_the_end_is_told_early(
    glance: Double, source: Glance, tmp_path: Path, ranges: bool
) -> None:
    glance.ranges, glance.stored = ranges, 2**20 + 7
    value = hashlib.sha512(DATA).hexdigest()
    image_id = glance.add(DATA, os_hash_algo="sha512", os_hash_value=value)
    image = source.image(image_id, soon())
    with (
        open(tmp_path / "arriving", "w+b", buffering=0) as file,
        pytest.raises(exception.ImageInvalid, match="no more than 1048576 bytes"),
    ):
        fetch.fetch(source, image, file.fileno(), 2**30, soon())
    assert glance.count(f"GET /v2/images/{image_id}/file") == 4


def test_an_image_without_data(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(None), soon())
    with pytest.raises(exception.ImageNotFound, match="no data"):
        received(source, image)


def test_an_image_that_was_deleted_meanwhile(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA), soon())
    del glance.images[image.id]
    with pytest.raises(exception.ImageNotFound, match="is gone"):
        received(source, image)


def test_a_deactivated_image_gives_no_data(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA, status="deactivated"), soon())
    with pytest.raises(exception.ImageNotFound, match="deactivated"):
        received(source, image)


def test_encoded_data_are_not_decoded(glance: Double, source: Glance) -> None:
    # A mebibyte of them could be a gibibyte.
    glance.encoding = "gzip"
    image = source.image(glance.add(DATA), soon())
    with pytest.raises(exception.ImageServiceUnavailable, match="gzip"):
        received(source, image)


# -- tokens ------------------------------------------------------------------------


def test_many_threads_share_one_token(glance: Double, source: Glance) -> None:
    ids = [glance.add(DATA) for _ in range(8)]

    def fetched(image_id: str) -> bytes:
        return received(source, source.image(image_id, soon()))[1]

    with futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fetched, ids)) == [DATA] * 8
    assert glance.count("POST") == 1


def test_a_token_that_ends_is_renewed_on_the_way(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.tokens.clear()
    assert received(source, image, 1000) == (1000, DATA[1000:])
    assert glance.count("POST") == 2


def test_glance_that_takes_no_token_is_asked_twice_and_no_more(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.failures = [401] * 10
    with pytest.raises(exception.InvalidConfiguration, match="credentials"):
        received(source, image)
    assert len(glance.failures) == 8


def test_a_wrong_password(glance: Double) -> None:
    source = Glance(glance.conf(password="wrong"))
    with pytest.raises(exception.InvalidConfiguration, match="credentials") as error:
        source.image(NOBODY, soon())
    assert "[os_acc_glance]" in str(error.value)
    assert error.value.__cause__ is not None


# -- options -------------------------------------------------------------------------


def test_no_credentials_at_all(glance: Double) -> None:
    source = Glance(glance.conf(auth_type=None))
    with pytest.raises(exception.InvalidConfiguration, match="auth_type"):
        source.image(NOBODY, soon())


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
def test_options_that_lead_nowhere(glance: Double, options: dict[str, object]) -> None:
    source = Glance(glance.conf(**options))
    with pytest.raises(exception.InvalidConfiguration, match="os_acc_glance"):
        source.image(NOBODY, soon())


def test_an_endpoint_may_be_given_with_its_version(glance: Double) -> None:
    source = Glance(glance.conf(endpoint_override=f"{glance.url}/v2/"))
    image_id = glance.add(DATA)
    assert source.image(image_id, soon()).id == image_id


def test_credentials_may_be_those_of_another_section(glance: Double) -> None:
    conf = glance.conf(auth_type=None, auth_section="placement")
    told = glance.conf()["os_acc_glance"]
    from keystoneauth1 import loading

    loading.register_auth_conf_options(conf, "placement")
    conf.register_opts(loading.get_auth_plugin_conf_options("password"), "placement")
    for name in ("auth_type", "auth_url", "username", "password", "project_name"):
        conf.set_override(name, told[name], "placement")
    conf.set_override("user_domain_id", "default", "placement")
    conf.set_override("project_domain_id", "default", "placement")
    image_id = glance.add(DATA)
    assert Glance(conf).image(image_id, soon()).id == image_id


def test_an_endpoint_that_is_not_glance(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.not_json = "<html>It works!</html>"
    with pytest.raises(exception.InvalidConfiguration, match="endpoint_override"):
        source.image(image.id, soon())
    with pytest.raises(exception.InvalidConfiguration, match="endpoint_override"):
        list(source.images({}, soon()))


def test_a_certificate_that_nobody_vouches_for(glance: Double) -> None:
    # What speaks no TLS has no certificate either.
    source = Glance(glance.conf(endpoint_override=glance.url.replace("http", "https")))
    with pytest.raises(exception.InvalidConfiguration, match="cafile"):
        source.image(NOBODY, soon())


# -- patience ------------------------------------------------------------------------


@pytest.mark.parametrize("code", [408, 429, 500, 502, 504])
def test_an_answer_that_may_be_another_one_later(
    glance: Double, source: Glance, code: int
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.failures = [code]
    with pytest.raises(exception.ImageServiceUnavailable) as error:
        source.image(image.id, soon())
    assert error.value.retryable
    glance.failures = [code]
    with pytest.raises(exception.ImageServiceUnavailable):
        received(source, image)


@pytest.mark.parametrize("trouble", [{"failures": [503, 503]}, {"refusals": 2}])
def test_what_passes_is_waited_for(
    glance: Double, source: Glance, trouble: dict[str, object]
) -> None:
    image_id = glance.add(DATA)
    for name, value in trouble.items():
        setattr(glance, name, value)
    assert source.image(image_id, soon()).id == image_id


@pytest.mark.parametrize("trouble", [{"failures": [503] * 99}, {"refusals": 99}])
def test_what_does_not_pass_is_told_after_the_last_retry(
    glance: Double, trouble: dict[str, object]
) -> None:
    for name, value in trouble.items():
        setattr(glance, name, value)
    source = Glance(glance.conf(connect_retries=2, status_code_retries=2))
    with pytest.raises(exception.ImageServiceUnavailable):
        source.image(NOBODY, soon())
    assert glance.count("GET /v2/images/") == 3


def test_nobody_is_there(glance: Double) -> None:
    conf = glance.conf(endpoint_override="http://127.0.0.1:1")
    with pytest.raises(exception.ImageServiceUnavailable, match="nobody answers"):
        Glance(conf).image(NOBODY, soon())


def test_no_keystone_is_there(glance: Double) -> None:
    for url in ("http://127.0.0.1:1", "http://127.0.0.1:1/v3"):
        source = Glance(glance.conf(auth_url=url))
        with pytest.raises(exception.ImageServiceUnavailable, match="nobody answers"):
            source.image(NOBODY, soon())


def test_no_retry_outlives_the_deadline(glance: Double) -> None:
    glance.failures = [503] * 99
    source = Glance(glance.conf(status_code_retries=99, status_code_retry_delay=3600))
    with pytest.raises(exception.ImageServiceUnavailable):
        source.image(NOBODY, time.monotonic() + 5.0)


def test_a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.drips = 0.05
    with pytest.raises(exception.ImageServiceUnavailable, match="in time"):
        source.image(image.id, time.monotonic() + 0.5)
    with (
        source.data(image, 0, time.monotonic() + 0.5) as data,
        pytest.raises(exception.ImageServiceUnavailable),
    ):
        list(data)


def test_a_server_that_says_nothing_is_left_at_the_timeout(glance: Double) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *_: None) as silent:
        url = f"http://127.0.0.1:{silent.server_address[1]}"
        conf = glance.conf(endpoint_override=url, timeout=1, connect_retries=0)
        with pytest.raises(exception.ImageServiceUnavailable):
            Glance(conf).image(NOBODY, soon())


def test_nothing_is_asked_for_after_the_deadline(
    glance: Double, source: Glance
) -> None:
    with pytest.raises(exception.ImageServiceUnavailable, match="in time"):
        source.image(NOBODY, time.monotonic() - 1.0)
    assert glance.asked == []


# -- what it costs not to use it -----------------------------------------------------


def test_nothing_of_openstacks_is_imported_before_it_is_asked() -> None:
    program = """
import sys
from oslo_config import cfg
from os_acc import conf
from os_acc.bitstreams.glance.source import Glance
Glance(cfg.ConfigOpts())
print({"glanceclient", "keystoneauth1", "requests", "urllib3"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_properties_cannot_be_changed(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(), soon())
    with pytest.raises(TypeError):
        image.properties["x"] = "y"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        image.name = "x"  # type: ignore[misc]
