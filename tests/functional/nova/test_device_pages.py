# SPDX-License-Identifier: Apache-2.0

"""The flavor of each device's page in the manual gives a guest the device."""

from __future__ import annotations

import dataclasses
import re

import pytest

from os_acc.testing import TestHost
from tests import device_pages
from tests.functional.nova import libvirt_servers
from tests.functional.nova.compute_nodes import ComputeNode

NODE = "compute1"


@dataclasses.dataclass
class PageNode(ComputeNode):
    """A node with the configuration of a page."""

    page: str = ""

    def device_spec(self) -> list[str]:
        (configuration,) = device_pages.blocks(self.page, "ini")
        return re.findall("(?m)^device_spec = (.+)$", configuration)


@pytest.mark.parametrize("page", device_pages.HOSTS)
def test_a_server_of_the_flavor_has_the_device(tmp_path, page):
    specs = device_pages.flavor(page)
    number = sum(key.startswith("resources") for key in specs)
    with TestHost(tmp_path, device_pages.HOSTS[page]) as bench:
        node = PageNode(NODE, bench, (), page=page)
        kind = libvirt_servers.LibvirtServers
        with libvirt_servers.running(kind, {NODE: node}) as nova:
            nova.start_compute(NODE)
            server = nova.create(specs, host=NODE)
            assert len(node.leases()[server["id"]]) == number
            assert nova.is_running(NODE, server)
            found = [*nova.hostdevs(NODE, server), *nova.mdevs(NODE, server)]
            assert len(found) == number
            nova.delete(server)
            assert server["id"] not in node.leases()
