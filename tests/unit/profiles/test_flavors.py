# SPDX-License-Identifier: Apache-2.0

"""A profile's groups are written into a flavor by Nova's API."""

from collections.abc import Iterator

import pytest

from os_acc import exception
from os_acc.profiles import expansion, validation
from os_acc.profiles.flavors import SERVICE, Flavors
from tests.expected_errors import has, raises
from tests.unit.keystone_double import soon
from tests.unit.profiles.cloud_double import Cloud, running
from tests.unit.profiles.profile_examples import FPGA, GPU, profile

PREFIX = "_fpga-dp1_"
PROPERTIES = expansion.properties(validation.read(profile()), PREFIX)
PLACE = "/compute/v2.1/flavors/7/os-extra_specs"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    flavors = {
        (number, f"m{number}"): {"hw:cpu_policy": "shared"} for number in "56789"
    }
    with running(flavors=flavors) as cloud:
        yield cloud


@pytest.fixture
def flavors(cloud: Cloud) -> Flavors:
    return Flavors(cloud.conf(SERVICE))


def refused(why: str) -> pytest.RaisesExc[exception.ServiceRefused]:
    """Return an expectation of a refusal by Nova."""
    of_nova = has(service=exception.ServiceType.COMPUTE)
    return pytest.raises(exception.ServiceRefused, check=of_nova, match=why)


def writes(cloud: Cloud) -> list[str]:
    return [each for each in cloud.asked if not each.startswith("GET")]


@pytest.mark.parametrize("flavor", ["7", "m7"])
def test_a_flavor_of_any_page_is_found_by_id_and_by_name(cloud, flavors, flavor):
    applied = flavors.apply(flavor, PROPERTIES, PREFIX, soon())
    assert applied.name == "m7"
    assert cloud.flavors["7", "m7"] == {"hw:cpu_policy": "shared", **PROPERTIES}
    assert applied.properties == cloud.flavors["7", "m7"]
    assert writes(cloud) == [f"POST {PLACE}"]
    assert cloud.microversions == {"compute 2.86"}


def test_an_id_is_before_a_name(cloud, flavors):
    cloud.flavors = {("1", "2"): {}, ("2", "1"): {}}
    flavors.apply("2", PROPERTIES, PREFIX, soon())
    assert cloud.flavors == {("1", "2"): {}, ("2", "1"): PROPERTIES}


@pytest.mark.parametrize("size", [0, 5])
def test_a_flavor_that_nobody_has_made(cloud, flavors, size):
    cloud.page = size
    with raises(exception.ObjectKind.FLAVOR, match="m1"):
        flavors.apply("m1", PROPERTIES, PREFIX, soon())
    assert writes(cloud) == []


def test_the_same_again_writes_nothing(cloud, flavors):
    for _ in range(2):
        flavors.apply("7", PROPERTIES, PREFIX, soon())
    assert writes(cloud) == [f"POST {PLACE}"]


def test_what_the_profile_has_no_longer_is_removed(cloud, flavors):
    flavors.apply("7", PROPERTIES, PREFIX, soon())
    others = {
        f"resources_fpga-dp1_x:{GPU}": "1",
        f"resources_fpga-dp2_0:{GPU}": "1",
        f"resources1:{GPU}": "1",
    }
    cloud.flavors["7", "m7"] |= others
    less = {
        "resources_fpga-dp1_0:" + FPGA: "2",
        "os_acc_fpga-dp1_0:function_name": "gzip",
    }
    applied = flavors.apply("7", less, PREFIX, soon())
    assert cloud.flavors["7", "m7"] == {"hw:cpu_policy": "shared", **others, **less}
    assert applied.properties == cloud.flavors["7", "m7"]
    assert set(applied.removed) == set(PROPERTIES) - set(less)
    # Nova validates the new properties before any property is removed.
    assert writes(cloud)[1] == f"POST {PLACE}"


def test_what_nova_refuses_changes_nothing(cloud, flavors):
    flavors.apply("7", PROPERTIES, PREFIX, soon())
    before = dict(cloud.flavors["7", "m7"])
    cloud.bad = "os_acc_fpga-dp1_0:function_name"
    with refused("does not exist"):
        flavors.apply("7", {cloud.bad: "gzip"}, PREFIX, soon())
    assert cloud.flavors["7", "m7"] == before


def test_a_nova_that_is_too_old(cloud, flavors):
    cloud.oldest = True
    with refused(r"2\.86"):
        flavors.apply("7", PROPERTIES, PREFIX, soon())


def test_flavors_are_an_administrators(cloud, flavors):
    cloud.statuses = [403]
    with refused("denies access"):
        flavors.apply("7", PROPERTIES, PREFIX, soon())


def test_a_flavor_that_is_deleted_meanwhile(cloud, flavors, monkeypatch):
    monkeypatch.setattr(cloud, "_specs", lambda *_: (404, {"itemNotFound": {}}))
    with raises(exception.ObjectKind.FLAVOR, match="no longer has"):
        flavors.apply("7", PROPERTIES, PREFIX, soon())


def test_a_removal_whose_answer_is_lost_has_happened(cloud, flavors, monkeypatch):
    cloud.flavors["7", "m7"] = {f"resources_fpga-dp1_9:{GPU}": "1"}
    answer = cloud.answer

    def lose(method: str, path: str, body: object) -> tuple[int, object]:
        result = answer(method, path, body)
        return (503, {}) if method == "DELETE" and result[0] == 200 else result

    monkeypatch.setattr(cloud, "answer", lose)
    flavors.apply("7", PROPERTIES, PREFIX, soon())
    assert cloud.flavors["7", "m7"] == PROPERTIES
    assert [each.split()[0] for each in writes(cloud)] == ["POST", "DELETE", "DELETE"]


@pytest.mark.parametrize("code", [408, 502])
def test_a_nova_that_cannot_answer_now(cloud, flavors, code):
    cloud.statuses = 4 * [code]
    with pytest.raises(
        exception.ServiceUnavailable,
        check=has(service=exception.ServiceType.COMPUTE),
        match="Nova failed",
    ) as error:
        flavors.apply("7", PROPERTIES, PREFIX, soon())
    assert error.value.retryable
