# SPDX-License-Identifier: Apache-2.0

"""A key of os_acc is validated on its own, as Nova does when a flavor is created."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.scheduling import accel_keys, extra_specs

IMAGE = "d5ca2f11-3108-4426-a11c-a959987565df"

own_like = st.builds(
    "{}{}:{}".format,
    st.sampled_from(("accel", "os_acc", "bitstream", "function", "hw")),
    st.sampled_from(("", "1", "_fast", "erator")),
    st.sampled_from((*accel_keys.KEYS, IMAGE, "color", "bitsream_id")) | st.text(),
)
values = st.sampled_from((IMAGE, "required", "VM", "legacy", "")) | st.text()


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("os_acc:bitsream_id", IMAGE, "did you mean 'bitstream_id'?"),
        ("accel_fast:function-name", "x", "did you mean 'function_name'?"),
        ("accel1:color", "x", "it has to be one of: attach_target, "),
        ("accel:bitstream_id", "gzip", "by its name with bitstream_name"),
        ("accel:numa_policy", "prefered", "did you mean 'preferred'?"),
        ("os_acc2:attach_target", "guest", "it has to be one of: VM, host, none"),
        (f"bitstream:{IMAGE}", "forbidden", "set it to 'required'"),
    ],
)
def test_a_wrong_one_is_refused_with_a_hint(key, value, hint):
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        accel_keys.check(key, value)
    assert key in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "key",
    [
        "accel:device_profile",
        "accelerator:size",
        "os_account:size",
        f"accel{'a' * 65}:bitstream_id",
        "function",
        "hw:numa_nodes",
    ],
)
def test_what_may_be_anothers_key_is_left_to_them(key):
    accel_keys.check(key, "x")


@settings(deadline=None)
@given(own_like, values)
def test_what_is_refused_alone_is_refused_in_a_flavor(key, value):
    try:
        accel_keys.check(key, value)
    except exception.InvalidExtraSpec:
        with pytest.raises(exception.InvalidExtraSpec):
            extra_specs.parse({"resources:FPGA": "1", key: value})
