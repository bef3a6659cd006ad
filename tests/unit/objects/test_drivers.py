# SPDX-License-Identifier: Apache-2.0

"""Attributes of XRT's drivers are parsed, or ignored where they are invalid."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.objects.drivers import xrt_interface_id, xrt_xclbin_id

A, B, C = (str(uuid.UUID(int=number)) for number in (0xA, 0xB, 0xC))
NOTHING = str(uuid.UUID(int=0))


@pytest.mark.parametrize("form", [str, lambda each: uuid.UUID(each).hex, str.upper])
@given(st.uuids())
def test_an_id_is_read_in_each_form(form, found):
    assert xrt_interface_id(f"{form(str(found))}\n") == str(found)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([A], A),
        ([A, A], A),
        ([A, B], B),
        ([A, A, B], B),
        ([A, B, C], None),
        ([], None),
        ([A, "none"], None),
        ([A[:-1]], None),
    ],
)
def test_the_last_of_two_stages_is_what_is_built_for(lines, found):
    assert xrt_interface_id("\n".join(lines)) == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], None),
        ([NOTHING], None),
        ([A], A),
        ([NOTHING, A], A),
        ([A, B], None),
        ([A, "more"], None),
    ],
)
def test_one_loaded_xclbin_is_known(lines, found):
    assert xrt_xclbin_id("\n".join(lines)) == found


@given(st.text())
def test_whatever_a_driver_says_is_no_error(text):
    for found in (xrt_interface_id(text), xrt_xclbin_id(text)):
        assert found is None or str(uuid.UUID(found)) == found
