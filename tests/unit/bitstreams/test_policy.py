# SPDX-License-Identifier: Apache-2.0

"""The operator's configuration decides which images may be programmed."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from os_acc.bitstreams import options, policy
from os_acc.exception import ImageRefused, InvalidConfiguration
from os_acc.objects.bitstream import Header, ImageFormat
from os_acc.testing.test_host import config_of
from tests.unit.bitstreams.image_examples import OPERATOR, TENANT, image

SIGNED = dict.fromkeys(policy.SIGNATURE_PROPERTIES, "x")


def rules(place: Path, *lines: str) -> options.BitstreamSettings:
    """Return the policy of a configuration file with these lines."""
    path = place / "os-acc.conf"
    path.write_text("\n".join(["[os_acc_bitstreams]", *lines]) + "\n")
    return options.BitstreamSettings.load(config_of(path))


def refused(made: Any, by: options.BitstreamSettings) -> str:
    with pytest.raises(ImageRefused) as caught:
        policy.check(made, by)
    assert not caught.value.retryable
    assert made.id in str(caught.value)
    return str(caught.value)


def test_a_public_image_that_nothing_is_wrong_with_may_be_programmed(tmp_path):
    policy.check(image(), rules(tmp_path))


@pytest.mark.parametrize("visibility", ["private", "shared", "community", "", "PUBLIC"])
def test_what_a_tenant_uploads_is_never_programmed(tmp_path, visibility):
    """cyborg.md 5.1 item 8: a tenant cannot supply a bitstream."""
    tenants = image(owner=TENANT, visibility=visibility)
    assert TENANT in refused(tenants, rules(tmp_path))
    assert TENANT in refused(tenants, rules(tmp_path, f"allowed_projects={OPERATOR}"))


@pytest.mark.parametrize("visibility", ["private", "shared", "community", "public"])
def test_images_of_a_project_that_is_allowed_are_whatever_their_visibility(
    tmp_path, visibility
):
    by = rules(
        tmp_path, f"allowed_projects = other, {OPERATOR}", "allow_public = false"
    )
    policy.check(image(visibility=visibility), by)


def test_a_public_image_of_a_stranger_is_not_where_public_is_not_enough(tmp_path):
    by = rules(tmp_path, f"allowed_projects = {OPERATOR}", "allow_public = false")
    assert "public" in refused(image(owner=TENANT), by)


@pytest.mark.parametrize("listed", [",", " ", f",{OPERATOR},"])
def test_an_image_without_an_owner_belongs_to_no_project(tmp_path, listed):
    by = rules(tmp_path, f"allowed_projects = {listed}")
    refused(image(owner="", visibility="private"), by)


@pytest.mark.parametrize("project", [OPERATOR.upper(), OPERATOR[:-1], f"{OPERATOR}0"])
def test_a_project_has_to_be_named_exactly(tmp_path, project):
    by = rules(tmp_path, f"allowed_projects = {project}")
    refused(image(visibility="private"), by)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "queued"}, "queued"),
        ({"status": "deactivated"}, "deactivated"),
        ({"status": ""}, "status"),
        ({"hidden": True}, "hidden"),
        ({"size": None}, "size is unknown"),
        ({"size": 0}, "no data"),
        ({"size": 2**30 + 1}, "1073741825"),
        ({"disk_format": "qcow2"}, "disk format is 'qcow2', not raw"),
        ({"disk_format": ""}, "disk format"),
        ({"container_format": "docker"}, "container format is 'docker', not bare"),
        ({"hash_algo": "", "hash_value": ""}, "no hash"),
        ({"hash_value": ""}, "no hash"),
        ({"hash_algo": "md5", "hash_value": hashlib.md5(b"").hexdigest()}, "md5"),
        ({"hash_algo": "sha1", "hash_value": hashlib.sha1(b"").hexdigest()}, "sha1"),
        ({"hash_algo": "SHA512"}, "SHA512"),
        ({"hash_value": "ab"}, "ab"),
        ({"hash_value": "../" * 42 + "ab"}, "digits"),
    ],
)
def test_an_image_that_something_is_wrong_with_is_refused(tmp_path, fields, message):
    assert message in refused(image(**fields), rules(tmp_path))


def test_every_reason_is_told_at_once(tmp_path):
    made = image(
        status="deactivated",
        hidden=True,
        owner=TENANT,
        visibility="private",
        size=2**40,
        disk_format="qcow2",
        container_format="ovf",
        hash_algo="md5",
    )
    message = refused(made, rules(tmp_path, "signature = required"))
    for reason in (
        "deactivated",
        "hidden",
        TENANT,
        str(2**40),
        "qcow2",
        "ovf",
        "md5",
        "img_signature_certificate_uuid",
    ):
        assert reason in message


@pytest.mark.parametrize("missing", policy.SIGNATURE_PROPERTIES)
def test_an_image_without_all_of_a_signature_is_refused_before_it_is_fetched(
    tmp_path, missing
):
    by = rules(tmp_path, "signature = required")
    policy.check(image(properties=SIGNED), by)
    for value in ({}, {missing: ""}):
        partly = {k: v for k, v in SIGNED.items() if k != missing} | value
        assert missing in refused(image(properties=partly), by)


def test_limits_are_the_operators(tmp_path):
    by = rules(
        tmp_path,
        "max_image_size = 10",
        "disk_formats = iso, gbs",
        "container_formats = bare, compressed",
    )
    policy.check(image(size=10, disk_format="gbs", container_format="compressed"), by)
    assert "gbs or iso" in refused(image(size=11), by)


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        ((), {ImageFormat.GBS, ImageFormat.XCLBIN}),
        (("file_formats = gbs",), {ImageFormat.GBS}),
        (("file_formats = raw, gbs",), {ImageFormat.GBS, ImageFormat.RAW}),
        (("file_formats =",), set()),
    ],
)
def test_the_format_of_a_file_has_to_be_allowed(tmp_path, lines, allowed):
    by = rules(tmp_path, *lines)
    for each in ImageFormat:
        header = Header(each, 0, 4)
        if each in allowed:
            policy.check_file(header, image(), by)
        else:
            with pytest.raises(ImageRefused, match=f"is {each.value}, not"):
                policy.check_file(header, image(), by)


@pytest.mark.parametrize(
    "line",
    [
        "allow_public = perhaps",
        "max_image_size = much",
        "max_image_size = 0",
        "max_image_size =",
        "file_formats = gbs, qcow2",
        "signature = optional",
        "signature =",
        "allowed_projects = $nothing",
    ],
)
def test_a_policy_that_cannot_be_read_is_no_policy(tmp_path, line):
    with pytest.raises(InvalidConfiguration):
        rules(tmp_path, line)
