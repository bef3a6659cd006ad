# SPDX-License-Identifier: Apache-2.0

import errno
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc.exception import StepReason
from os_acc.host import attributes
from os_acc.host.attributes import boot_id
from tests.expected_errors import raises


def test_a_missing_attribute_is_none(tmp_path):
    assert attributes.read_text(f"{tmp_path}/none") is None
    assert attributes.link_name(f"{tmp_path}/none") is None
    assert attributes.link_address(f"{tmp_path}/none") is None
    assert attributes.names(f"{tmp_path}/none") == []
    assert attributes.read_lines(f"{tmp_path}/none") == []


def test_below_a_file_nothing_is_found(tmp_path):
    (tmp_path / "file").touch()
    assert attributes.read_text(f"{tmp_path}/file/attribute") is None


def test_an_unreadable_attribute_is_an_error_with_the_kernels_number(tmp_path):
    with raises(StepReason.REFUSED) as caught:
        attributes.read_text(str(tmp_path))
    assert caught.value.errno == errno.EISDIR
    assert isinstance(caught.value.__cause__, OSError)


def test_an_attribute_is_never_followed_elsewhere(tmp_path):
    (tmp_path / "link").symlink_to("/proc/version")
    with raises(StepReason.REFUSED):
        attributes.read_text(f"{tmp_path}/link")


def test_a_file_in_the_place_of_a_link_is_an_error(tmp_path):
    (tmp_path / "driver").touch()
    with raises(StepReason.REFUSED):
        attributes.link_name(f"{tmp_path}/driver")


def test_a_link_to_no_function_is_an_error(tmp_path):
    (tmp_path / "physfn").symlink_to("../nowhere")
    with raises(StepReason.REFUSED, match="nowhere"):
        attributes.link_address(f"{tmp_path}/physfn")


def test_long_files_are_read_to_their_end(tmp_path):
    lines = [f"line {n}" for n in range(20_000)]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    assert attributes.read_lines(f"{tmp_path}/mountinfo") == lines


def test_no_descriptor_is_left_open(tmp_path):
    (tmp_path / "a").write_text("1\n")
    before = os.listdir("/proc/self/fd")
    attributes.read_text(f"{tmp_path}/a")
    attributes.read_lines(f"{tmp_path}/a")
    with raises(StepReason.REFUSED):
        attributes.read_text(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


@given(st.text() | st.from_regex(r"-?[0-9_x]+"))
def test_whatever_is_no_number_is_a_typed_error(text):
    base = 16 if text.lower().startswith("0x") else 10
    if re.fullmatch("-?[0-9]{1,19}|0[xX][0-9a-fA-F]{1,16}", text):
        assert attributes.number(text, "it") == int(text, base)
    else:
        with raises(StepReason.REFUSED, match="it contains"):
            attributes.number(text, "it")


BOOT_ID = "proc/sys/kernel/random/boot_id"


def test_the_boot_has_a_uuid(sysfs):
    sysfs.put(BOOT_ID, "0e2d3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6")
    assert boot_id(sysfs.root) == "0e2d3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6"


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_a_boot_without_a_uuid_is_an_error(sysfs, text):
    if text is not None:
        sysfs.put(BOOT_ID, text)
    with raises(StepReason.REFUSED, match="boot_id"):
        boot_id(sysfs.root)
