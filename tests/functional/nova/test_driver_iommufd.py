# SPDX-License-Identifier: Apache-2.0

"""Guests get PCI functions through iommufd; a guest with encrypted memory, no others.

``<driver iommufd='yes'/>`` of a PCI function is in libvirt from 12.1 on
(https://libvirt.org/formatdomain.html, "Host device assignment").
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from nova import objects
from nova.tests.fixtures import libvirt
from oslo_utils import versionutils

from os_acc import exception
from os_acc.nova import conversion
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.cloud import FIRST, ONE, Cloud

nodes = compute_nodes.nodes
specs, number = clouds.specs, clouds.number
NEW = versionutils.convert_version_to_int((12, 1, 0))
OLD = versionutils.convert_version_to_int((12, 0, 9))
THROUGH_IOMMUFD = '<driver iommufd="yes"/>'
IMAGE = "5e5e5e5e-1111-4111-8111-111111111111"


@pytest.fixture
def cloud(nodes: dict[str, Any]) -> Iterator[Cloud]:
    """Start Nova's services, without a compute node."""
    with clouds.started(libvirt_servers.LibvirtServers, nodes) as found:
        yield found


@pytest.fixture
def definitions() -> Iterator[list[str]]:
    """Yield what libvirt is given: definitions of guests, and devices to attach.

    Nova's fake of libvirt returns no ``<driver>``.
    """
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        for kind, name in (
            (libvirt.Connection, "defineXML"),
            (libvirt.Domain, "attachDeviceFlags"),
        ):
            noted = _noting(getattr(kind, name), found)
            stack.enter_context(mock.patch.object(kind, name, noted))
        yield found


def _noting(method: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    def noted(self: Any, xml: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(xml if isinstance(xml, str) else xml.decode())
        return method(self, xml, *args, **kwargs)

    return noted


def start(cloud: Cloud, *, iommufd: bool, version: int = NEW) -> None:
    """Start a compute node whose processors can encrypt memory (SEV)."""
    image = copy.deepcopy(cloud.nova.glance.image1)
    image["id"] = IMAGE
    image["properties"] |= {"hw_firmware_type": "uefi", "hw_machine_type": "q35"}
    image["properties"]["hw_mem_encryption"] = "True"
    cloud.nova.glance.create(None, image)
    cloud.nova.libvirt.amd_sev.sev = True
    cloud.nova.flags(iommufd=iommufd, group="os_acc_driver")
    with processors_with_sev():
        cloud.nova.start_compute(FIRST, libvirt_version=version)


def processors_with_sev() -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(
        libvirt.virConnect,
        "_domain_capability_features",
        libvirt.virConnect._domain_capability_features_with_SEV,
    )


def test_a_guest_gets_each_function_through_iommufd(cloud, definitions, specs, number):
    start(cloud, iommufd=True)
    server = cloud.nova.create(specs)
    cloud.check_attached(server, number)
    assert {each.count(THROUGH_IOMMUFD) for each in definitions} == {number}
    definitions.clear()
    cloud.nova.suspend(server)
    cloud.nova.resume(server)
    cloud.check_attached(server, number)
    attached = [each for each in definitions if each.startswith("<hostdev")]
    assert len(attached) == number
    assert all(THROUGH_IOMMUFD in each for each in attached)


def test_without_the_option_it_gets_the_groups(cloud, definitions):
    start(cloud, iommufd=False)
    server = cloud.nova.create(ONE)
    cloud.check_attached(server, 1)
    assert definitions
    assert not any("iommufd" in each for each in definitions)


def test_an_older_libvirt_is_refused_at_the_start(cloud):
    with pytest.raises(exception.InvalidConfiguration, match="iommufd is set"):
        start(cloud, iommufd=True, version=OLD)


def test_an_encrypted_guest_is_refused_a_device_without_iommufd(cloud):
    start(cloud, iommufd=False)
    with cloud.no_privileged_write():
        server = cloud.nova.create(ONE, state="ERROR", image_uuid=IMAGE)
    assert (
        "encrypted (amd-sev)"
        in cloud.nova.api.get_server(server["id"])["fault"]["message"]
    )
    cloud.nova.delete(server)
    cloud.check_free()


def test_an_encrypted_guest_gets_a_device_through_iommufd(cloud, definitions):
    start(cloud, iommufd=True)
    server = cloud.nova.create(ONE, image_uuid=IMAGE)
    cloud.check_attached(server, 1)
    assert all("launchSecurity" in each for each in definitions)
    assert all(THROUGH_IOMMUFD in each for each in definitions)


def test_an_encrypted_guest_does_not_start_again_without_the_option(cloud, definitions):
    start(cloud, iommufd=True)
    server = cloud.nova.create(ONE, image_uuid=IMAGE)
    cloud.nova.stop(server)
    cloud.nova.flags(iommufd=False, group="os_acc_driver")
    with processors_with_sev():
        cloud.nova.restart_compute_service(FIRST)
    definitions.clear()
    with pytest.raises(AssertionError):
        cloud.nova.start(server)
    assert not definitions
    assert "encrypted (amd-sev)" in cloud.nova.stdlog.logger.output


def test_an_encrypted_guest_without_accelerators_is_no_concern_of_ours(cloud):
    start(cloud, iommufd=False)
    cloud.nova.create({}, image_uuid=IMAGE)


FUNCTION, SLOT = "0000:3b:00.0", "mtty/mtty-1/0"


@pytest.mark.parametrize(
    ("addresses", "iommufd", "refused"),
    [
        pytest.param([[FUNCTION]], True, "", id="function"),
        pytest.param([[FUNCTION]], False, "first", id="function without the option"),
        # libvirt has no iommufd for it.
        pytest.param([[FUNCTION], [SLOT]], True, "second", id="mediated device"),
        pytest.param([], False, "", id="none of ours"),
    ],
)
def test_the_devices_that_an_encrypted_guest_may_not_have_are_named(
    addresses, iommufd, refused
):
    properties = {
        "hw_mem_encryption": "True",
        "hw_mem_encryption_model": "intel-tdx",
        "hw_firmware_type": "uefi",
        "hw_machine_type": "q35",
        "hw_firmware_stateless": "True",
        "hw_video_model": "none",
    }
    image = objects.ImageMeta.from_dict({"id": IMAGE, "properties": properties})
    flavor = objects.Flavor(name="f", extra_specs={})
    guest = mock.Mock(flavor=flavor, image_meta=image)
    found: Any = [
        {"name": name, "addresses": each}
        for name, each in zip(("first", "second"), addresses, strict=False)
    ]
    wanted = (
        pytest.raises(exception.InvalidExtraSpec, match=rf"intel-tdx.* of {refused} ")
        if refused
        else contextlib.nullcontext()
    )
    with wanted:
        conversion.check_encryption(guest, found, iommufd=iommufd)
