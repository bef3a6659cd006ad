# SPDX-License-Identifier: Apache-2.0

"""The upload of a bitstream in the manual makes an image that os_acc finds."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from os_acc.bitstreams import image_selection
from os_acc.objects.bitstream import BitstreamRequest, Image
from tests.unit.bitstreams import image_examples

PAGE = Path(__file__).resolve().parents[3] / "doc/source/user/bitstreams.rst"


@pytest.fixture
def uploaded() -> Image:
    """Return the image that the first command of the page makes in Glance."""
    text = PAGE.read_text(encoding="utf-8")
    (command, *_others) = re.findall(
        r"^   \$ (openstack image create (?:.+\\\n)*.+)", text, re.MULTILINE
    )
    _openstack, _image, _create, name, *options = shlex.split(
        command.replace("\\\n", " ")
    )
    fields: dict[str, str] = {}
    properties: dict[str, str] = {}
    visibility = "shared"
    words = iter(options)
    for option in words:
        if option == "--public":
            visibility = "public"
        elif option == "--property":
            key, _, value = next(words).partition("=")
            properties[key] = value
        else:
            fields[option] = next(words)
    assert set(fields) == {"--file", "--tag", "--disk-format", "--container-format"}
    return image_examples.image(
        1,
        properties,
        name=name,
        visibility=visibility,
        tags=frozenset({fields["--tag"]}),
        disk_format=fields["--disk-format"],
        container_format=fields["--container-format"],
    )


def test_the_uploaded_image_is_found_by_each_of_its_properties(uploaded):
    region_id = uploaded.properties["accel:region_uuid"]
    region = dataclasses.replace(image_examples.REGION, interface_id=region_id)
    others = [image_examples.image(2, {}), image_examples.image(3, {}, name="gzip")]
    requests = [
        BitstreamRequest(function_id=uploaded.properties["accel:function_id"]),
        BitstreamRequest(function_name=uploaded.properties["accel:function_name"]),
        BitstreamRequest(bitstream_name=uploaded.name),
        BitstreamRequest(bitstream_id=uploaded.id),
    ]
    for request in requests:
        found = image_selection.choose(
            request, region, [*others, uploaded], image_examples.RULES
        )
        assert found == uploaded
