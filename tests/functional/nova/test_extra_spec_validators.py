# SPDX-License-Identifier: Apache-2.0

"""Nova rejects a misspelt key of os_acc when the flavor is created."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import exception as nova_exception
from nova.api.validation.extra_specs import validators
from nova.tests.functional.api import client

from os_acc import exception
from os_acc.scheduling import accel_keys

#: From this microversion on, including the latest, the API validates extra specs.
JUDGING = "2.86"
IMAGE = "d5ca2f11-3108-4426-a11c-a959987565df"
FPGA = "resources1:CUSTOM_ACCELERATOR_FPGA"

RIGHT = {
    "accel:bitstream_id": IMAGE,
    "os_acc1:bitstream_id": IMAGE.upper(),
    "accel_fast:bitstream_name": "gzip v2",
    "os_acc:function_id": "gzip",
    f"accel{'a' * 64}:function_name": "gzip",
    "os_acc1:numa_policy": "required",
    "accel1:attach_target": "VM",
    f"bitstream:{IMAGE}": "required",
    "function:CUSTOM_FPGA_INTEL_FUNCTION_" + IMAGE.replace("-", ""): "required",
    "function_name:gzip": "required",
    "accel:device_profile": "gzip",
    "accelerator:size": "large",
    "os_account:owner": "me",
}
WRONG = [
    ("os_acc:bitsream_id", IMAGE, "did you mean 'bitstream_id'?"),
    ("accel1:device_profile", "gzip", "is not a key of os_acc"),
    ("accel:device_profil", "gzip", "is not a key of os_acc"),
    ("accel:attach_target", "guest", "VM, host, none"),
    (f"bitstream:{IMAGE}", "forbidden", "'required'"),
    ("bitstream:gzip", "required", "is not an image id"),
]


@pytest.fixture
def flavor(compute_api: Any) -> Iterator[str]:
    """Yield the id of a flavor without extra specs."""
    about = {"name": "f", "vcpus": 1, "ram": 64, "disk": 1, "id": "os-acc"}
    compute_api.post_flavor({"flavor": about})
    yield "os-acc"
    compute_api.delete_flavor("os-acc")


@contextlib.contextmanager
def at(api: Any, microversion: str) -> Iterator[None]:
    """Use a microversion until the end of the block."""
    api.microversion = microversion
    try:
        yield
    finally:
        api.microversion = None


def refusal(api: Any, flavor_id: str, specs: dict[str, str]) -> str:
    """Return Nova's message for rejected extra specs."""
    with pytest.raises(client.OpenStackApiException) as caught:
        api.post_extra_spec(flavor_id, {"extra_specs": specs})
    assert caught.value.response.status_code == 400
    text: str = caught.value.response.json()["badRequest"]["message"]
    return text


@pytest.mark.parametrize("microversion", [JUDGING, "latest"])
def test_a_flavor_may_have_what_os_acc_reads_and_what_others_do(
    compute_api, flavor, microversion
):
    specs = {FPGA: "1", **RIGHT}
    with at(compute_api, microversion):
        compute_api.post_extra_spec(flavor, {"extra_specs": specs})
    assert compute_api.get_extra_specs(flavor) == specs


@pytest.mark.parametrize(("key", "value", "text"), WRONG)
def test_a_key_that_os_acc_would_refuse_is_refused_with_its_hint(
    compute_api, flavor, key, value, text
):
    with at(compute_api, JUDGING):
        message = refusal(compute_api, flavor, {FPGA: "1", key: value})
    assert message.startswith("Validation failed; ")
    assert key in message
    assert text in message
    assert compute_api.get_extra_specs(flavor) == {}


def test_an_older_client_is_not_hindered(compute_api, flavor):
    specs = {"os_acc:bitsream_id": IMAGE}
    with at(compute_api, "2.85"):
        compute_api.post_extra_spec(flavor, {"extra_specs": specs})
    assert compute_api.get_extra_specs(flavor) == specs


def test_nova_s_own_keys_are_judged_as_before(compute_api, flavor):
    with at(compute_api, JUDGING):
        assert "hw:foo" in refusal(compute_api, flavor, {"hw:foo": "1"})
        assert "resources1:FPGAS" in refusal(
            compute_api, flavor, {"resources1:FPGAS": "1"}
        )


keys = st.builds(
    "{}{}:{}".format,
    st.sampled_from(("accel", "os_acc", "bitstream", "function", "function_name")),
    st.sampled_from(("", "1", "_fast", "erator", "ount")),
    st.sampled_from((*accel_keys.KEYS, IMAGE, "color", "bitsream_id")) | st.text(),
)
values = st.sampled_from((IMAGE, "required", "VM", "socket", "")) | st.text()


@settings(deadline=None)
@given(keys, values)
def test_nova_judges_any_key_as_os_acc_does(key, value):
    assert accepted_by_nova(key, value) is accepted_by_os_acc(key, value)


def accepted_by_nova(key: str, value: str) -> bool:
    """Return whether Nova's validation, with all its loaded validators, accepts it."""
    try:
        validators.validate(key, value)
    except nova_exception.ValidationError:
        return False
    return True


def accepted_by_os_acc(key: str, value: str) -> bool:
    """Return whether os_acc accepts it, or leaves it to other services."""
    try:
        accel_keys.check(key, value)
    except exception.InvalidExtraSpec:
        return False
    return True


@pytest.mark.parametrize("name", accel_keys.KEYS)
@pytest.mark.parametrize("namespace", accel_keys.NAMESPACES)
def test_nova_has_a_description_of_each_key(namespace, name):
    found = validators.VALIDATORS[f"{namespace}{{group}}:{name}"]
    assert found.description
    assert found.value.get("enum", []) == list(accel_keys.CHOICES.get(name, ()))
